"""Fold matmuls of 8-bit activations and 4-bit weights with their epilogues into partitions."""
from __future__ import annotations

from graphq.kernels.matmul_4bit.lower import lower_matmul_4bit
from graphq.passes.fuse_anchor import FuseAnchor
from graphq.rewrite.rule import ANY


class FuseMatmul4bit(FuseAnchor):
    """quantize?(f?(matmul(dequantize(x), dynamic_dequantize(w, scales, zps?), bias?))) -> partition

    w is s4 or u4, constant as its scales and zero points are: one a tensor, a column, or a group of rows and columns. f
    as in FuseMatmul.
    """

    anchor = "matmul_4bit"
    operations = ("matmul",)
    lower = staticmethod(lower_matmul_4bit)

    def pattern(self, g, x, w, scales, zps, bias):
        """See the class."""
        x = g.dequantize(x, attrs=ANY)
        w = g.any_of(g.dynamic_dequantize(w, scales, attrs=ANY), g.dynamic_dequantize(w, scales, zps, attrs=ANY))
        y = g.any_of(g.matmul(x, w, attrs=ANY), g.matmul(x, w, bias, attrs=ANY))
        return self.epilogue(g, y)
