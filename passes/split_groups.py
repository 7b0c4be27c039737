"""Activations with scales by groups, in the form for which there is a kernel: scales that broadcast."""
from __future__ import annotations

from graphq.ir import Graph, Value
from graphq.rewrite.rule import ANY, Match, Rewrite


class SplitGroups(Rewrite):
    """dynamic_dequantize(x, scales, zps?) per_group -> reshape(dynamic_dequantize(reshape(x), scales, zps?))

    An axis of several groups of several elements becomes two: the groups, and the elements of a group. Then there is
    along each axis a scale for each index, or one scale for all.
    """

    def pattern(self, g):
        return g.dynamic_dequantize(..., attrs=ANY)

    def candidate(self, node):
        return node.attrs["qtype"] == "per_group"

    def check(self, match: Match) -> str | None:
        x, *numbers = match.root.operands
        if x.data is not None:
            return "constants are packed as they are"
        if not all(v.type.known for v in (x, *numbers)):
            return "shapes are known when it runs only"
        groups = zip(numbers[0].type.dims, match.root.attrs["group_shape"], strict=True)
        return None if any(n != 1 and size != 1 for n, size in groups) else "scales broadcast as they are"

    def replace(self, g: Graph, match: Match) -> Value:
        (x, *numbers), sizes = match.root.operands, match.root.attrs["group_shape"]
        pairs = list(zip(numbers[0].type.dims, sizes, strict=True))
        blocks = [d for n, size in pairs for d in ((n, size) if n != 1 and size != 1 else (n * size,))]
        counts = [d for n, size in pairs for d in ((n, 1) if n != 1 and size != 1 else (n,))]
        numbers = [g.static_reshape(v, shape=counts) for v in numbers]
        groups = [d for n, size in pairs for d in ((1, size) if n != 1 and size != 1 else (size,))]
        y = g.dynamic_dequantize(g.static_reshape(x, shape=blocks), *numbers,
                                 **{**match.root.attrs, "group_shape": groups})
        return g.static_reshape(y, shape=list(x.type.dims))
