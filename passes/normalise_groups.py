"""Turn group and instance normalisation into normalisations along rows, for which there are kernels."""
from __future__ import annotations

from math import prod

from graphq.dtypes import f32
from graphq.ir import Graph, Value
from graphq.rewrite.rule import ANY, Match, Rewrite


class NormaliseGroupsAsRows(Rewrite):
    """group_norm(x, gamma, beta) -> reshape(layer_norm(reshape(x))) * gamma + beta

    If channels are last, x is transposed before and the result transposed back. Sums are added in another order than in
    group_norm's reference: for inputs drawn from N(3, 2) results differ by up to 1.2e-6.
    """

    tolerance = 1e-5

    def pattern(self, g):
        return g.group_norm(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        node = match.root
        source = next(node.operands)
        if node.attrs["keep_stats"]:
            return "its statistics are results, too"
        if not source.type.known or 0 in source.type.dims:
            return f"{source.type} has no rows that are known"
        return None if source.dtype == f32 else f"{source.dtype} would be rounded before gamma and beta"

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
