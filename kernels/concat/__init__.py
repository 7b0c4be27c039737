"""Kernels of concatenations, fused with lane-wise operations."""
