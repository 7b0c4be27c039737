"""Bring graphs to one form, so that the patterns of later passes meet fewer of them. Numbers do not change."""
from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from math import prod
from typing import Any

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, TensorType, Value
from graphq.kernels.moves.transpose import is_view
from graphq.passes.fold_pads import FoldPadIntoConvolution
from graphq.passes.move_quantization import MOVES
from graphq.passes.requantize import REQUANTIZE
from graphq.passes.static_quantization import STATIC, DequantizeByGroups
from graphq.rewrite.rule import ANY, Pass, Rewrite


class DropNoopReshape(Rewrite):
    """static_reshape(x) of x's own shape -> x"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_reshape(x, attrs=ANY)

    def check(self, x, match):
        """The shape must not change."""
        return None if match.root.output.type == x.type and x.type.known else "the shape changes"

    def replace(self, g, x):
        """See the class."""
        return x


class MergeReshapes(Rewrite):
    """static_reshape(static_reshape(x)) -> static_reshape(x)"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_reshape(g.static_reshape(x, attrs=ANY), attrs=ANY)

    def check(self, match):
        """The final shape must be known."""
        return None if match.root.output.type.known else "the final shape is not known"

    def replace(self, g, x, match):
        """See the class."""
        return g.static_reshape(x, shape=match.root.output.shape)


class MergeTransposes(Rewrite):
    """static_transpose(static_transpose(x, p), q) -> static_transpose(x, p[q])"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_transpose(g.static_transpose(x))

    def replace(self, g, x, match):
        """See the class."""
        outer, inner = (_order(n) for n in match.nodes)
        return g.static_transpose(x, order=[inner[d] for d in outer])


class DropNoopTranspose(Rewrite):
    """static_transpose(x, order=[0, 1, ...]) -> x"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_transpose(x)

    def check(self, match):
        """The order must be the identity."""
        order = _order(match.root)
        return None if order == sorted(order) else f"order {order} moves dimensions"

    def replace(self, g, x):
        """See the class."""
        return x


class TransposeAsReshape(Rewrite):
    """static_transpose(x) that moves dimensions of 1 alone -> static_reshape(x), a view"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_transpose(x)

    def check(self, x, match):
        """The shape must be known, and the elements keep their order."""
        return None if x.type.known and is_view(x.shape, _order(match.root)) else "elements move"

    def replace(self, g, x, match):
        """See the class."""
        return g.static_reshape(x, shape=match.root.output.shape)


class TransposeBeforeDequantize(Rewrite):
    """static_transpose(dequantize(x)) -> dequantize(static_transpose(x)), so that 8-bit data moves and weights fold."""

    def pattern(self, g, x):
        """See the class."""
        return g.static_transpose(g.dequantize(x, attrs=ANY))

    def replace(self, g, x, match):
        """The channel axis moves with its dimension."""
        order, attrs = _order(match.root), match.node("dequantize").attrs
        axis = attrs["axis"]
        if attrs["qtype"] == "per_channel":
            axis = order.index(axis % len(order))
        return g.dequantize(g.static_transpose(x, order=order), **{**attrs, "axis": axis})


class ReshapeBeforeDequantize(Rewrite):
    """static_reshape(dequantize(x)) -> dequantize(static_reshape(x)), so that a dense layer meets its dequantize"""

    def pattern(self, g, x):
        """See the class."""
        return g.static_reshape(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x, match):
        """The dimension that has a scale for each element must stay one."""
        return _channels_stay(match.node("dequantize"), x.type, match.root.output.type)

    def replace(self, g, x, match):
        """See the class."""
        attrs = match.node("dequantize").attrs
        axis = _kept_axis(attrs, x.type, match.root.output.type)
        return g.dequantize(g.static_reshape(x, **match.root.attrs), **{**attrs, "axis": axis})


class QuantizeBeforeReshape(Rewrite):
    """quantize(static_reshape(y)) -> static_reshape(quantize(y)), so that what computes y meets its quantize

    No pass undoes this: reshapes go up over dequantize and down over quantize.
    """

    def pattern(self, g, y):
        """See the class."""
        return g.quantize(g.static_reshape(y, attrs=ANY), attrs=ANY)

    def check(self, y, match):
        """The dimension that has a scale for each element must stay one."""
        return _channels_stay(match.root, match.root.output.type, y.type)

    def replace(self, g, y, match):
        """See the class."""
        axis = _kept_axis(match.root.attrs, match.root.output.type, y.type)
        quantised = g.quantize(y, **{**match.root.attrs, "axis": axis})
        return g.static_reshape(quantised, **match.node("static_reshape").attrs)


class QuantizeBeforeTranspose(Rewrite):
    """quantize(static_transpose(y)) -> static_transpose(quantize(y)), so that 8-bit data moves"""

    def pattern(self, g, y):
        """See the class."""
        return g.quantize(g.static_transpose(y), attrs=ANY)

    def replace(self, g, y, match):
        """The channel axis moves with its dimension."""
        order, attrs = _order(match.node("static_transpose")), match.root.attrs
        axis = attrs["axis"]
        if attrs["qtype"] == "per_channel":
            axis = order[axis]
        return g.static_transpose(g.quantize(y, **{**attrs, "axis": axis}), order=order)


def positive_axis(graph: Graph) -> int:
    """softmax(x, axis=-1) -> softmax(x, axis=r-1), likewise per-channel quantize and dequantize

    Per-tensor ones ignore their axis: it becomes 1, the default. No pattern: most nodes of a quantised model are such,
    and have their axis in normal form.
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
    """The axis counted from the front; None where the rank is not known."""
    if node.attrs.get("qtype") == "per_tensor":
        return 1
    shape = node.output.shape if len(node.outputs) == 1 else None
    return None if shape is None else node.attrs["axis"] % len(shape)


class UniformChannelsArePerTensor(Rewrite):
    """quantize(x, per_channel, scales=[s, s, ...]) -> quantize(x, scales=[s]), likewise dequantize"""

    def pattern(self, g, x):
        """See the class."""
        return g.any_of("quantize", "dequantize")(x, attrs=ANY, qtype="per_channel")

    def check(self, match):
        """All channels must have the same parameters."""
        scales, zps = match.root.attrs["scales"], match.root.attrs["zps"] or (0,)
        uniform = all(x and all(number == x[0] for number in x) for x in (scales, zps))
        return None if uniform else "the channels differ"

    def replace(self, g, match):
        """See the class."""
        a = match.root.attrs
        return _again(g, match.root, qtype="per_tensor", axis=1, scales=a["scales"][:1],
                      zps=None if a["zps"] is None else a["zps"][:1])


class SplitBiasOfRows(Rewrite):
    """matmul(x, w, b) -> add(matmul(x, w), b) for a bias that is not one element a column, which kernels take

    The sum is rounded to f32 before the bias is added, and to the result's dtype after it, as the matmul has it.
    """

    def pattern(self, g, x, w, b):
        """See the class."""
        return g.matmul(x, w, b, attrs=ANY)

    def check(self, b, match):
        """The bias must have other dimensions than the last one, or one element for several columns."""
        out = match.root.output.shape
        if not b.type.known or out is None or out[-1] is None:
            return ""
        return "" if b.type.size == b.shape[-1] == out[-1] else None

    def replace(self, g, x, w, b, match):
        """See the class."""
        y = g.matmul(x, w, **{**match.root.attrs, "dtype": None if x.dtype == f32 else f32})
        return g.add(y, b, dtype=None if x.dtype == f32 else match.root.output.dtype)


class DropMultiplyByOne(Rewrite):
    """x * 1 -> x, x / 1 -> x  (exact; x + 0 stays, since -0 + 0 is +0)"""

    def pattern(self, g, x, one):
        """See the class."""
        return g.any_of(g.multiply(x, one, attrs=ANY), g.divide(x, one, attrs=ANY))

    def check(self, x, one, match):
        """The operand must be a constant of ones that broadcasts into x."""
        if one.data is None or not np.all(one.data == 1):
            return "the other operand is not a constant of ones"
        if x.shape is None and one.shape != ():
            return f"the rank of the result is not known: {x.type} with {one.type}"
        return None if match.root.output.type == x.type else "the result's type differs"

    def replace(self, g, x):
        """See the class."""
        return x


class DropRepeatedRelu(Rewrite):
    """relu(relu(x)) -> relu(x)"""

    def pattern(self, g, x):
        """See the class."""
        return g.relu(g.relu(x))

    def replace(self, g, x):
        """See the class."""
        return g.relu(x)


class CubeAsProducts(Rewrite):
    """pow(x, beta=3) -> square(x) * x, in f32, where that is how pow computes it"""

    def pattern(self, g, x):
        """See the class."""
        return g.pow(x, beta=3)

    def check(self, x):
        """Narrower floats would be rounded between the products."""
        return None if x.dtype == f32 else f"x is {x.dtype}"

    def replace(self, g, x):
        """See the class."""
        return g.multiply(g.square(x), x)


REWRITES: tuple[Pass, ...] = (
    DequantizeByGroups(),  # first: what follows knows no group_axis
    DropNoopReshape(), MergeReshapes(), MergeTransposes(), DropNoopTranspose(),
    TransposeBeforeDequantize(), ReshapeBeforeDequantize(), QuantizeBeforeReshape(), QuantizeBeforeTranspose(),
    TransposeAsReshape(), positive_axis, UniformChannelsArePerTensor(), SplitBiasOfRows(),
    DropMultiplyByOne(), DropRepeatedRelu(),
    CubeAsProducts(),
    *STATIC, *MOVES, *REQUANTIZE, FoldPadIntoConvolution(),
)


def canonicalise(graph: Graph) -> int:
    """Apply all of REWRITES, one after another and again, until none matches; their number."""
    total = done = 0
    for rewrite in cycle(REWRITES):
        count = rewrite(graph)
        total += count
        done = 1 if count else done + 1  # so many have no match left
        if done == len(REWRITES):
            break
    return total


def _kept_axis(attrs: Mapping[str, Any], here: TensorType, there: TensorType) -> int | None:
    """The dimension of `there` that a quantisation along `axis` of `here` follows, when one is reshaped to the other.

    None when channels would be split or merged; the axis itself when there is one scale for all.
    """
    axis: int = attrs["axis"]
    if attrs["qtype"] == "per_tensor":
        return axis
    if not here.known or not there.known:
        return None
    axis %= len(here.dims)
    outside = prod(here.dims[:axis])
    return next((k for k, d in enumerate(there.dims) if d == here.dims[axis] and prod(there.dims[:k]) == outside), None)


def _channels_stay(node: Node, here: TensorType, there: TensorType) -> str | None:
    """A reason why the quantisation of `node`, along a dimension of `here`, cannot be one of `there`, or None."""
    if _kept_axis(node.attrs, here, there) is not None:
        return None
    return f"{node.op.name} has a scale for each element of dimension {node.attrs['axis']}, which {there} has not"


def _order(node: Node) -> list[int]:
    """The order of a static_transpose, all positive."""
    order = node.attrs["order"]
    return [d % len(order) for d in order]


def _again(g: Graph, node: Node, **changed: object) -> Value:
    """The same operation with some attributes changed."""
    return g.add_node(node.op, node.inputs, {**node.attrs, **changed})[0]
