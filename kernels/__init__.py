"""Kernels: one anchor family a file."""
