"""Kernels of chains of lane-wise (elementwise) operations."""
