"""Bring operations that can be written in several ways to one form. Fusions then need only one pattern."""
import math

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.rewrite.rule import ANY, Drop, Match, PatternBuilder, PatternLike, Rewrite, Var


class VectorAsColumn(Rewrite):
    """matmul(x, w) -> reshape(matmul(x, column(w))) for a constant vector w and an x of rank 2 or more

    Integer kernels take matrices, and per-channel scales of weights need an axis.
    """

    tolerance = 1e-6

    def pattern(self, g: PatternBuilder, x: Var, w: Var) -> PatternLike:
        return g.matmul(x, w, attrs=ANY)

    def check(self, x: Value, w: Value) -> str | None:
        if w.data is None or w.shape is None or len(w.shape) != 1:
            return "the second operand is not a constant vector"
        return None if x.shape is not None and len(x.shape) > 1 else "the first operand is not known to be a matrix"

    def replace(self, g: Graph, x: Value, w: Value, match: Match) -> Value:
        node = match.root
        (y,) = g.add_node(node.op, [x, g.constant(w.array[:, None])], {**node.attrs, "transpose_b": False})
        return g.static_reshape(y, shape=[0] * (x.type.rank - 1), special_zero=True)


class SplitBiasOfRows(Rewrite):
    """matmul(x, w, b) -> add(matmul(x, w), b), unless the bias has one element per column

    Numbers do not change: both forms round the sum of products to f32, add the bias, and round the total to its dtype.
    """

    def pattern(self, g: PatternBuilder, x: Var, w: Var, b: Var) -> PatternLike:
        return g.matmul(x, w, b, attrs=ANY)

    def check(self, b: Value, match: Match) -> str | None:
        out = match.root.output.shape
        if not b.type.known or out is None or out[-1] is None:
            return ""
        return "" if b.type.size == b.type.dims[-1] == out[-1] else None

    def replace(self, g: Graph, x: Value, w: Value, b: Value, match: Match) -> Value:
        y = g.matmul(x, w, **{**match.root.attrs, "dtype": None if x.dtype == f32 else f32})
        return g.add(y, b, dtype=None if x.dtype == f32 else match.root.output.dtype)


class DropMultiplyByOne(Drop):
    """x * 1 -> x, x / 1 -> x  (exact; x + 0 stays, since -0 + 0 is +0)"""

    def pattern(self, g: PatternBuilder, x: Var, one: Var) -> PatternLike:
        return g.any_of(g.multiply(x, one, attrs=ANY), g.divide(x, one, attrs=ANY))

    def candidate(self, node: Node) -> bool:
        return any(v.data is not None for v in node.operands)

    def check(self, x: Value, one: Value, match: Match) -> str | None:
        if one.data is None or not np.all(one.data == 1):
            return ""
        if x.shape is None and one.shape != ():
            return f"the rank of the result is not known: {x.type} with {one.type}"
        return None if match.root.output.type == x.type else "the result's type differs"


class DropRepeatedRelu(Rewrite):
    """relu(relu(x)) -> relu(x)"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.relu(g.relu(x))

    def replace(self, g: Graph, x: Value) -> Value:
        return g.relu(x)


class CubeAsProducts(Rewrite):
    """pow(x, beta=3) -> square(x) * x, for f32: pow computes exactly these two products"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.pow(x, beta=3)

    def check(self, x: Value) -> str | None:
        return None if x.dtype == f32 else f"x is {x.dtype}"

    def replace(self, g: Graph, x: Value) -> Value:
        return g.multiply(g.square(x), x)


MAX_SUM = 2**31 // 255**2
"""A sum of at most this many products fits into s32. The operands of a product are differences of 8-bit integers."""


class RowScalesAsGroups(Rewrite):
    """matmul(dynamic_dequantize(x, scales, per_channel, axis=0), w) -> the same per_group, for a matrix x

    Each row becomes a group: integer matmul kernels need per-token scales (one per row) in this form.
    """

    def pattern(self, g: PatternBuilder, x: Var, scales: Var, w: Var, bias: Var) -> PatternLike:
        source = g.dynamic_dequantize(x, scales, attrs=ANY, qtype="per_channel")
        return g.any_of(g.matmul(source, w, attrs=ANY), g.matmul(source, w, bias, attrs=ANY))

    def check(self, x: Value, scales: Value, match: Match) -> str | None:
        if scales.data is not None or match.root.attrs["transpose_a"]:
            return ""
        if x.shape is None or len(x.shape) != 2 or not x.shape[1]:
            return f"{x.type} is not a matrix with rows of known size"
        rows = match.node("dynamic_dequantize").attrs["axis"] % 2 == 0
        return None if rows else "each element of a row has its own scale"

    def replace(self, g: Graph, x: Value, scales: Value, w: Value, bias: Value | None, match: Match) -> Value:
        scales, attrs = g.static_reshape(scales, shape=[-1, 1]), match.node("dynamic_dequantize").attrs
        assert x.shape is not None and x.shape[1] is not None
        x = g.dynamic_dequantize(x, scales, qtype="per_group", group_shape=[1, x.shape[1]], dtype=attrs["dtype"])
        return g.add_node(match.root.op, [x, w, bias], match.root.attrs)[0]


class ConvIntegerAsConvolution(Rewrite):
    """cast(conv_integer(x, w, zx?, zw?) + bias?) to f32 -> convolution(x - zx, w - zw) + cast(bias)?

    Both operands are dequantized with scale 1. Without a bias, numbers do not change: both forms round the exact sum to
    f32 once. With a bias, the new form rounds sum, bias and total to f32; numbers change only above 2**24 in magnitude.
    """

    tolerance = 1e-6

    def pattern(self, g: PatternBuilder, x: Var, w: Var, zx: Var, zw: Var, bias: Var) -> PatternLike:
        forms = ((x, w), (x, w, zx), (x, w, zx, zw), (x, w, None, zw))
        sums = g.any_of(*(g.conv_integer(*operands, attrs=ANY) for operands in forms))
        return g.cast(g.any_of(sums, g.add(sums, bias, attrs=ANY)), dtype=f32)

    def check(self, w: Value, zw: Value | None) -> str | None:
        if not w.type.known:
            return "the shape of the weights is not known"
        if (terms := math.prod(w.type.dims[1:])) > MAX_SUM:
            return f"sums of {terms} products could wrap"
        if zw is not None and (zw.shape is None or zw.shape not in ((), (1,)) and len(zw.shape) != 1):
            return f"the zero points of the weights are {zw.type}"
        return None

    def replace(self, g: Graph, x: Value, w: Value, zx: Value | None, zw: Value | None, bias: Value | None,
                match: Match) -> Value:
        attrs = match.node("conv_integer").attrs
        y = g.convolution(_centered(g, x, zx), _centered(g, w, zw), data_format="NCX", weights_format="OIX", **attrs)
        return y if bias is None else g.add(y, g.cast(bias, dtype=f32))


def _centered(g: Graph, x: Value, zps: Value | None) -> Value:
    """x - zps in f32; zps is one zero point, or one for each index of the first axis."""
    if zps is None:
        return g.dequantize(x, scales=[1.0])
    one = zps.type.size == 1
    scales = g.constant(np.ones(zps.type.dims, np.float32))
    return g.dynamic_dequantize(x, scales, zps, qtype="per_tensor" if one else "per_channel", axis=0)
