"""Fold matmuls and their epilogues into partitions, of integers where the operands come from dequantize."""
from __future__ import annotations

from typing import ClassVar

from graphq.kernels.matmul.lower import MATMULS, lower_matmul
from graphq.passes.fuse_anchor import DEQUANTIZES, FuseAnchor
from graphq.rewrite.rule import ANY


class FuseMatmul(FuseAnchor):
    """quantize?(f?(matmul(dequantize(x), dequantize(w), bias?))) -> partition, and f?(matmul_integer(...)) likewise

    Each dequantize may be a dynamic_dequantize. f is any chain of lane-wise operations, whose other operands may be
    dequantized too. The result is f32 where no quantize ends the chain, s32 of a matmul_integer alone.
    """

    anchor = "matmul"
    operations: ClassVar[tuple[str, ...]] = MATMULS
    lower = staticmethod(lower_matmul)

    def pattern(self, g, x, w, bias):
        """See the class."""
        if self.takes_dequantize:
            x, w = (g.any_of(*DEQUANTIZES)(..., attrs=ANY) for _ in range(2))
        forms = [form for name in self.operations for form in (
            [getattr(g, name)(..., attrs=ANY)] if name == "matmul_integer" else
            [getattr(g, name)(*operands, attrs=ANY) for operands in ((x, w), (x, w, bias))])]
        return self.epilogue(g, g.any_of(*forms))


class FuseFloatMatmul(FuseMatmul):
    """f?(matmul(x, w, bias?)) -> partition

    Of f32, bf16 or f16, with f as in FuseMatmul, and after it. The result is within the rounding errors of f32 sums.
    """

    operations = ("matmul",)
    takes_dequantize = False
