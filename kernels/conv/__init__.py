"""Kernels of convolutions, including transposed and depthwise convolutions."""
