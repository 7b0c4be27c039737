"""Kernels over the output pixels of channels-last images, shared by pools, interpolation and depthwise convolutions."""
