"""Fold dequantize -> interpolate -> epilogue -> quantize chains into partitions; interpolates of floats, too."""
from __future__ import annotations

from graphq.kernels.interpolate.lower import lower_interpolate
from graphq.passes.fuse_anchor import FuseAnchor
from graphq.rewrite.rule import ANY


class FuseInterpolate(FuseAnchor):
    """quantize?(f?(interpolate(dequantize?(x)))) -> partition; f as in FuseMatmul, all modes"""

    anchor = "interpolate"
    operations = ("interpolate",)
    lower = staticmethod(lower_interpolate)

    def pattern(self, g):
        """See the class; `absorbs` takes the dequantize along."""
        return self.epilogue(g, g.interpolate(..., attrs=ANY))
