"""Kernels of attention with KV caches."""
