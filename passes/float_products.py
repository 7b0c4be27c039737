"""Change the precision of float matmuls and convolutions: f16 to f32, and f32 to bf16 if the user asks for it."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.dtypes import bf16, f16, f32
from graphq.ir import Graph, Node, Value
from graphq.passes.compressed_weights import WEIGHTS, stays_compressed, uncast
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

MIN_ROWS = 8
"""An f16 layer with this many rows or more is computed in f32.

A layer with fewer rows stays in f16: it uses each weight for only a few multiplications, so the bytes of the weights
matter more.

Measured on Zen 4, including the casts: f16 takes 1.3 to 1.6 times as long as f32 with 8 rows, 1.6 times with 64, and
the same time with one row. bf16 is widened by a shift and takes no longer.
"""


class OfProducts(Rewrite):
    """Base class of rewrites of the anchors convolution, conv_transpose and matmul, with or without a bias."""

    def pattern(self, g: PatternBuilder, x: Var, w: Var, bias: Var) -> PatternLike:
        """An anchor with any attributes."""
        anchor = g.any_of("convolution", "conv_transpose", "matmul")
        return g.any_of(anchor(x, w, attrs=ANY), anchor(x, w, bias, attrs=ANY))


class WidenProducts(OfProducts):
    """anchor(x, w, bias?) of f16 -> type_cast(anchor(type_cast(x), type_cast(w), bias?)), for a constant bias

    The anchor is a matmul or a convolution. Numbers do not change: sums are added in f32 in the same order, and rounded
    once. The casts fuse with neighboring operations, and constants are cast at compile time. The rewrite applies to
    layers with MIN_ROWS rows or more, and to all matmuls with weights of 4 or 8 bits, because only f32 kernels read
    them.
    """

    def check(self, x: Value, w: Value, bias: Value | None, match: Match) -> str | None:
        """x must be f16. The bias, and the weights of a convolution, must be constant. There must be enough rows."""
        if x.dtype != f16:
            return ""
        compressed = match.root.op.name == "matmul" and stays_compressed(w, match.root.attrs["transpose_b"])
        if match.root.op.name != "matmul" and w.data is None or bias is not None and bias.data is None:
            return "weights or bias are not constant"
        rows = None if compressed else _rows(match.root)
        return None if rows is None or rows >= MIN_ROWS else f"it has only {rows} rows"

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        constants = [g.type_cast(v, dtype=f32) if v.data is None else g.constant(v.data.astype(np.float32))
                     for v in (w, bias) if v is not None]
        result = match.root.output.dtype
        attrs = {k: v for k, v in match.root.attrs.items() if k != "dtype"}
        y = g.add_node(match.root.op, [g.type_cast(x, dtype=f32), *constants], attrs)[0]
        return y if result == f32 else g.type_cast(y, dtype=result)


def _rows(node: Node) -> int | None:
    result = node.output.type
    if not result.known:
        return None
    if node.op.name == "matmul":
        constant = node.operand(1).data is not None
        return prod(result.dims[:-1]) if constant or len(node.operand(1).type.dims) == 2 else result.dims[-2]
    channel = 1 if node.attrs["data_format"] == "NCX" else len(result.dims) - 1
    return prod(d for k, d in enumerate(result.dims) if k != channel)


class RoundProducts(OfProducts):
    """anchor(x, w, bias?) of f32 -> anchor(type_cast(x), type_cast(w), dtype=f32) + bias?, with casts to bf16

    The anchor is a matmul or a convolution. bf16 has 8 significant bits, so products are exact in f32; they are added
    in f32 as before. The rounding of the operands moves a sum by up to 2^-8 of the sum of the products' magnitudes.
    Weights of 4 or 8 bits stay compressed.
    """

    tolerance = 2.0**-5

    def check(self, x: Value, w: Value, match: Match) -> str | None:
        """Operands must be f32. Only constant weights may be dequantized. A convolution must not be depthwise."""
        if x.dtype != f32:
            return ""
        weights = uncast(w)
        node = weights.node
        if node is not None and weights.dtype in (f32, bf16) and all(v.data is not None for v in node.operands):
            node = None
        if any(n is not None and n.op.name in WEIGHTS for n in (x.node, node)):
            return "its operands are dequantized"
        if (groups := match.root.attrs.get("groups", 1)) > 1 and x.shape is not None:
            channels = x.shape[1 if match.root.attrs["data_format"] == "NCX" else -1]
            return f"each of its {groups} groups has one channel" if channels == groups else None
        return None

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        y = g.add_node(match.root.op, [_as_bf16(g, x), _as_bf16(g, w)], {**match.root.attrs, "dtype": f32})[0]
        if bias is None:
            return y
        return g.add(y, bias) if match.root.op.name == "matmul" else \
            g.bias_add(y, bias, data_format=match.root.attrs["data_format"])


def _as_bf16(g: Graph, v: Value) -> Value:
    """`v` rounded to bf16; the operand of `v` if `v` is a cast from bf16."""
    if v.data is not None:
        return g.constant(v.data.astype(bf16.numpy))
    return uncast(v) if uncast(v).dtype == bf16 else g.type_cast(v, dtype=bf16)
