"""Fold convolutions and their epilogues into partitions, of integers where the operands come from dequantize."""
from __future__ import annotations

from graphq.kernels.conv.lower import CONVOLUTIONS, lower_convolution
from graphq.passes.fuse_matmul import FuseMatmul


class FuseConvolution(FuseMatmul):
    """quantize?(f?(convolution(dequantize(x), dequantize(w), bias?))) -> partition

    Or conv_transpose, with f as in FuseMatmul. The convolution is channels-last by then (`channels_last`).
    """

    anchor = "convolution"
    operations = CONVOLUTIONS
    lower = staticmethod(lower_convolution)


class FuseFloatConvolution(FuseConvolution):
    """f?(convolution(x, w, bias?)) -> partition

    Of f32, bf16 or f16, with f as in FuseMatmul, and after FuseConvolution. The result is within the rounding errors of
    f32 sums.
    """

    takes_dequantize = False
