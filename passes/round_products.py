"""Multiply f32 in bf16: the pass that `compile(..., precision="bf16")` adds to PIPELINE."""
from __future__ import annotations

from graphq.dtypes import bf16, f32
from graphq.ir import Graph, Value
from graphq.ops.quant import DEQUANTIZES
from graphq.rewrite.rule import ANY, Match, Rewrite


class RoundProducts(Rewrite):
    """anchor(x, w, bias?) of f32 -> anchor(type_cast(x), type_cast(w), dtype=f32) + bias?, cast to bf16

    The anchor is a matmul or a convolution. Its operands are rounded to 8 significant bits. The products of the rounded
    numbers are exact in f32, and their sums are added in f32 as before. The rounding moves a sum by up to 2^-8 of the
    sum of the products' magnitudes.
    """

    tolerance = 2.0**-5

    def pattern(self, g, x, w, bias):
        anchor = g.any_of("convolution", "conv_transpose", "matmul")
        return g.any_of(anchor(x, w, attrs=ANY), anchor(x, w, bias, attrs=ANY))

    def check(self, x: Value, w: Value, match: Match) -> str | None:
        """Operands must be f32 and not dequantized, and no group of a convolution may have a single channel."""
        if x.dtype != f32:
            return ""
        if any(v.node is not None and v.node.op.name in DEQUANTIZES for v in (x, w)):
            return "its operands are dequantized"
        if (groups := match.root.attrs.get("groups", 1)) > 1 and x.shape is not None:
            channels = x.shape[1 if match.root.attrs["data_format"] == "NCX" else -1]
            return f"each of its {groups} groups has one channel" if channels == groups else None
        return None

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        operands = [g.type_cast(v, dtype=bf16) if v.data is None else g.constant(v.data.astype(bf16.numpy))
                    for v in (x, w)]
        y = g.add_node(match.root.op, operands, {**match.root.attrs, "dtype": f32})[0]
        if bias is None:
            return y
        return g.add(y, bias) if match.root.op.name == "matmul" else \
            g.bias_add(y, bias, data_format=match.root.attrs["data_format"])
