"""Kernels of operations outside of partitions: transposes, gathers, slices, pads, casts, integers, and ranges."""
