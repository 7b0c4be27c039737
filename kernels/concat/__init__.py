"""Kernels of partitions whose anchor is a concat."""
