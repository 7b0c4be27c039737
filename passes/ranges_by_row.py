"""Quantize activations of dynamically quantized matmuls per token: each row gets its own range.

The results of a row then do not depend on other rows of the batch or on padding. A row x becomes rint(x / s) in s8,
with s = max|x| / 127; the results of the row are multiplied by s. `RangesByRow` changes numbers, mostly for the better,
and is not part of PIPELINE. Run it first:

    graphq.compile("model.onnx", passes=(passes.RangesByRow, *passes.PIPELINE))
"""
import numpy as np

from graphq.dtypes import f32, s8, u8
from graphq.ir import Graph, Value
from graphq.rewrite.fixpoint import Fixpoint
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

TINY = np.float32(2.0**-126)
"""The least scale of a row: the least normal f32 number. Rows of zeros get this scale."""


def quantized_rows(g: Graph, x: Value) -> tuple[Value, Value]:
    """Quantize `x` to s8 per row. Returns the integers, and the scales of shape [..., 1]."""
    largest = g.reduce_max(g.abs(x), axes=[-1], keep_dims=True)
    scales = g.maximum(g.multiply(largest, np.float32(1 / 127)), TINY)
    return g.quantize(g.divide(x, scales), dtype="s8", scales=[1.0]), scales


class IntegerProductByRow(Rewrite):
    """cast(matmul_integer(q, w, z, wz?)) * (s * ws) -> the same with x quantized per row

    q is x quantized to u8; its scale s and zero point z come from the range of the whole x. wz and ws are the zero
    point and the scale of the weights.
    """

    def pattern(self, g: PatternBuilder, q: Var, s: Var, z: Var, w: Var, wz: Var, ws: Var) -> PatternLike:
        sums = g.any_of(g.matmul_integer(q, w, z), g.matmul_integer(q, w, z, wz))
        return g.multiply(g.any_of("cast", "type_cast")(sums, attrs=ANY), g.multiply(s, ws))

    def check(self, q: Value, s: Value, z: Value, match: Match) -> str | None:
        if match.root.output.dtype != f32:
            return f"the product is {match.root.output.dtype}"
        return NOT_DYNAMIC if _quantized(q, s, z) is None else None

    def replace(self, g: Graph, q: Value, s: Value, z: Value, w: Value, wz: Value | None, ws: Value) -> Value:
        x = _quantized(q, s, z)
        assert x is not None
        rows, scales = quantized_rows(g, x)
        zps = () if wz is None else (g.constant(np.zeros((), s8.numpy)), wz)
        return g.multiply(g.cast(g.matmul_integer(rows, w, *zps), dtype=f32), g.multiply(scales, ws))


class DequantizedByRow(Rewrite):
    """matmul(dynamic_dequantize(q, s, z), w) -> the same with x quantized per row

    q is x quantized to u8; its scale s and zero point z come from the range of the whole x.
    """

    def pattern(self, g: PatternBuilder, q: Var, s: Var, z: Var, w: Var) -> PatternLike:
        return g.matmul(g.dynamic_dequantize(q, s, z, attrs=ANY), w, attrs=ANY)

    def check(self, q: Value, s: Value, z: Value, match: Match) -> str | None:
        if match.root.attrs["transpose_a"] or q.shape is None or not q.shape[-1]:
            return "the rows must lie along the last axis, and its size must be known"
        return NOT_DYNAMIC if _quantized(q, s, z) is None else None

    def replace(self, g: Graph, q: Value, s: Value, z: Value, w: Value, match: Match) -> Value:
        x, groups = _quantized(q, s, z), [1] * len(q.shape or ())
        assert x is not None and q.shape is not None and q.shape[-1] is not None
        groups[-1] = q.shape[-1]
        left = g.dynamic_dequantize(*quantized_rows(g, x), qtype="per_group", group_shape=groups)
        return g.matmul(left, w, **match.root.attrs)


NOT_DYNAMIC = "the operand is not quantized by its own range"


def _quantized(q: Value, s: Value, z: Value) -> Value | None:
    """The f32 value x that was quantized to q; None if s and z do not come from the range of x."""
    quantize, range = q.node, s.node
    if quantize is None or range is None or (quantize.op.name, range.op.name) != ("dynamic_quantize", "dynamic_range"):
        return None
    x = next(range.operands)
    whole = quantize.attrs["qtype"] == "per_tensor" and quantize.attrs["dtype"] == u8
    same = [a is b is c for a, b, c in zip(quantize.inputs, (x, s, z), (x, *range.outputs), strict=True)]
    return x if whole and all(same) else None


RangesByRow = Fixpoint("RangesByRow", IntegerProductByRow(), DequantizedByRow())
"""The pass that quantizes the activations of all dynamically quantized matmuls per row."""
