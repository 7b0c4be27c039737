"""Compute products of f16 in f32: kernels that convert while they multiply take half as much time again."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.dtypes import f16, f32
from graphq.ir import Graph, Node, Value
from graphq.rewrite.rule import ANY, Match, Rewrite

MIN_ROWS = 8
"""With fewer rows products stay in f16.

Weights are read once for few products, so that their size in memory matters more.

Measured on Zen 4, with the casts around: f16 takes 1.3 to 1.6 times as long with 8 rows, 1.6 times with 64, and as long
with one row. bf16, which is widened by a shift, takes no longer.
"""


class WidenProducts(Rewrite):
    """anchor(x, w, bias?) of f16 -> type_cast(anchor(type_cast(x), w, bias?)), for constant w and bias

    Numbers do not change: sums are added in f32 in the same order, and rounded once. The casts join neighbouring
    chains.
    """

    def pattern(self, g, x, w, bias):
        anchor = g.any_of("convolution", "conv_transpose", "matmul")
        return g.any_of(anchor(x, w, attrs=ANY), anchor(x, w, bias, attrs=ANY))

    def check(self, x: Value, w: Value, bias: Value | None, match: Match) -> str | None:
        """The operands must be f16, weights and bias constants, with enough rows.

        Other dtypes of the source are not reported.
        """
        if x.dtype != f16:
            return ""
        if w.data is None or bias is not None and bias.data is None:
            return "weights or bias are not constant"
        rows = _rows(match.root)
        return None if rows is None or rows >= MIN_ROWS else f"{rows} rows are few"

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        constants = [g.constant(v.data.astype(np.float32)) for v in (w, bias) if v is not None and v.data is not None]
        result = match.root.output.dtype
        attrs = {k: v for k, v in match.root.attrs.items() if k != "dtype"}
        y = g.add_node(match.root.op, [g.type_cast(x, dtype=f32), *constants], attrs)[0]
        return y if result == f32 else g.type_cast(y, dtype=result)


def _rows(node: Node) -> int | None:
    """The number of rows that the weights multiply; None if it is not known yet."""
    result = node.output.type
    if not result.known:
        return None
    if node.op.name == "matmul":
        return prod(result.dims[:-1])
    channel = 1 if node.attrs["data_format"] == "NCX" else len(result.dims) - 1
    return prod(d for k, d in enumerate(result.dims) if k != channel)
