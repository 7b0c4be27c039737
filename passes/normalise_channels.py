"""Turn local response normalisation into a pool of squares across channels, for which there are kernels."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Value
from graphq.rewrite.rule import ANY, Match, Rewrite


class NormaliseChannelsAsPool(Rewrite):
    """lrn(x) -> x / (avg_pool(square(x)) * alpha + bias)**beta

    The pool runs along the channels: they become its only spatial axis, and the pixels become its channels. If the
    channels are last, x is transposed before and the result transposed back. A power of 3/4 is computed as two square
    roots, any other power except 1/2 and 1 as exp(beta * log(...)). Everything is in f32. Results differ from lrn's
    reference by up to 4e-7 of their size, and by beta times a unit in the last place of the logarithm.
    """

    tolerance = 1e-5

    def pattern(self, g):
        return g.lrn(..., attrs=ANY)

    def check(self, match: Match) -> str | None:
        a, source = match.root.attrs, next(match.root.operands)
        if not source.type.known or 0 in source.type.dims:
            return f"{source.type} has no channels that are known"
        channels = source.type.dims[-1 if a["data_format"] == "NXC" else 1]
        if a["size"] > channels:
            return f"its window of {a['size']} is wider than {channels} channels"
        if a["bias"] <= 0 or a["alpha"] < 0:
            return f"the root of a number below zero may be wanted: bias {a['bias']}, alpha {a['alpha']}"
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
