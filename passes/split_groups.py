"""Reshape activations with per-group scales until the scales broadcast, because kernels need this form."""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite


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
