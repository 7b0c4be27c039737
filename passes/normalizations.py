"""Rewrite reductions and norms to the forms that kernels compute: along the last axis, or as a pool."""
from math import prod

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.kernels.rows.family import ROW
from graphq.kernels.rows.lower import REDUCTIONS
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite


class RowsLast(Rewrite):
    """row(x, axes) -> reshape(transpose(row(transpose(reshape(x)))))

    row is an operation of kernels/rows that runs along other axes than the last one, or drops the reduced axes. Means
    over axes before the last are not rewritten, because pool kernels compute them. Only the order of f32 sums changes.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.any_of(*ROW.operations)(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        node, source = match.root, next(match.root.operands)
        if not source.type.known or not source.type.dims or len(list(node.operands)) > 1 and node.op.name in REDUCTIONS:
            return "shape or axes are known only at run time"
        axes, last = axes_of(node), len(source.type.dims) - 1
        if not axes or axes == [last] and node.attrs.get("keep_dims", True):
            return "its axis is the last one"
        if node.op.name == "reduce_mean" and last not in axes:
            return "pool kernels compute means over pixels"
        return None

    def replace(self, g: Graph, match: Match) -> Value:
        """Move the axes to the end, merge them, apply the operation to the merged axis, and move the result back."""
        node = match.root
        x, *more = node.operand(0), *node.inputs[1:]
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


def _empty(source: Value) -> str | None:
    known = source.type.known and 0 not in source.type.dims
    return None if known else f"{source.type} is empty, or its shape is not known"


class NormalizeGroupsAsRows(Rewrite):
    """group_norm(x, gamma, beta) -> reshape(layer_norm(reshape(x))) * gamma + beta

    If channels are last, x is transposed, and the result is transposed back. Sums have another order than in
    group_norm's reference: for inputs drawn from N(3, 2) results differ by up to 1.2e-6.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.group_norm(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        node = match.root
        source = next(node.operands)
        if node.attrs["keep_stats"]:
            return "its statistics are also results"
        return _empty(source) or (None if source.dtype == f32 else
                                  f"{source.dtype} would be rounded before gamma and beta")

    def replace(self, g: Graph, match: Match) -> Value:
        node = match.root
        source, *affine = node.operands
        dims, groups, last = source.type.dims, node.attrs["groups"], node.attrs["data_format"] == "NXC"
        channels = dims[-1] if last else dims[1]
        pixels = prod(dims[1:-1] if last else dims[2:])
        swaps = last and groups > 1
        rows = source
        if swaps:
            rows = g.static_reshape(rows, shape=[dims[0], pixels, groups, channels // groups])
            rows = g.static_transpose(rows, order=[0, 2, 1, 3])
        rows = g.static_reshape(rows, shape=[dims[0], groups, pixels * channels // groups])
        y = g.layer_norm(rows, keep_stats=False, use_affine=False, epsilon=node.attrs["epsilon"])
        if swaps:
            y = g.static_reshape(y, shape=[dims[0], groups, pixels, channels // groups])
            y = g.static_transpose(y, order=[0, 2, 1, 3])
        y = g.static_reshape(y, shape=list(dims))
        if not node.attrs["use_affine"]:
            return y
        shape = [channels, *[1] * (0 if last else len(dims) - 2)]
        gamma, beta = (g.static_reshape(v, shape=shape) for v in affine)
        return g.add(g.multiply(y, gamma), beta)


class NormalizeChannelsAsPool(Rewrite):
    """lrn(x) -> x / (avg_pool(square(x)) * alpha + bias)**beta

    The channels become the only spatial axis of the pool, and the pixels its channels. If the channels of x are last, x
    is transposed, and the result is transposed back. The powers 1/2 and 3/4 are computed with square roots, other
    powers except 1 as exp(beta * log(...)). Everything is in f32. Results differ from lrn's reference by up to 4e-7 of
    their size, and by beta times a unit in the last place of the logarithm.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder) -> PatternLike:
        return g.lrn(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        a, source = match.root.attrs, next(match.root.operands)
        if (reason := _empty(source)) is not None:
            return reason
        channels = source.type.dims[-1 if a["data_format"] == "NXC" else 1]
        if a["size"] > channels:
            return f"its window of {a['size']} is wider than {channels} channels"
        if a["bias"] <= 0 or a["alpha"] < 0:
            return f"the root of a negative number may be needed: bias {a['bias']}, alpha {a['alpha']}"
        return None if source.dtype == f32 else f"{source.dtype} would be rounded after each operation"

    def replace(self, g: Graph, match: Match) -> Value:
        a, source = match.root.attrs, next(match.root.operands)
        dims, last = source.type.dims, a["data_format"] == "NXC"
        pixels = prod(dims[1:-1] if last else dims[2:])
        if last:
            x = g.static_transpose(g.static_reshape(source, shape=[dims[0], pixels, dims[-1]]), order=[0, 2, 1])
        else:
            x = g.static_reshape(source, shape=[dims[0], dims[1], pixels])
        mean = g.avg_pool(g.square(x), kernel=[a["size"]], strides=[1], pads_begin=[(a["size"] - 1) // 2],
                          pads_end=[a["size"] // 2], exclude_pad=False, in_order=True)
        y = g.divide(x, _power(g, g.add(g.multiply(mean, np.float32(a["alpha"])), np.float32(a["bias"])), a["beta"]))
        return g.static_reshape(g.static_transpose(y, order=[0, 2, 1]) if last else y, shape=list(dims))


def _power(g: Graph, x: Value, beta: float) -> Value:
    if beta == 1:
        return x
    if beta in (0.5, 0.75):
        root = g.sqrt(x)
        return root if beta == 0.5 else g.multiply(root, g.sqrt(root))
    return g.exp(g.multiply(g.log(x), np.float32(beta)))
