"""Write each operation in one of its several forms, so that fusions need one pattern. Numbers do not change."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.rewrite.rule import ANY, Rewrite


def positive_axis(graph: Graph) -> int:
    """softmax(x, axis=-1) -> softmax(x, axis=r-1), and the same for per-channel quantize and dequantize

    Per-tensor quantize and dequantize ignore their axis, which becomes 1, the default. The pass is a function instead
    of a pattern: the pattern would match most nodes of a quantized model, though their axis is in normal form already.
    """
    count = 0
    for node in graph.nodes_of(("quantize", "dequantize", "softmax")):
        axis = _normal_axis(node)
        if axis in (None, node.attrs["axis"]):
            continue
        with graph.before(node):
            new = _again(graph, node, axis=axis)
        graph.replace_uses(node.output, new)
        graph.prune([node])
        count += 1
    return count


def _normal_axis(node: Node) -> int | None:
    """The axis counted from the front; None if the rank is not known."""
    if node.attrs.get("qtype") == "per_tensor":
        return 1
    shape = node.output.shape if len(node.outputs) == 1 else None
    return None if shape is None else node.attrs["axis"] % len(shape)


class UniformChannelsArePerTensor(Rewrite):
    """quantize(x, per_channel, scales=[s, s, ...]) -> quantize(x, scales=[s]), and the same for dequantize"""

    def pattern(self, g, x):
        return g.any_of("quantize", "dequantize")(x, attrs=ANY, qtype="per_channel")

    def candidate(self, node):
        scales, zps = node.attrs["scales"], node.attrs["zps"] or (0,)
        return all(x and x.count(x[0]) == len(x) for x in (scales, zps))

    def replace(self, g, match):
        a = match.root.attrs
        return _again(g, match.root, qtype="per_tensor", axis=1, scales=a["scales"][:1],
                      zps=None if a["zps"] is None else a["zps"][:1])


class VectorAsColumn(Rewrite):
    """matmul(x, w) -> reshape(matmul(x, column(w))) for a constant vector w and x of rank 2 at least

    Quantization needs this: integer kernels take matrices, and the scales of weights need an axis.
    """

    tolerance = 1e-6

    def pattern(self, g, x, w):
        return g.matmul(x, w, attrs=ANY)

    def check(self, x, w):
        if w.data is None or w.shape is None or len(w.shape) != 1:
            return "the second operand is not a constant vector"
        return None if x.shape is not None and len(x.shape) > 1 else "the first operand is not known to be a matrix"

    def replace(self, g, x, w, match):
        node = match.root
        (y,) = g.add_node(node.op, [x, g.constant(w.data[:, None])], {**node.attrs, "transpose_b": False})
        return g.static_reshape(y, shape=[0] * (len(x.shape) - 1), special_zero=True)


class SplitBiasOfRows(Rewrite):
    """matmul(x, w, b) -> add(matmul(x, w), b), unless the bias has one element a column, which kernels take

    The result of the matmul is rounded to f32 before the bias is added, and to its dtype afterwards, as before the
    rewrite.
    """

    def pattern(self, g, x, w, b):
        return g.matmul(x, w, b, attrs=ANY)

    def check(self, b, match):
        """Only a bias with one element per column stays in the matmul."""
        out = match.root.output.shape
        if not b.type.known or out is None or out[-1] is None:
            return ""
        return "" if b.type.size == b.shape[-1] == out[-1] else None

    def replace(self, g, x, w, b, match):
        y = g.matmul(x, w, **{**match.root.attrs, "dtype": None if x.dtype == f32 else f32})
        return g.add(y, b, dtype=None if x.dtype == f32 else match.root.output.dtype)


class DropMultiplyByOne(Rewrite):
    """x * 1 -> x, x / 1 -> x  (exact; x + 0 stays, since -0 + 0 is +0)"""

    def pattern(self, g, x, one):
        return g.any_of(g.multiply(x, one, attrs=ANY), g.divide(x, one, attrs=ANY))

    def candidate(self, node):
        return any(v.data is not None for v in node.operands)

    def check(self, x, one, match):
        """The operand must be a constant of ones that broadcasts into x."""
        if one.data is None or not np.all(one.data == 1):
            return ""
        if x.shape is None and one.shape != ():
            return f"the rank of the result is not known: {x.type} with {one.type}"
        return None if match.root.output.type == x.type else "the result's type differs"

    def replace(self, g, x):
        return x


class DropRepeatedRelu(Rewrite):
    """relu(relu(x)) -> relu(x)"""

    def pattern(self, g, x):
        return g.relu(g.relu(x))

    def replace(self, g, x):
        return g.relu(x)


class CubeAsProducts(Rewrite):
    """pow(x, beta=3) -> square(x) * x, for f32, where pow computes exactly these two products"""

    def pattern(self, g, x):
        return g.pow(x, beta=3)

    def check(self, x):
        return None if x.dtype == f32 else f"x is {x.dtype}"

    def replace(self, g, x):
        return g.multiply(g.square(x), x)


def _again(g: Graph, node: Node, **changed: object) -> Value:
    return g.add_node(node.op, node.inputs, {**node.attrs, **changed})[0]

