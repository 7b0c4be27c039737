"""Move dequantize behind what only picks, repeats or joins elements, quantize before pads, so that 8-bit data moves.

Numbers do not change.

Rewrites for gather, slice, expand, pad and concat, which canonicalise applies beside those for reshapes and transposes;
with them a dequantize meets the operation that it fuses with, or a quantize that undoes it (`requantize`), and a table
of embeddings is never dequantized as a whole.
"""
from __future__ import annotations

import numpy as np

from graphq.dtypes import s8, u8
from graphq.ir import Graph, Node, Value
from graphq.ops.quant import dequantize, quantize
from graphq.passes.requantize import MULTIPLIES
from graphq.rewrite.rule import ANY, Match, Rewrite

TAKERS = MULTIPLIES | {"max_pool", "avg_pool", "reduce_mean", "interpolate"}
"""Operations whose partitions begin with a dequantize."""


class GatherBeforeDequantize(Rewrite):
    """gather(dequantize(x), i) -> dequantize(gather(x, i))"""

    def pattern(self, g, x, i):
        """See the class."""
        return g.gather(g.dequantize(x, attrs=ANY), i, attrs=ANY)

    def check(self, x: Value, i: Value, match: Match) -> str | None:
        """The channels must not be gathered."""
        node = match.node("dequantize")
        if node.attrs["qtype"] == "per_tensor":
            return None
        if x.shape is None or i.shape is None:
            return "the ranks are not known"
        same = node.attrs["axis"] % len(x.shape) == match.root.attrs["axis"] % len(x.shape)
        return "dequantize has a scale for each element of the axis" if same else None

    def replace(self, g: Graph, x: Value, i: Value, match: Match) -> Value:
        """A channel axis behind that of the gather moves by the rank of the indices."""
        attrs, axis = match.node("dequantize").attrs, match.root.attrs["axis"]
        if attrs["qtype"] == "per_channel":
            assert x.shape is not None and i.shape is not None
            channels, at = attrs["axis"] % len(x.shape), axis % len(x.shape)
            attrs = {**attrs, "axis": channels + (len(i.shape) - 1 if channels > at else 0)}
        return g.dequantize(g.gather(x, i, axis=axis), **attrs)


class PickBeforeDequantize(Rewrite):
    """slice(dequantize(x)) -> dequantize(slice(x)), likewise expand"""

    def pattern(self, g, x):
        """See the class."""
        return g.any_of("slice", "expand")(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        """The channels must all stay."""
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
        """Axes are counted from the end, where expand adds none."""
        attrs = match.node("dequantize").attrs
        if attrs["qtype"] == "per_channel":
            assert x.shape is not None and match.root.output.shape is not None
            axis = attrs["axis"] % len(x.shape) - len(x.shape) + len(match.root.output.shape)
            attrs = {**attrs, "axis": axis}
        return g.dequantize(g.add_node(match.root.op, [x], match.root.attrs)[0], **attrs)


class PadBeforeDequantize(Rewrite):
    """pad(dequantize(x), value=v) -> dequantize(pad(x, value=q)) where q is an integer that stands for exactly v

    Modes that repeat elements need no value.
    """

    def pattern(self, g, x):
        """See the class."""
        return g.pad(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        """8-bit integers, one scale, a value that they have."""
        if x.dtype not in (s8, u8):
            return f"{x.dtype} is no 8-bit integer"
        node, pad = match.node("dequantize"), match.root.attrs
        if node.attrs["qtype"] != "per_tensor":
            return "dequantize has a scale for each channel"
        if pad["mode"] == "constant" and self._integer(x, node, pad["value"]) is None:
            return f"no {x.dtype} stands for {pad['value']:g}"
        return None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        """See the class."""
        node, pad = match.node("dequantize"), match.root.attrs
        value = self._integer(x, node, pad["value"]) if pad["mode"] == "constant" else 0
        return g.dequantize(g.pad(x, **{**pad, "value": value}), **node.attrs)

    def _integer(self, x: Value, node: Node, value: float) -> int | None:
        """The integer that stands for `value`."""
        every = np.arange(x.dtype.min, x.dtype.max + 1).astype(x.dtype.numpy)
        numbers = dequantize.reference(every, **node.attrs)
        return next((int(q) for q in every[numbers == np.float32(value)]), None)


class QuantizeBeforePad(Rewrite):
    """quantize(pad(y, value=v)) -> pad(quantize(y), value=q), q the integer of v"""

    def pattern(self, g, y):
        """See the class."""
        return g.quantize(g.pad(y, attrs=ANY), attrs=ANY)

    def check(self, match: Match) -> str | None:
        """One scale, and integers."""
        attrs = match.root.attrs
        if attrs["qtype"] != "per_tensor":
            return "quantize has a scale for each channel"
        return None if attrs["dtype"].kind == "int" else f"{attrs['dtype']} is no integer"

    def replace(self, g: Graph, y: Value, match: Match) -> Value:
        """See the class."""
        pad, attrs = match.node("pad").attrs, match.root.attrs
        value = int(quantize.reference(np.asarray(pad["value"], np.float32), **attrs))
        return g.pad(g.quantize(y, **attrs), **{**pad, "value": value})


class ConcatBeforeDequantize(Rewrite):
    """concat(dequantize(x), dequantize(y), ...) with equal parameters -> dequantize(concat(x, y, ...))

    Where what follows begins with a dequantize; concats fuse with anything else by themselves.
    """

    def pattern(self, g):
        """See the class."""
        return g.concat(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        """All sources must be dequantized alike, with one scale, and a user must take 8-bit data."""
        nodes = [v.node for v in match.root.operands]
        if not any(user.op.name in TAKERS for user in match.root.output.users):
            return "what follows takes no 8-bit data"
        if any(n is None or n.op.name != "dequantize" for n in nodes):
            return "a source is not dequantized"
        kinds = {(next(n.operands).dtype, n.attrs["qtype"], n.attrs["scales"], n.attrs["zps"] or (0,))
                 for n in nodes if n is not None}
        if len(kinds) > 1 or next(iter(kinds))[1] != "per_tensor":
            return "the sources are dequantized by different scales or zero points"
        return None

    def replace(self, g: Graph, match: Match) -> Value:
        """See the class."""
        nodes = [v.node for v in match.root.operands if v.node is not None]
        return g.dequantize(g.concat(*(next(n.operands) for n in nodes), **match.root.attrs), **nodes[0].attrs)


MOVES = (GatherBeforeDequantize(), PickBeforeDequantize(), PadBeforeDequantize(), QuantizeBeforePad(),
         ConcatBeforeDequantize())
