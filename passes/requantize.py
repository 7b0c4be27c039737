"""Drop operations that do not change quantized numbers: quantize after dequantize, and clamps that saturation implies.

A dequantize after a quantize is never dropped, because the quantize rounds.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.dtypes import s8, s16, u8, u16
from graphq.ir import Graph, Node, Value
from graphq.ops.pool import max_pool
from graphq.ops.quant import dequantize, quantize
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

INTEGERS = (s8, u8, s16, u16)

SCALES = float(np.finfo(np.float32).tiny), 1e33
"""The range of scales that make quantize(dequantize(x)) exactly x.

The product of a scale in this range and a difference of two 16-bit integers is neither subnormal nor infinite in f32.
"""

MULTIPLIES = frozenset({"matmul", "convolution", "conv_transpose"})
"""Operations that integer kernels can compute if their operands are dequantized."""


class DropRequantize(Rewrite):
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

    def replace(self, x: Value) -> Value:
        return x


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
