"""Let operations that only move elements move 8-bit data: swap them with a dequantize before or a quantize after.

Numbers do not change. A swapped dequantize stands next to the operation that it fuses with, or next to a quantize that
undoes it (requantize.py).

No two rewrites undo each other. Towards the outputs, dequantize moves past reshape, transpose, gather, slice, expand,
pad and concat. Towards the inputs, quantize moves past reshape, transpose and pad, and a cast to a narrower type moves
past reshape, transpose and expand.
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from graphq.dtypes import s8, u8
from graphq.ir import Graph, Node, TensorType, Value
from graphq.ops.quant import DEQUANTIZES, dequantize, quantize
from graphq.passes.requantize import MULTIPLIES
from graphq.passes.simplify_moves import transpose_order
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

TAKERS = MULTIPLIES | {"max_pool", "avg_pool", "reduce_mean", "interpolate"}
"""Operations whose partitions may include a dequantize of an operand."""


class TransposeBeforeDequantize(Rewrite):
    """static_transpose(dequantize(x)) -> dequantize(static_transpose(x)), also for dynamic_dequantize

    The transpose then moves 8-bit data, and a transpose of constant weights is folded.
    """

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.static_transpose(g.any_of(*DEQUANTIZES)(..., attrs=ANY))

    def check(self, match: Match) -> str | None:
        _, node = match.nodes
        return "it has scales for groups" if node.attrs["qtype"] == "per_group" else None

    def replace(self, g: Graph, match: Match) -> Value:
        _, node = match.nodes
        order, axis = transpose_order(match.root), node.attrs["axis"]
        if node.attrs["qtype"] == "per_channel":
            axis = order.index(axis % len(order))
        x = g.static_transpose(node.operand(0), order=order)
        return g.add_node(node.op, [x, *node.inputs[1:]], {**node.attrs, "axis": axis})[0]


class ReshapeBeforeDequantize(Rewrite):
    """static_reshape(dequantize(x)) -> dequantize(static_reshape(x)): this dequantize may fuse with the next layer"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_reshape(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        return _channels_stay(match.node("dequantize"), x.type, match.root.output.type)

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        attrs = match.node("dequantize").attrs
        axis = _kept_axis(attrs, x.type, match.root.output.type)
        return g.dequantize(g.static_reshape(x, **match.root.attrs), **{**attrs, "axis": axis})


class QuantizeBeforeReshape(Rewrite):
    """quantize(static_reshape(y)) -> static_reshape(quantize(y)): quantize may fuse with a layer before the reshape"""

    def pattern(self, g: PatternBuilder, y: Var) -> PatternLike:
        return g.quantize(g.static_reshape(y, attrs=ANY), attrs=ANY)

    def check(self, y: Value, match: Match) -> str | None:
        return _channels_stay(match.root, match.root.output.type, y.type)

    def replace(self, g: Graph, y: Value, match: Match) -> Value:
        axis = _kept_axis(match.root.attrs, match.root.output.type, y.type)
        quantized = g.quantize(y, **{**match.root.attrs, "axis": axis})
        return g.static_reshape(quantized, **match.node("static_reshape").attrs)


class QuantizeBeforeTranspose(Rewrite):
    """quantize(static_transpose(y)) -> static_transpose(quantize(y)): 8-bit data moves"""

    def pattern(self, g: PatternBuilder, y: Var) -> PatternLike:
        return g.quantize(g.static_transpose(y), attrs=ANY)

    def replace(self, g: Graph, y: Value, match: Match) -> Value:
        order, attrs = transpose_order(match.node("static_transpose")), match.root.attrs
        axis = attrs["axis"]
        if attrs["qtype"] == "per_channel":
            axis = order[axis]
        return g.static_transpose(g.quantize(y, **{**attrs, "axis": axis}), order=order)


class CastBeforeMoves(Rewrite):
    """type_cast(static_reshape(y)) -> static_reshape(type_cast(y)), also for transposes and expand: less data moves"""

    def pattern(self, g: PatternBuilder, y: Var) -> PatternLike:
        return g.type_cast(g.any_of("static_reshape", "static_transpose", "expand")(y, attrs=ANY), attrs=ANY)

    def check(self, y: Value, match: Match) -> str | None:
        dtype = match.root.attrs["dtype"]
        return None if dtype.itemsize < y.dtype.itemsize else f"{dtype} is not narrower than {y.dtype}"

    def replace(self, g: Graph, y: Value, match: Match) -> Value:
        move = next(n for n in match.nodes if n is not match.root)
        return g.add_node(move.op, [g.type_cast(y, **match.root.attrs)], move.attrs)[0]


class GatherBeforeDequantize(Rewrite):
    """gather(dequantize(x), i) -> dequantize(gather(x, i))"""

    def pattern(self, g: PatternBuilder, x: Var, i: Var) -> PatternLike:
        return g.gather(g.dequantize(x, attrs=ANY), i, attrs=ANY)

    def check(self, x: Value, i: Value, match: Match) -> str | None:
        node = match.node("dequantize")
        if node.attrs["qtype"] == "per_tensor":
            return None
        if x.shape is None or i.shape is None:
            return "the ranks are not known"
        same = node.attrs["axis"] % len(x.shape) == match.root.attrs["axis"] % len(x.shape)
        return "dequantize has a scale for each element of the axis" if same else None

    def replace(self, g: Graph, x: Value, i: Value, match: Match) -> Value:
        attrs, axis = match.node("dequantize").attrs, match.root.attrs["axis"]
        if attrs["qtype"] == "per_channel":
            assert x.shape is not None and i.shape is not None
            channels, at = attrs["axis"] % len(x.shape), axis % len(x.shape)
            attrs = {**attrs, "axis": channels + (len(i.shape) - 1 if channels > at else 0)}
        return g.dequantize(g.gather(x, i, axis=axis), **attrs)


class PickBeforeDequantize(Rewrite):
    """slice(dequantize(x)) -> dequantize(slice(x)), and the same for expand"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.any_of("slice", "expand")(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        node, root = match.node("dequantize"), match.root
        if node.attrs["qtype"] == "per_tensor":
            return None
        if x.shape is None or root.output.shape is None:
            return "the rank is not known"
        axis = node.attrs["axis"] % len(x.shape)
        picked = {a % len(x.shape) for a in root.attrs["axes"]} if root.op.name == "slice" else set()
        if axis in picked or root.output.shape[axis - len(x.shape)] != x.shape[axis]:
            return f"dequantize has a scale for each element of dimension {axis}"
        return None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        attrs = match.node("dequantize").attrs
        if attrs["qtype"] == "per_channel":
            assert x.shape is not None and match.root.output.shape is not None
            axis = attrs["axis"] % len(x.shape) - len(x.shape) + len(match.root.output.shape)
            attrs = {**attrs, "axis": axis}
        return g.dequantize(g.add_node(match.root.op, [x], match.root.attrs)[0], **attrs)


class PadBeforeDequantize(Rewrite):
    """pad(dequantize(x), value=v) -> dequantize(pad(x, value=q)), if an integer q dequantizes to exactly v

    Pads that repeat elements of x are always rewritten.
    """

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.pad(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        if x.dtype not in (s8, u8):
            return f"{x.dtype} is not an 8-bit integer type"
        node, pad = match.node("dequantize"), match.root.attrs
        if node.attrs["qtype"] != "per_tensor":
            return "dequantize has a scale for each channel"
        if pad["mode"] == "constant" and self._integer(x, node, pad["value"]) is None:
            return f"no {x.dtype} dequantizes to {pad['value']:g}"
        return None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        node, pad = match.node("dequantize"), match.root.attrs
        value = self._integer(x, node, pad["value"]) if pad["mode"] == "constant" else 0
        return g.dequantize(g.pad(x, **{**pad, "value": value}), **node.attrs)

    def _integer(self, x: Value, node: Node, value: float) -> int | None:
        """The integer that dequantizes to exactly `value`; None if no integer does. -0.0 is not 0.0."""
        every = np.arange(x.dtype.min, x.dtype.max + 1).astype(x.dtype.numpy)
        numbers, wanted = dequantize.reference(every, **node.attrs), np.float32(value)
        same = (numbers == wanted) & (np.signbit(numbers) == np.signbit(wanted))
        return next((int(q) for q in every[same]), None)


class QuantizeBeforePad(Rewrite):
    """quantize(pad(y, value=v)) -> pad(quantize(y), value=q), where q is the quantized v"""

    def pattern(self, g: PatternBuilder, y: Var) -> PatternLike:
        return g.quantize(g.pad(y, attrs=ANY), attrs=ANY)

    def check(self, match: Match) -> str | None:
        attrs = match.root.attrs
        if attrs["qtype"] != "per_tensor":
            return "quantize has a scale for each channel"
        return None if attrs["dtype"].kind == "int" else f"{attrs['dtype']} is not an integer type"

    def replace(self, g: Graph, y: Value, match: Match) -> Value:
        pad, attrs = match.node("pad").attrs, match.root.attrs
        value = int(quantize.reference(np.asarray(pad["value"], np.float32), **attrs))
        return g.pad(g.quantize(y, **attrs), **{**pad, "value": value})


class ConcatBeforeDequantize(Rewrite):
    """concat(dequantize(x), dequantize(y), ...) with equal parameters -> dequantize(concat(x, y, ...))

    The rewrite applies only if a user of the concat can fuse with the dequantize. Otherwise the concat fuses with the
    dequantizes of its operands.
    """

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.concat(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        nodes = [v.node for v in match.root.operands]
        if not any(n is not None and n.op.name == "dequantize" for n in nodes) \
                or not any(user.op.name in TAKERS for user in match.root.output.users):
            return ""
        if any(n is None or n.op.name != "dequantize" for n in nodes):
            return "an operand is not dequantized"
        kinds = {(next(n.operands).dtype, n.attrs["qtype"], n.attrs["scales"], n.attrs["zps"] or (0,))
                 for n in nodes if n is not None}
        if len(kinds) > 1 or next(iter(kinds))[1] != "per_tensor":
            return "the operands are dequantized by different scales or zero points"
        return None

    def replace(self, g: Graph, match: Match) -> Value:
        nodes = [v.node for v in match.root.operands if v.node is not None]
        return g.dequantize(g.concat(*(next(n.operands) for n in nodes), **match.root.attrs), **nodes[0].attrs)


def _kept_axis(attrs: Mapping[str, Any], here: TensorType, there: TensorType) -> int | None:
    """The channel axis of a quantize after a reshape from `here` to `there`; None if it is split or merged."""
    axis: int = attrs["axis"]
    if attrs["qtype"] == "per_tensor":
        return axis
    if not here.known:
        return None
    return kept_axis(axis % len(here.dims), here, there)


def kept_axis(axis: int, here: TensorType, there: TensorType) -> int | None:
    """The index of `axis` after a reshape from type `here` to `there`; None if the axis is split or merged."""
    if not here.known or not there.known:
        return None
    outside = prod(here.dims[:axis])
    return next((k for k, d in enumerate(there.dims) if d == here.dims[axis] and prod(there.dims[:k]) == outside), None)


def _channels_stay(node: Node, here: TensorType, there: TensorType) -> str | None:
    """Why the quantize or dequantize `node` cannot move past a reshape from `here` to `there`; None if it can."""
    if _kept_axis(node.attrs, here, there) is not None:
        return None
    return (f"{node.op.name} has a scale for each element of dimension {node.attrs['axis']}, "
            f"and {there} has no such dimension")
