"""Kernels of operations outside of partitions: moves of elements, casts, integer arithmetic, histograms and ranges."""
