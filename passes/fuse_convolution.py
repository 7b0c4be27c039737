"""Fold dequantize -> convolution -> epilogue -> quantize chains into integer partitions."""
from __future__ import annotations

from graphq.kernels.lower_conv import CONVOLUTIONS, lower_convolution
from graphq.passes.fuse_matmul import FuseMatmul


class FuseConvolution(FuseMatmul):
    """quantize?(f?(convolution(dequantize(x), dequantize(w), bias?))) -> partition

    Or conv_transpose, with f as in FuseMatmul. The convolution is channels-last by then (`channels_last`).
    """

    anchor = "convolution"
    operations = CONVOLUTIONS
    lower = staticmethod(lower_convolution)
