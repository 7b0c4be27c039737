"""Kernels of attention with caches."""
