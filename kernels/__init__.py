"""Kernels, with one folder per family; `families.py` has the families' records."""
