"""Make the axes of reductions, softmax and normalisations one last axis, along which kernels work.

The other axes move to the front, by a view if possible, else by a transpose.
"""
from __future__ import annotations

from math import prod

from graphq.ir import Graph, Node, Value
from graphq.kernels.rows.family import ROW
from graphq.kernels.rows.lower import REDUCTIONS
from graphq.rewrite.rule import ANY, Match, Rewrite


class RowsLast(Rewrite):
    """row(x, axes) -> reshape(transpose(row(transpose(reshape(x)))))

    Here row is any operation along rows (kernels/rows) that runs along other axes than just the last one, or whose
    result lacks the reduced axes. Means over axes before the last are left to the kernels of pools. Only the order of
    f32 sums changes.
    """

    tolerance = 1e-5

    def pattern(self, g):
        return g.any_of(*ROW.operations)(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        node, source = match.root, next(match.root.operands)
        if not source.type.known or not source.type.dims or len(list(node.operands)) > 1 and node.op.name in REDUCTIONS:
            return "shape or axes are known when it runs only"
        axes, last = axes_of(node), len(source.type.dims) - 1
        if not axes or axes == [last] and node.attrs.get("keep_dims", True):
            return "its axis is the last"
        if node.op.name == "reduce_mean" and last not in axes:
            return "means over pixels are pools"
        return None

    def replace(self, g: Graph, match: Match) -> Value:
        """Move the axes to the end, merge them, apply the operation to the merged axis, and move its result back."""
        node = match.root
        x, *more = node.inputs
        assert x is not None
        dims, axes = x.type.dims, axes_of(node)
        others = [k for k in range(len(dims)) if k not in axes]
        order = [*others, *axes]
        moves = order != sorted(order) and any(dims[k] != 1 for k in range(axes[0], len(dims)) if k not in axes)
        rows = g.static_transpose(x, order=order) if moves else x
        n = prod(dims[k] for k in axes)
        rows = g.static_reshape(rows, shape=[*(dims[k] for k in others), n])
        if node.op.name in REDUCTIONS:
            attrs = {**node.attrs, "axes": [len(others)], "keep_dims": True}
            (y,) = g.add_node(node.op, [rows], attrs)
            return g.static_reshape(y, shape=list(node.output.type.dims))
        key = "axis" if "axis" in node.attrs else "begin_norm_axis"
        more = [None if v is None else g.static_reshape(v, shape=[n]) for v in more]
        (y,) = g.add_node(node.op, [rows, *more], {**node.attrs, key: len(others)})
        y = g.static_reshape(y, shape=[dims[k] for k in (order if moves else range(len(dims)))])
        return g.static_transpose(y, order=[order.index(k) for k in range(len(dims))]) if moves else y


def axes_of(node: Node) -> list[int]:
    """The axes along which the operation runs, in ascending order."""
    rank, a = len(next(node.operands).type.dims), node.attrs
    if node.op.name in REDUCTIONS:
        return sorted(k % rank for k in a["axes"])
    return [a["axis"] % rank] if "axis" in a else list(range(a["begin_norm_axis"] % rank, rank))
