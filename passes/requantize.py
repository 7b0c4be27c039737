"""Bring quantize and dequantize to one form, and drop operations that do not change quantized numbers.

A dequantize after a quantize is never dropped, because the quantize rounds.
"""
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from graphq.dtypes import DType, f32, s2, s4, s8, s16, u2, u4, u8, u16
from graphq.ir import Graph, Node, Value
from graphq.ops.pool import max_pool
from graphq.ops.quant import dequantize, quantize
from graphq.rewrite.rule import ANY, Drop, Match, PatternBuilder, PatternLike, Rewrite, Var, set_attributes

INTEGERS = (s8, u8, s16, u16)

SCALES = float(np.finfo(np.float32).tiny), 1e33
"""The range of scales that make quantize(dequantize(x)) exactly x.

The product of a scale in this range and a difference of two 16-bit integers is neither subnormal nor infinite in f32.
"""

MULTIPLIES = frozenset({"matmul", "convolution", "conv_transpose"})
"""Operations that integer kernels can compute if their operands are dequantized."""

WIDER = {s4: s8, u4: u8, s2: s8, u2: u8}
"""The 8-bit type for each narrower type: integers are converted if no kernel reads fewer bits."""


def positive_axis(graph: Graph) -> int:
    """softmax(x, axis=-1) -> softmax(x, axis=r-1), and the same for per-channel quantize and dequantize

    Per-tensor quantize and dequantize ignore their axis; it becomes 1, the default. This is not a Rewrite, because its
    pattern would match most nodes of a quantized model, though few need a change.
    """
    count = 0
    for node in graph.nodes_of(("quantize", "dequantize", "softmax")):
        axis, shape = node.attrs["axis"], node.outputs[0].shape
        if node.attrs.get("qtype") == "per_tensor":
            normal = 1
        elif shape is None or len(node.outputs) > 1:
            continue
        else:
            normal = axis % len(shape)
        if normal != axis:
            count += set_attributes(graph, [node], axis=normal)
    return count


class UniformChannelsArePerTensor(Rewrite):
    """quantize(x, per_channel, scales=[s, s, ...]) -> quantize(x, scales=[s]), and the same for dequantize"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.any_of("quantize", "dequantize")(x, attrs=ANY, qtype="per_channel")

    def candidate(self, node: Node) -> bool:
        scales, zps = node.attrs["scales"], node.attrs["zps"] or (0,)
        return all(x and x.count(x[0]) == len(x) for x in (scales, zps))

    def replace(self, g: Graph, match: Match) -> Value:
        a = match.root.attrs
        first = {name: None if a[name] is None else a[name][:1] for name in ("scales", "zps")}
        return g.add_node(match.root.op, match.root.inputs, {**a, **first, "qtype": "per_tensor", "axis": 1})[0]


class DequantizeByGroups(Rewrite):
    """dequantize(x) with scales for groups along group_axis -> dynamic_dequantize(x, scales, zps?) per_group

    Other passes and kernels handle groups only in the second form.
    """

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.dequantize(x, attrs=ANY)

    def candidate(self, node: Node) -> bool:
        return node.attrs["group_axis"] is not None

    def check(self, x: Value) -> str | None:
        return None if x.type.known else f"the shape of {x.type} is not known"

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        attrs, dims = match.root.attrs, list(x.type.dims)
        axis, split = attrs["axis"] % len(dims), attrs["group_axis"] % len(dims)
        groups = len(attrs["scales"]) // dims[axis]
        counts = [1] * len(dims)
        counts[axis], counts[split] = dims[axis], groups
        order = sorted((split, axis))  # the axes as in x; `scales` has [group, channel]

        def blocks(numbers: Sequence[float], dtype: DTypeLike) -> Value:
            by_group = np.asarray(numbers, dtype).reshape(groups, dims[axis])
            return g.constant((by_group if order == [split, axis] else by_group.T).reshape(counts))

        scales = blocks(attrs["scales"], np.float32)
        zps = () if attrs["zps"] is None else (blocks(attrs["zps"], x.dtype.numpy),)
        return g.dynamic_dequantize(x, scales, *zps, qtype="per_group",
                                    group_shape=[d // n for d, n in zip(dims, counts, strict=True)])


class SplitGroups(Rewrite):
    """dynamic_dequantize(x, scales, zps?) per_group -> reshape(dynamic_dequantize(reshape(x), scales, zps?))

    An axis with several groups, each of several elements, becomes two axes: the groups, and the elements of a group.
    Along each axis there is then one scale for each index, or one scale for all indices.
    """

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.dynamic_dequantize(..., attrs=ANY)

    def candidate(self, node: Node) -> bool:
        return node.attrs["qtype"] == "per_group"

    def check(self, match: Match) -> str | None:
        x, *numbers = match.root.operands
        if x.data is not None:
            return "constants are packed without this rewrite"
        if not all(v.type.known for v in (x, *numbers)):
            return "shapes are known only at run time"
        return None if len(_axes(match)) > len(x.type.dims) else "scales broadcast already"

    def replace(self, g: Graph, match: Match) -> Value:
        x, *numbers = match.root.operands
        axes = _axes(match)
        numbers = [g.static_reshape(v, shape=[n for n, _ in axes]) for v in numbers]
        y = g.dynamic_dequantize(g.static_reshape(x, shape=[n * size for n, size in axes]), *numbers,
                                 **{**match.root.attrs, "group_shape": [size for _, size in axes]})
        return g.static_reshape(y, shape=list(x.type.dims))


def _axes(match: Match) -> list[tuple[int, int]]:
    """For each axis of the reshaped x, the number of groups and the number of elements of a group; one of them is 1."""
    _, scales, *_ = match.root.operands
    given = zip(scales.type.dims, match.root.attrs["group_shape"], strict=True)
    return [axis for n, size in given for axis in ([(n, 1), (1, size)] if n != 1 and size != 1 else [(n, size)])]


class StaticDequantize(Rewrite):
    """dynamic_dequantize(x, scales, zps?) with constant scales and zero points -> dequantize(x), for s8 and u8

    Constants of 2 and 4 bits are converted to 8 bits, except for weights of a matmul: its kernels read them.
    """

    def pattern(self, g: PatternBuilder, x: Var, scales: Var, zps: Var) -> PatternLike:
        return g.any_of(g.dynamic_dequantize(x, scales, attrs=ANY), g.dynamic_dequantize(x, scales, zps, attrs=ANY))

    def check(self, x: Value, scales: Value, zps: Value, match: Match) -> str | None:
        if match.root.output.dtype != f32:
            return f"the result is {match.root.output.dtype}"
        if x.dtype in WIDER and (x.data is None or any(user.op.name == "matmul" for user in match.root.output.users)):
            return "matmul kernels read 4 bits" if x.data is not None else f"x is {x.dtype} and not constant"
        return _refuses(match.root, WIDER.get(x.dtype, x.dtype), scales, zps, zeros=True)

    def replace(self, g: Graph, x: Value, scales: Value, zps: Value, match: Match) -> Value:
        if x.dtype in WIDER:
            x = g.constant(x.array.astype(WIDER[x.dtype].numpy))
        return g.dequantize(x, **_attributes(match.root, scales, zps))


class StaticQuantize(Rewrite):
    """dynamic_quantize(x, scales, zps?) with constant scales and zero points -> quantize(x), to s8 and u8"""

    def pattern(self, g: PatternBuilder, x: Var, scales: Var, zps: Var) -> PatternLike:
        return g.any_of(g.dynamic_quantize(x, scales, attrs=ANY), g.dynamic_quantize(x, scales, zps, attrs=ANY))

    def check(self, scales: Value, zps: Value, match: Match) -> str | None:
        return _refuses(match.root, match.root.attrs["dtype"], scales, zps, zeros=False)

    def replace(self, g: Graph, x: Value, scales: Value, zps: Value, match: Match) -> Value:
        return g.quantize(x, dtype=match.root.attrs["dtype"], **_attributes(match.root, scales, zps))


def _refuses(node: Node, dtype: DType, scales: Value, zps: Value | None, *, zeros: bool) -> str | None:
    """Why (de)quantize cannot have these scales and zero points; None if it can. `zeros` allows scales of 0."""
    if dtype.name not in ("s8", "u8"):
        return f"the integers are {dtype}"
    if node.attrs["qtype"] == "per_group":
        return "scales are per group"
    if scales.data is None or zps is not None and zps.data is None:
        return "scales or zero points are not constant"
    wide = scales.data.astype(np.float32)
    if not np.isfinite(wide).all() or not zeros and not wide.all():
        return "a scale is not finite, or it is 0"
    numbers = np.zeros(1) if zps is None or zps.data is None else zps.data.astype(np.int64)
    if not ((numbers >= dtype.min) & (numbers <= dtype.max)).all():
        return f"zero points are not in the range of {dtype}"
    return None


def _attributes(node: Node, scales: Value, zps: Value | None) -> dict[str, Any]:
    numbers = None if zps is None or zps.data is None else zps.data.reshape(-1).tolist()
    return {"qtype": node.attrs["qtype"], "axis": node.attrs["axis"], "zps": numbers,
            "scales": scales.array.astype(np.float32).reshape(-1).tolist()}


class DropRequantize(Drop):
    """quantize(dequantize(x)) with the same parameters -> x

    This is exact. With d = x - zp, at most 2**16, and scale s, f32 computes d * s / s with a relative error of at most
    2**-23, and the result rounds to d.
    """

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.quantize(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        if x.dtype not in INTEGERS or match.root.output.dtype != x.dtype:
            return f"{x.dtype} becomes {match.root.output.dtype}"
        return _same_parameters(match.node("dequantize"), match.root)


class DropLimitBeforeQuantize(Rewrite):
    """quantize(relu(x)) -> quantize(x), also for clamp, if the quantize saturates at the limits of relu or clamp"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.quantize(g.any_of("relu", "clamp")(x, attrs=ANY), attrs=ANY)

    def check(self, match: Match) -> str | None:
        """In all channels, each limit must be quantized to the end of the integers' range."""
        dtype, attrs = match.root.output.dtype, match.root.attrs
        if dtype not in INTEGERS:
            return f"{dtype} is not an integer type"
        if min(attrs["scales"], default=0) < 0:
            return "a scale is negative"
        zps = attrs["zps"] or (0,) * len(attrs["scales"])
        for limit, end in zip(_limits(match), (dtype.min, dtype.max), strict=True):
            ends = quantize.reference(np.full(len(zps), limit, np.float32), dtype=dtype, qtype="per_channel", axis=0,
                                      scales=attrs["scales"], zps=zps)
            if (ends != end).any():
                return ""
        return None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        return g.quantize(x, **match.root.attrs)


class DropLimitAfterDequantize(Rewrite):
    """relu(dequantize(x)) -> dequantize(x), also for clamp, if no dequantized number is beyond the limits"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.any_of("relu", "clamp")(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        if x.dtype not in INTEGERS:
            return f"{x.dtype} is not an integer type"
        attrs = match.node("dequantize").attrs
        ends = np.asarray([[x.dtype.min, x.dtype.max]] * len(attrs["scales"])).astype(x.dtype.numpy)
        numbers = dequantize.reference(ends, **{**attrs, "qtype": "per_channel", "axis": 0})
        low, high = _limits(match)
        return "" if (numbers < low).any() or (numbers > high).any() else None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        return g.dequantize(x, **match.node("dequantize").attrs)


class RequantizePicked(Rewrite):
    """max_pool(dequantize(x)) -> dequantize(quantize(max_pool(dequantize(x)))), also for nearest interpolate

    A layer that reads the result can then multiply 8-bit integers. The rewrite is exact, because each element of the
    pool's result is an element of dequantize(x) (see DropRequantize).
    """

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.any_of(g.max_pool(g.dequantize(x, attrs=ANY), attrs=ANY),
                        g.interpolate(g.dequantize(x, attrs=ANY), mode="nearest", attrs=ANY))

    def check(self, x: Value, match: Match) -> str | None:
        """A layer must read the result, there must be a single scale, and no window may consist of padding only."""
        node = match.node("dequantize")
        if not any(user.op.name in MULTIPLIES for user in match.root.output.users):
            return ""
        if x.dtype not in (s8, u8) or node.attrs["qtype"] != "per_tensor":
            return f"{x.type} with scales {node.attrs['qtype']}"
        if match.root.op.name == "max_pool" and not _windows_see_elements(match.root):
            return "a window may consist of padding only"
        return _same_parameters(node, node)

    def replace(self, g: Graph, match: Match) -> Value:
        root, source = match.root, match.node("dequantize")
        picked = g.add_again(root, root.inputs)[0]
        scale = {name: source.attrs[name] for name in ("scales", "zps")}
        narrow = g.quantize(picked, dtype=next(source.operands).dtype, **scale)
        return g.dequantize(narrow, **scale)


def _same_parameters(a: Node, b: Node) -> str | None:
    """Why a quantize with the parameters of `b` does not undo the dequantize `a`; None if it does."""
    for name in ("qtype", "axis"):
        if a.attrs[name] != b.attrs[name] and (name == "qtype" or a.attrs["qtype"] == "per_channel"):
            return f"{name} {a.attrs[name]} becomes {b.attrs[name]}"
    scales, others = (np.asarray(n.attrs["scales"], np.float32) for n in (a, b))
    zps, other_zps = (n.attrs["zps"] or (0,) * len(n.attrs["scales"]) for n in (a, b))
    if not np.array_equal(scales, others) or tuple(zps) != tuple(other_zps):
        return "the scales or zero points differ"
    low, high = SCALES
    return None if ((low <= scales) & (scales <= high)).all() else "a scale's products leave the range of f32"


def _limits(match: Match) -> tuple[float, float]:
    node = next(n for n in match.nodes if n.op.name in ("relu", "clamp"))
    attrs: dict[str, Any] = dict(node.attrs)
    low, high = (0.0, np.inf) if node.op.name == "relu" else (attrs["min"], attrs["max"])
    with np.errstate(over="ignore"):  # a limit beyond the range of f32 becomes infinite
        return float(np.float32(low)), float(np.float32(high))


def _windows_see_elements(node: Node) -> bool:
    """Whether each window of a max_pool has an element of the operand, not only padding."""
    source = next(node.operands).type
    if not source.known:
        return False
    first = node.attrs["data_format"] == "NCX"
    spatial = source.dims[2:] if first else source.dims[1:-1]
    zeros = np.zeros((1, 1, *spatial) if first else (1, *spatial, 1), np.float32)
    return bool(np.isfinite(max_pool.reference(zeros, **node.attrs)).all())
