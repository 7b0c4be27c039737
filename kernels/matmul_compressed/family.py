"""The record of the family of matmuls whose constant weights stay compressed, as integers of 4 or 8 bits."""
from __future__ import annotations

from graphq.kernels.family.record import Family
from graphq.kernels.matmul_compressed.lower import check_matmul_compressed, lower_matmul_compressed
from graphq.kernels.matmul_compressed.steps import matmul_compressed_steps
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def quantized(g: PatternBuilder) -> PatternLike:
    """The pattern matmul(x, weights, bias?), where x is dequantize(q), dynamic_dequantize(q, scales), or any f32.

    `weights` is dequantize(w) or dynamic_dequantize(w, scales, zps?) of constants: w is s4, u4, s8 or u8, with one
    scale for the tensor, for each column, or for each group of rows and columns.
    """
    q, w = Var("q"), (Var("w"), Var("scales"))
    weights = g.any_of(g.dequantize(Var("w"), attrs=ANY),
                       *(g.dynamic_dequantize(*operands, attrs=ANY) for operands in (w, (*w, Var("zps")))))
    x = g.any_of(g.dequantize(q, attrs=ANY), g.dynamic_dequantize(q, Var("row_scales"), attrs=ANY), Var("x"))
    return g.any_of(g.matmul(x, weights, attrs=ANY), g.matmul(x, weights, Var("bias"), attrs=ANY))


MATMUL_COMPRESSED = Family("matmul_compressed", ("matmul",), check_matmul_compressed, lower_matmul_compressed,
                           matmul_compressed_steps, quantized)
