"""Kernels: one family a folder; `families.py` has their records."""
