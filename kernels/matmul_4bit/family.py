"""The record of the family of matmuls with 4-bit weights."""
from __future__ import annotations

from graphq.kernels.family.record import Family
from graphq.kernels.matmul_4bit.lower import check_matmul_4bit, lower_matmul_4bit
from graphq.kernels.matmul_4bit.steps import matmul_4bit_steps
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def quantized(g: PatternBuilder) -> PatternLike:
    """matmul(dequantize(x), dynamic_dequantize(w, scales, zps?), bias?)

    w is s4 or u4, constant as its scales and zero points are: one a tensor, a column, or a group of rows and columns.
    """
    x, w = g.dequantize(Var("x"), attrs=ANY), (Var("w"), Var("scales"))
    w = g.any_of(*(g.dynamic_dequantize(*operands, attrs=ANY) for operands in (w, (*w, Var("zps")))))
    return g.any_of(g.matmul(x, w, attrs=ANY), g.matmul(x, w, Var("bias"), attrs=ANY))


MATMUL_4BIT = Family("matmul_4bit", ("matmul",), check_matmul_4bit, lower_matmul_4bit, matmul_4bit_steps, quantized)
