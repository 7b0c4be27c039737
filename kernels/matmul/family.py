"""The record of the family of matmuls, of integers and of floats."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.matmul.lower import MATMULS, check_matmul, follows, lower_matmul, strided
from graphq.kernels.matmul.steps import matmul_steps
from graphq.ops.quant import DEQUANTIZES
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def dequantized_operands(g: PatternBuilder, *names: str) -> PatternLike:
    """The pattern op(dequantize(x), dequantize(w), bias?); a dequantize may also be a dynamic_dequantize."""
    x, w = (g.any_of(*DEQUANTIZES)(..., attrs=ANY) for _ in range(2))
    return g.any_of(*(g.any_of(*names)(*operands, attrs=ANY) for operands in ((x, w), (x, w, Var("bias")))))


def quantized(g: PatternBuilder) -> PatternLike:
    """The patterns matmul(dequantize(x), dequantize(w), bias?) and matmul_integer(...)."""
    return g.any_of(dequantized_operands(g, "matmul"), g.matmul_integer(..., attrs=ANY))


def macs(node: Node) -> int:
    """Count the multiply-accumulates: each element of the result is a sum of k products."""
    dims = next(node.operands).type.dims
    return node.output.type.size * dims[-2 if node.attrs.get("transpose_a") and len(dims) > 1 else -1]


MATMUL = Family("matmul", MATMULS, check_matmul, lower_matmul, matmul_steps, quantized, any_operands("matmul"),
                follows=follows, strided=strided, macs=dict.fromkeys(MATMULS, macs))
