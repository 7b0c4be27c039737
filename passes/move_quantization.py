"""Move dequantize behind, and quantize in front of, what only picks elements: 8-bit data moves. Numbers do not change.

Rewrites for gather, slice and expand, which canonicalise applies beside those for reshapes and transposes; with them a
dequantize meets the operation that it fuses with, and a table of embeddings is never dequantized as a whole.
"""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.rewrite import ANY, Match, Rewrite

PICKS = ("slice", "expand")
"""Operations whose every result element is an element of their single operand."""


class GatherBeforeDequantize(Rewrite):
    """gather(dequantize(x), i) -> dequantize(gather(x, i))"""

    def pattern(self, g, x, i):
        """See the class."""
        return g.gather(g.dequantize(x, attrs=ANY), i, attrs=ANY)

    def check(self, match: Match) -> str | None:
        """One scale must hold for all elements."""
        return _one_scale(match.node("dequantize"))

    def replace(self, g: Graph, x: Value, i: Value, match: Match) -> Value:
        """See the class."""
        return g.dequantize(g.gather(x, i, **match.root.attrs), **match.node("dequantize").attrs)


class PickBeforeDequantize(Rewrite):
    """slice(dequantize(x)) -> dequantize(slice(x)), likewise expand"""

    def pattern(self, g, x):
        """See the class."""
        return g.any_of(*PICKS)(g.dequantize(x, attrs=ANY), attrs=ANY)

    def check(self, match: Match) -> str | None:
        """One scale must hold for all elements."""
        return _one_scale(match.node("dequantize"))

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        """See the class."""
        picked = g.add_node(match.root.op, [x], match.root.attrs)[0]
        return g.dequantize(picked, **match.node("dequantize").attrs)


def _one_scale(node: Node) -> str | None:
    """A reason why `node` has not one scale for all elements, or None."""
    return None if node.attrs["qtype"] == "per_tensor" else f"{node.op.name} has a scale for each channel"


MOVES = (GatherBeforeDequantize(), PickBeforeDequantize())
