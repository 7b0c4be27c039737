"""Kernels of depthwise convolutions: packed weights, integer tiles and float tiles."""
