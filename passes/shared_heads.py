"""Rewrite grouped-query attention: matmuls read keys and values in place, without a copy for each query head.

repeat(x) below is reshape(expand(reshape(x))) that repeats each matrix: [..., n, r, c] to [..., n * times, r, c].
"""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.passes.simplify_moves import transpose_order
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var


def _repeat(g: PatternBuilder, x: PatternLike) -> PatternLike:
    return g.static_reshape(g.expand(x, attrs=ANY), attrs=ANY)


def _refused(match: Match) -> str | None:
    """Why the matched expand and reshape do not repeat matrices; None if they do."""
    expand, reshape = _nodes(match)
    source, wide, result = (v.type for v in (expand.operand(0), expand.output, reshape.output))
    if not (source.known and result.known):
        return "shapes are known only at run time"
    if len(source.dims) < 4 or source.dims[-3] != 1:
        return ""
    *outer, n, _, r, c = source.dims
    times = wide.dims[-3]
    repeats = list(wide.dims) == [*outer, n, times, r, c] and list(result.dims) == [*outer, n * times, r, c]
    return None if repeats else "the expand repeats more than matrices"


def _nodes(match: Match) -> tuple[Node, Node]:
    expand = match.node("expand")
    (reshape,) = expand.output.users
    return expand, reshape


def _without_copies(g: Graph, x: Value) -> Value:
    """The operand [..., n, 1, r, c] of the expand, reshaped to [..., n, r, c]."""
    *outer, _, r, c = x.type.dims
    return g.static_reshape(x, shape=[*outer, r, c])


class MoveRepeat(Rewrite):
    """f(repeat(x)) -> repeat(f(x)), where f transposes matrices, casts, or multiplies by one constant"""

    def pattern(self, g: PatternBuilder, x: Var, c: Var) -> PatternLike:
        y = _repeat(g, x)
        return g.any_of(g.static_transpose(y), g.type_cast(y, attrs=ANY), g.multiply(y, c))

    def check(self, c: Value | None, match: Match) -> str | None:
        if c is not None and (c.data is None or c.data.size != 1):
            return "it is not multiplied by one constant"
        if match.root.op.name == "static_transpose":
            order = transpose_order(match.root)
            if order != [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
                return "it moves matrices"
        return _refused(match)

    def replace(self, g: Graph, x: Value, c: Value | None, match: Match) -> Value:
        result, times = match.root.output.type.dims, match.node("expand").output.type.dims[-3]
        more = [] if c is None else [c]
        (y,) = g.add_node(match.root.op, [_without_copies(g, x), *more], match.root.attrs)
        *outer, rows, columns = y.type.dims
        wide = g.expand(g.static_reshape(y, shape=[*outer, 1, rows, columns]), shape=[*outer, times, rows, columns])
        return g.static_reshape(wide, shape=list(result))


class ShareHeads(Rewrite):
    """matmul(a, repeat(b)) -> reshape(matmul(reshape(a), b))

    All matrices of `a` that are multiplied by the same matrix of `b` are stacked into one matrix. Kernels add in the
    same order as before. The reference's sums may change, because NumPy chooses their order by the number of rows.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder, a: Var, b: Var) -> PatternLike:
        return g.matmul(a, _repeat(g, b), attrs=ANY)

    def check(self, a: Value, match: Match) -> str | None:
        if (reason := _refused(match)) is not None:
            return reason
        if not a.type.known or match.root.attrs["transpose_a"] or \
                a.type.dims[:-2] != _nodes(match)[1].output.type.dims[:-2]:
            return "the other operand has other matrices"
        return None

    def replace(self, g: Graph, a: Value, b: Value, match: Match) -> Value:
        *outer, heads, m, k = a.type.dims
        times = match.node("expand").output.type.dims[-3]
        rows = g.static_reshape(a, shape=[*outer, heads // times, times * m, k])
        (y,) = g.add_node(match.root.op, [rows, _without_copies(g, b)], match.root.attrs)
        return g.static_reshape(y, shape=list(match.root.output.type.dims))
