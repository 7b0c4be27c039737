"""Kernels of lane-wise chains."""
