"""Kernels of interpolations (resizing)."""
