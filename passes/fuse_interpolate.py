"""Fold dequantize -> interpolate -> epilogue -> quantize chains into partitions; interpolates of floats, too."""
from __future__ import annotations

from graphq.kernels.epilogue import RULES, refuses
from graphq.kernels.lower_interpolate import lower_interpolate
from graphq.passes.fuse_matmul import MAX_EPILOGUE, FuseMatmul
from graphq.rewrite import ANY


class FuseInterpolate(FuseMatmul):
    """quantize?(f?(interpolate(dequantize?(x)))) -> partition; f as in FuseMatmul, all modes"""

    anchor = "interpolate"
    operations = ("interpolate",)
    lower = staticmethod(lower_interpolate)

    def pattern(self, g):  # type: ignore[override]
        """See the class; `absorbs` takes the dequantize along."""
        return g.repeat(RULES, g.interpolate(..., attrs=ANY), max=MAX_EPILOGUE, where=refuses)
