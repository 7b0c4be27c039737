"""Kernels that move elements: transposes, gathers, slices, pads, casts; and the range of a tensor."""
