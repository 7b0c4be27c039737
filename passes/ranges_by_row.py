"""Quantize activations of dynamically quantized matmuls per token: each row gets its own range.

The results of a row then do not depend on other rows of the batch or on padding. A row x becomes rint(x / s) + 128 in
u8, with s = max|x| / 127; the results of the row are multiplied by s. Each image of a convolution gets its own range.
If both operands of a matmul have ranges of whole tensors, as in attention, the matmul runs in f32: the second has no
rows.
`RangesByRow` changes numbers, mostly for the better; `graphq.compile(..., ranges="rows")` runs it before PIPELINE.
"""
from collections.abc import Sequence

import numpy as np

from graphq.dtypes import DType, f32, s8, u8
from graphq.ir import Graph, Node, Value
from graphq.ops.recurrent import shares_range
from graphq.passes.float_products import OfProducts, with_bias
from graphq.rewrite.fixpoint import Fixpoint, rounds
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var, set_attributes

TINY = np.float32(2.0**-126)
"""The least scale of a row: the least normal f32 number. Rows of zeros get this scale."""
TOLERANCE = 2.0**-5
"""How far results may move: elements by half a step, 2^-9 of the range, and sums by the moves of their elements."""
ROW_ZERO = 128
"""The zero point of each row. The integers could be s8, but u8 is faster in products on x86."""


def quantized_rows(g: Graph, x: Value, axes: Sequence[int] = (-1,)) -> tuple[Value, Value]:
    """Quantize `x` to u8 per row, which lies along `axes`. Returns the integers, and the scales, of size 1 there."""
    largest = g.reduce_max(g.abs(x), axes=axes, keep_dims=True)
    scales = g.maximum(g.multiply(largest, np.float32(1 / 127)), TINY)
    return g.quantize(g.divide(x, scales), dtype="u8", scales=[1.0], zps=[ROW_ZERO]), scales


def _rows_of(g: Graph, product: Node, *quantized: Value | None) -> tuple[Value, Value]:
    """Quantize by row the operand of a product that has these integers, scale and zero point; an image is a row."""
    x = _quantized(*quantized)
    assert x is not None
    if "strides" not in product.attrs:
        return quantized_rows(g, x)
    return quantized_rows(g, x, range(1, x.type.rank))


class IntegerProductByRow(Rewrite):
    """cast(matmul_integer(q, w, z?, wz?)) * (s * ws) -> the same with x quantized per row; also of conv_integer

    q is x quantized to u8; its scale s and zero point z come from the range of the whole x. wz and ws are the zero
    point and the scale of the weights.
    """

    tolerance = TOLERANCE

    def pattern(self, g: PatternBuilder, q: Var, s: Var, z: Var, w: Var, wz: Var, ws: Var) -> PatternLike:
        product = g.any_of("matmul_integer", "conv_integer")
        sums = g.any_of(product(q, w, attrs=ANY), product(q, w, z, attrs=ANY), product(q, w, z, wz, attrs=ANY))
        return g.multiply(g.any_of("cast", "type_cast")(sums, attrs=ANY), g.multiply(s, ws))

    def check(self, q: Value, s: Value, z: Value | None, w: Value, match: Match) -> str | None:
        if q.node is None or q.node.op.name != "dynamic_quantize":
            return ""
        if match.root.output.dtype != f32:
            return f"the product is {match.root.output.dtype}"
        if "conv_integer" in {n.op.name for n in match.nodes} and q.shape is None:
            return "the rank of the images is not known"
        if w.shape is None or len(w.shape) < 2:
            return COLUMNS
        return NOT_DYNAMIC if _quantized(q, s, z) is None else None

    def replace(self, g: Graph, q: Value, s: Value, z: Value | None, w: Value, wz: Value | None, ws: Value,
                match: Match) -> Value:
        product = next(n for n in match.nodes if n.op.name in ("matmul_integer", "conv_integer"))
        first, second = _quantized(q, s, z), _quantized(w, ws, wz)
        if first is not None and second is not None and product.op.name == "matmul_integer":
            return g.matmul(first, second)
        rows, scales = _rows_of(g, product, q, s, z)
        zps = (g.constant(np.full((), ROW_ZERO, u8.numpy)), *(() if wz is None else (wz,)))
        sums = getattr(g, product.op.name)(rows, w, *zps, **product.attrs)
        return g.multiply(g.cast(sums, dtype=f32), g.multiply(scales, ws))


class DequantizedByRow(OfProducts):
    """matmul(x, w, bias?) with x = dynamic_dequantize(q, s, z) -> the same with q quantized per row; also convolution

    q is quantized to u8; its scale s and zero point z come from the range of the whole tensor.
    """

    anchors, tolerance = ("convolution", "matmul"), TOLERANCE

    def check(self, x: Value, w: Value, match: Match) -> str | None:
        if x.node is None or x.node.op.name != "dynamic_dequantize":
            return ""
        if match.root.attrs.get("transpose_a") or x.shape is None:
            return "the rows must lie along the last axis"
        if w.shape is None or len(w.shape) < 2:
            return COLUMNS
        return NOT_DYNAMIC if match.root.output.dtype != f32 or _quantized(*x.node.inputs) is None else None

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        product = match.root
        second = _quantized(*w.node.inputs) if w.node is not None and w.node.op.name == "dynamic_dequantize" else None
        if second is not None:
            return getattr(g, product.op.name)(_quantized(*x.maker.inputs), second, bias, **product.attrs)
        rows, scales = _rows_of(g, product, *x.maker.inputs)
        y = getattr(g, product.op.name)(g.dequantize(rows, scales=[1.0], zps=[ROW_ZERO]), w, **product.attrs)
        return with_bias(g, product, g.multiply(y, scales), bias)


@rounds(tolerance=TOLERANCE)
def states_by_row(graph: Graph) -> int:
    """lstm(..., scales) -> lstm(..., scales, by_row=True): each row of the state that is quantized has its own range"""
    return set_attributes(graph, [n for n in graph.nodes_of(("lstm",)) if shares_range(n)], by_row=True)


NOT_DYNAMIC = "the operand is not quantized by its own range"
COLUMNS = "the second operand must have columns: reshape weights [n] to [n, 1]"
RANGES = ("dynamic_range", "reduce_max", "reduce_min", "static_reshape")
"""Operations, besides those on elements, that compute the range of a tensor."""


def _quantized(q: Value | None, s: Value | None, z: Value | None = None) -> Value | None:
    """The f32 value x that was quantized to q; None if s and z do not come from the range of x."""
    quantize = None if q is None else q.node
    if quantize is None or quantize.op.name != "dynamic_quantize" or quantize.attrs["qtype"] != "per_tensor":
        return None
    x, *parameters = quantize.operands
    same = parameters == [v for v in (s, z) if v is not None]
    return x if same and _has_range_of(x, parameters, quantize.attrs["dtype"]) else None


def _has_range_of(x: Value, parameters: Sequence[Value], dtype: DType) -> bool:
    """Whether scale and zero point (default: 0) spread the integers of this dtype over the range of the whole `x`.

    For samples of `x`, the scale must be max|x| / 127 or (max - min) / 255 within 2 %, and the integers must reach both
    ends of the range within a step. A limited or halved range, or the range of another value, does not pass.
    """
    if dtype not in (s8, u8):
        return False
    for size in (1.0, 50.0, 1e10):
        for low, high in ((-1.0, 0.3), (-0.3, 1.0)):
            sample = np.array([low, 0.01, high], np.float32) * np.float32(size)
            found = [_sampled(v, x, sample.reshape(*[1] * (len(x.shape or (1,)) - 1), 3)) for v in parameters]
            scale, zero = (*(None if v is None or v.size != 1 else float(v.reshape(())) for v in found), 0.0)[:2]
            if scale is None or zero is None or not 0 < scale < np.inf:
                return False
            ends = (float(dtype.min) - zero) * scale / size, (float(dtype.max) - zero) * scale / size
            steps = scale * 127 / size, scale * 255 / (size * (high - low))
            if min(abs(n - 1) for n in steps) > 0.02 or ends[0] > low + scale / size or ends[1] < high - scale / size:
                return False
    return True


def _sampled(v: Value, x: Value, sample: np.ndarray) -> np.ndarray | None:
    """The value of `v` if `x` has the value `sample`; None if `v` is not computed from the range of `x` alone."""
    if v is x or v.data is not None:
        return sample if v is x else v.data
    node = v.node
    if node is None or not node.op.elementwise and node.op.name not in RANGES:
        return None
    operands = [o for v in node.operands if (o := _sampled(v, x, sample)) is not None]
    if len(operands) < len([*node.operands]) or node.op.name == "static_reshape" and operands[0].size != 1:
        return None
    with np.errstate(all="ignore"):
        found = node.op.reference(*operands, **node.attrs)
    return np.asarray(found[v.index] if len(node.outputs) > 1 else found)


RangesByRow = Fixpoint("RangesByRow", IntegerProductByRow(), DequantizedByRow(), states_by_row)
"""The pass that quantizes per row: the activations of matmuls and convolutions, and the states of LSTMs."""
