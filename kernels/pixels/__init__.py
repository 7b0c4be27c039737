"""Kernels over the output pixels of channels-last images, which pools, interpolation and depthwise kernels share."""
