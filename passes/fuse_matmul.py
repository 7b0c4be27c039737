"""Fold matmuls and their epilogues into partitions, of integers where the operands come from dequantize."""
from __future__ import annotations

from typing import ClassVar

from graphq.kernels.lower_matmul import lower_matmul
from graphq.passes.fuse_anchor import FuseAnchor
from graphq.rewrite import ANY


class FuseMatmul(FuseAnchor):
    """quantize?(f?(matmul(dequantize(x), dequantize(w), bias?))) -> partition

    f is any chain of lane-wise operations, whose other operands may be dequantized too. The result is f32 where no
    quantize ends the chain.
    """

    anchor = "matmul"
    operations: ClassVar[tuple[str, ...]] = ("matmul",)
    lower = staticmethod(lower_matmul)

    def pattern(self, g, x, w, bias):
        """See the class."""
        if self.takes_dequantize:
            x, w = g.dequantize(x, attrs=ANY), g.dequantize(w, attrs=ANY)
        operands = ((x, w), (x, w, bias))
        y = g.any_of(*(getattr(g, name)(*xs, attrs=ANY) for name in self.operations for xs in operands))
        return self.epilogue(g, y)


class FuseFloatMatmul(FuseMatmul):
    """f?(matmul(x, w, bias?)) -> partition

    Of f32, bf16 or f16, with f as in FuseMatmul, and after it. The result is within the rounding errors of f32 sums.
    """

    takes_dequantize = False
