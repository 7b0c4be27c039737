"""Let operations that only move elements move 8-bit data: swap them with a dequantize before or a quantize after.

Numbers do not change. A swapped dequantize stands next to the operation that it fuses with, or next to a quantize that
undoes it (requantize.py).

No two rewrites undo each other. Towards the outputs, dequantize moves past reshape, transpose, gather, slice, expand,
pad and concat. Towards the inputs, quantize moves past reshape, transpose and pad, and a cast to a narrower type moves
past reshape, transpose and expand.
"""
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


class Swap(Rewrite):
    """Base class of rewrites outer(inner(x)) -> inner(outer(x)) of operations with one operand."""

    inner: tuple[str, ...]
    outer: tuple[str, ...]

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        """One of `outer` after one of `inner`."""
        return g.any_of(*self.outer)(g.any_of(*self.inner)(x, attrs=ANY), attrs=ANY)

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        """The attributes that the swap changes. No attribute of `inner` has the name of an attribute of `outer`."""
        return {}

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        outer, inner = match.nodes
        changed = self.changed(x, inner, outer)
        for node in match.nodes:
            x = g.add_node(node.op, [x], {name: changed.get(name, a) for name, a in node.attrs.items()})[0]
        return x


class ReshapeBeforeDequantize(Swap):
    """static_reshape(dequantize(x)) -> dequantize(static_reshape(x)): this dequantize may fuse with the next layer"""

    inner, outer = ("dequantize",), ("static_reshape",)

    def check(self, x: Value, match: Match) -> str | None:
        return _channels_stay(match.node("dequantize"), x.type, match.root.output.type)

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        return {"axis": _kept_axis(inner.attrs, x.type, outer.output.type)}


class QuantizeBeforeReshape(Swap):
    """quantize(static_reshape(x)) -> static_reshape(quantize(x)): quantize may fuse with a layer before the reshape"""

    inner, outer = ("static_reshape",), ("quantize",)

    def check(self, x: Value, match: Match) -> str | None:
        return _channels_stay(match.root, match.root.output.type, x.type)

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        return {"axis": _kept_axis(outer.attrs, outer.output.type, x.type)}


class QuantizeBeforeTranspose(Swap):
    """quantize(static_transpose(x)) -> static_transpose(quantize(x)): 8-bit data moves"""

    inner, outer = ("static_transpose",), ("quantize",)

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        per_channel = outer.attrs["qtype"] == "per_channel"
        return {"axis": transpose_order(inner)[outer.attrs["axis"]]} if per_channel else {}


class CastBeforeMoves(Swap):
    """type_cast(static_reshape(x)) -> static_reshape(type_cast(x)), also for transposes and expand: less data moves"""

    inner, outer = ("static_reshape", "static_transpose", "expand"), ("type_cast",)

    def check(self, x: Value, match: Match) -> str | None:
        dtype = match.root.attrs["dtype"]
        return None if dtype.itemsize < x.dtype.itemsize else f"{dtype} is not narrower than {x.dtype}"


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
            channels, at = attrs["axis"] % x.type.rank, axis % x.type.rank
            attrs = {**attrs, "axis": channels + (i.type.rank - 1 if channels > at else 0)}
        return g.dequantize(g.gather(x, i, axis=axis), **attrs)


class PickBeforeDequantize(Swap):
    """slice(dequantize(x)) -> dequantize(slice(x)), and the same for expand"""

    inner, outer = ("dequantize",), ("slice", "expand")

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

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        if inner.attrs["qtype"] == "per_tensor" or x.shape is None or outer.output.shape is None:
            return {}
        return {"axis": inner.attrs["axis"] % len(x.shape) - len(x.shape) + len(outer.output.shape)}


class PadBeforeDequantize(Swap):
    """pad(dequantize(x), value=v) -> dequantize(pad(x, value=q)), if an integer q dequantizes to exactly v

    Pads that repeat elements of x are always rewritten.
    """

    inner, outer = ("dequantize",), ("pad",)

    def check(self, x: Value, match: Match) -> str | None:
        if x.dtype not in (s8, u8):
            return f"{x.dtype} is not an 8-bit integer type"
        node, pad = match.node("dequantize"), match.root
        if node.attrs["qtype"] != "per_tensor":
            return "dequantize has a scale for each channel"
        value = self.changed(x, node, pad)["value"]
        return f"no {x.dtype} dequantizes to {pad.attrs['value']:g}" if value is None else None

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        """The value of the pad: None if no integer dequantizes to exactly the given value. -0.0 is not 0.0."""
        if outer.attrs["mode"] != "constant":
            return {"value": 0}
        every = np.arange(x.dtype.min, x.dtype.max + 1).astype(x.dtype.numpy)
        numbers, wanted = dequantize.reference(every, **inner.attrs), np.float32(outer.attrs["value"])
        same = (numbers == wanted) & (np.signbit(numbers) == np.signbit(wanted))
        return {"value": next((int(q) for q in every[same]), None)}


class QuantizeBeforePad(Swap):
    """quantize(pad(x, value=v)) -> pad(quantize(x), value=q), where q is the quantized v"""

    inner, outer = ("pad",), ("quantize",)

    def check(self, match: Match) -> str | None:
        attrs = match.root.attrs
        if attrs["qtype"] != "per_tensor":
            return "quantize has a scale for each channel"
        return None if attrs["dtype"].kind == "int" else f"{attrs['dtype']} is not an integer type"

    def changed(self, x: Value, inner: Node, outer: Node) -> Mapping[str, Any]:
        return {"value": int(quantize.reference(np.asarray(inner.attrs["value"], np.float32), **outer.attrs))}


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
