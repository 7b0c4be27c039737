"""Lower integer and float matmuls: turn a partition's body into the operands and the formula of a kernel.

The formula of an integer matmul (docs/numbers.md), with x, w the quantized operands:

    acc = sum_k (x[i,k] - zx) * (w[k,j] - zw[j])          exact, s32
    y   = f32(acc) * m[j] + b[j]                          m = f32(sx * sw[j]), rounded once from f64
    out = epilogue(y), e.g. saturate(rint(relu(y) * (1/s)) + zp)

Scales and zero points can be tensors that are known only at run time. The result of ONNX's matmul_integer is acc. For
floats, y = acc + b[j], where acc is the f32 sum of `float_sums.tile_sums`.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from graphq.base.sizes import is_open, later
from graphq.ir import Graph, Node, Value
from graphq.kernels.family import lower as family
from graphq.kernels.family.epilogue import EpilogueBuilder, OperandSource
from graphq.kernels.family.lower import RANGES, Arrays, Lowered, QuantParameter, StatedSum, at_rows, result_dims
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, op
from graphq.kernels.numbers.float_sums import tile_sums
from graphq.kernels.numbers.sum_orders import DequantizedSum, matmul_order
from graphq.kernels.target.products import shift

MATMULS = ("matmul", "matmul_integer")
CHUNK = 2**22
"""The number of operand elements that `sums_as_written` gathers at a time."""


@dataclass(frozen=True, eq=False)
class ProductLowering(family.LoweredAnchor):
    """What matmuls and convolutions multiply: activations and weights, inputs `a` and `b` of the partition."""

    a: int
    b: int
    a_dtype: str
    b_dtype: str

    @property
    def itemsize(self) -> int:
        """The bytes of an activation."""
        return STORAGE[self.a_dtype].itemsize


@dataclass(frozen=True, eq=False)
class Matmul(ProductLowering):
    """A matmul: the shapes and transposition of its operands, and the sizes of the result.

    Each of the `n` columns of the result has sums of `k` products. `rows` are the other dimensions of the result, batch
    and m.
    """

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    transpose_a: bool
    transpose_b: bool
    rows: tuple[int, ...]
    n: int
    k: int

    def operands(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The two arrays to multiply, no longer transposed: (..., m, k) or (k,), and (..., k, n)."""
        a, b = inputs[self.a], inputs[self.b]
        return a.swapaxes(-1, -2) if self.transpose_a else a, b.swapaxes(-1, -2) if self.transpose_b else b


@dataclass(frozen=True, eq=False)
class IntegerMatmul(Matmul):
    """A matmul of u8 or s8 operands. The zero points broadcast to the operands."""

    a_zp: QuantParameter
    b_zp: QuantParameter

    def weights(self, w: np.ndarray) -> np.ndarray:
        """The weights `w` minus their constant zero points, as [columns of all matrices, k]."""
        w, zps = w.swapaxes(-1, -2) if self.transpose_b else w, self.b_zp.data
        assert zps is not None
        if zps.any() or w.dtype != np.int8:
            w = w.astype(np.int16) - zps.astype(np.int16)
        return w.swapaxes(-1, -2).reshape(prod(self.b_shape[:-2]) * self.n, self.k)

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sums of (a - a_zp) * (b - b_zp) over k, modulo 2**32. f64 is exact, because products are below 2**18."""
        a, b = self.operands(inputs)
        total = (a - self.a_zp.array(inputs).astype(np.float64)) @ (b - self.b_zp.array(inputs).astype(np.float64))
        return np.asarray(total).astype(np.int64).astype(np.int32)

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at flat `indices`, in the order as written (docs/numbers.md)."""
        a, b = self.operands(inputs)
        a = a[None] if a.ndim == 1 else a
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        *outer, i, j = np.unravel_index(indices, (*batch, a.shape[-2], b.shape[-1]))
        rows = np.broadcast_to(a, (*batch, *a.shape[-2:]))
        columns = np.broadcast_to(b, (*batch, *b.shape[-2:])).swapaxes(-1, -2)
        out, step = np.zeros(len(indices), np.float32), max(1, CHUNK // max(1, self.k))
        for first in range(0, len(indices), step):
            some = slice(first, first + step)
            at = tuple(x[some] for x in outer)
            out[some] = how.sums(rows[(*at, i[some])], columns[(*at, j[some])], j[some])
        return out


@dataclass(frozen=True, eq=False)
class FloatMatmul(Matmul):
    """A matmul of f32, bf16 or f16."""

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The f32 sums, added in the order of the kernels."""
        a, b = self.operands(inputs)
        return tile_sums(a, b) if a.ndim > 1 else tile_sums(a[None], b)[0]


def lower_matmul(body: Graph, constants: Arrays) -> Lowered:
    """Lower a body of a matmul; both operands or neither may be dequantized. Raises Unsupported.

    Integer kernels multiply operands without subtracting zero points, so the outputs' expression begins with a
    correction (`_compensated`).
    """
    e = EpilogueBuilder(result_dims(body), anchored=True)
    node = next(n for n in body.nodes if n.op.name in MATMULS)
    producers = [v.node for v in node.inputs[:2] if v is not None and v.node is not None]
    if node.op.name == "matmul_integer":
        p = _integers(body, node, constants)
        total = _compensated(e, p, constants)
        return family.lower_anchored(e, body, node, total, producers, p, total, own=range(4))
    if not producers:
        floats = FloatMatmul(**matmul_fields(body, node, *islice(node.operands, 2)))
        return family.lower_anchored(e, body, node, acc("f32"), producers, floats, acc("f32"))
    p, scales = _quantized(body, node, constants)
    accumulated = _compensated(e, p, constants)
    total = family.scaled(e, op("to_f32", accumulated), *scales)
    stated = _stated_sum(body, node, total, p, scales, constants)
    return family.lower_anchored(e, body, node, total, producers, p, accumulated, stated)


def follows(lowered: Lowered[Matmul], number: int) -> bool:
    """Whether input `number` is used only as the activations, and output row i needs only row i of the input."""
    p = lowered.anchor
    return number == p.a and number != p.b and not p.transpose_a and p.a_shape[:-1] == lowered.out[:-1] \
        and at_rows(lowered, number)


def strided(lowered: Lowered[Matmul], number: int, order: Sequence[int]) -> bool:
    """Whether kernels can read input `number`, the transpose `order` of another value, from that value's memory.

    They can if the input is activations with contiguous rows, or weights that a step packs at run time.
    """
    p = lowered.anchor
    if any(s.origin == "input" and s.index == number for s in lowered.sources) or number not in (p.a, p.b):
        return False
    return number != p.a or not p.transpose_a and order[-1] == len(order) - 1


def _stated_sum(body: Graph, node: Node, total: Expr, p: IntegerMatmul, scales: tuple[QuantParameter, QuantParameter],
              constants: Arrays) -> StatedSum | None:
    """Describe the f32 sum that the graph states. If a bias is constant, the sum starts from it, as in ONNX's Gemm."""
    data = constants[p.b]
    # a single column of run-time values, such as one position's, has the order of many
    order, block = matmul_order(None, p.n, p.k, transposed=p.transpose_b or data is None)
    bias = None if len(node.inputs) < 3 or node.inputs[2] is None else node.inputs[2]
    start = None if bias is None or bias.node is not None else constants[body.inputs.index(bias)]
    weights: Callable[[], np.ndarray] | int = family.reach(p.b_dtype, p.b_zp)
    batch = 1
    if data is not None and p.b_zp.data is not None:
        weights, batch = partial(p.weights, data), prod(p.b_shape[:-2])
    return family.stated_sum(node, total, p.k, *scales, p.a_zp, p.b_zp, order, block, p.a_dtype, weights,
                                       batch=batch, shift=shift(p.b_dtype, signed=True), start=start)


def multiplied(body: Graph, a: Value, b: Value) -> dict[str, Any]:
    """The fields of a ProductLowering that multiplies inputs `a` and `b` of the body."""
    return dict(a=body.inputs.index(a), b=body.inputs.index(b), a_dtype=a.dtype.name, b_dtype=b.dtype.name)


def matmul_fields(body: Graph, node: Node, a: Value, b: Value) -> dict[str, Any]:
    """The fields of a Matmul that multiplies inputs `a` and `b` of the body. Raises Unsupported."""
    dims, b_dims = a.type.dims, b.type.dims
    if len(b_dims) < 2 or len(dims) < (2 if len(b_dims) > 2 else 1):
        raise Unsupported(f"one-dimensional operands {list(dims)} and {list(b_dims)}", "reshape both to matrices")
    transpose_a = node.attrs.get("transpose_a", False) and len(dims) > 1
    transpose_b = node.attrs.get("transpose_b", False)
    k, n = reversed(b_dims[-2:]) if transpose_b else b_dims[-2:]
    return dict(**multiplied(body, a, b), a_shape=dims, b_shape=b_dims, transpose_a=transpose_a,
                transpose_b=transpose_b, n=n, k=k, rows=(*dims[:-2], dims[-1]) if transpose_a else dims[:-1])


def _quantized(body: Graph, node: Node,
               constants: Arrays) -> tuple[IntegerMatmul, tuple[QuantParameter, QuantParameter]]:
    left, right = quantized_operands(node)
    a, b = (next(n.operands) for n in (left, right))
    fields = matmul_fields(body, node, a, b)
    if left.attrs["qtype"] != "per_tensor":
        k, rank = left.attrs["axis"], len(a.type.dims)
        summed = max(rank - (2 if node.attrs["transpose_a"] else 1), 0)
        raise Unsupported("the input is quantized per channel along {own}: " + (
            "its scale would vary inside the sum" if k % rank == summed
            else "kernels take one scale and zero point for the input"), "quantize the input per tensor", 0,
            own=Axes(a, (k,)))
    columns = len(b.type.dims) - (2 if node.attrs["transpose_b"] else 1)
    if right.attrs["qtype"] == "per_channel" and right.attrs["axis"] % len(b.type.dims) != columns:
        raise Unsupported("the weights are quantized along {own}, not along the columns",
                          "quantize the weights along the columns, {columns} of {weights}, or per tensor", 1,
                          own=Axes(b, (right.attrs["axis"],)), columns=Axes(b, (columns,)), weights=b)
    a_scale, a_zp = family.parameters_of(left, body, constants)
    b_scale, b_zp = family.parameters_of(right, body, constants, (fields["n"],))
    product = IntegerMatmul(**fields, a_zp=a_zp, b_zp=b_zp)
    data = constants[product.b]
    refuse_overflow(product.k, family.reach(product.a_dtype, a_zp), family.reach(product.b_dtype, b_zp),
                    None if data is None or b_zp.data is None else partial(product.weights, data))
    return product, (a_scale, b_scale)


def _integers(body: Graph, node: Node, constants: Arrays) -> IntegerMatmul:
    a, b, zps = node.operand(0), node.operand(1), (*node.inputs[2:], None, None)
    fields = matmul_fields(body, node, a, b)
    return IntegerMatmul(
        **fields, a_zp=_zero_points(zps[0], body, constants, (*fields["rows"], 1), -2),
        b_zp=_zero_points(zps[1], body, constants, (*b.type.dims[:-2], 1, fields["n"]), -1))


def _zero_points(value: Value | None, body: Graph, constants: Arrays, dims: tuple[int, ...],
                 axis: int) -> QuantParameter:
    """The zero points of an operand of matmul_integer; a vector of them lies along `axis`."""
    if value is None:
        return family.known(0)
    shape = value.type.dims
    if value.type.size != 1 and len(shape) == 1 and axis == -2:
        shape = (*shape, 1)
    padded = (1,) * (len(dims) - len(shape)) + shape
    if value.type.size != 1 and (len(padded) > len(dims) or any(
            d not in (1, most) for d, most in zip(padded, dims, strict=True))):
        raise Unsupported(f"zero points {value.type} of an operand that is {list(dims)} along the sum",
                          "give the operand one zero point, or one per row (for weights: per column)",
                          1 if axis == -1 else 0)
    return family.given(value, body, constants, shape)


def quantized_operands(node: Node, *, groups: bool = False) -> tuple[Node, Node]:
    """The dequantize nodes of a layer's input and weights.

    Raises Unsupported unless both dequantize u8 or s8 to f32. If `groups`, weights may have a scale per group of rows.
    """
    left, right = (v.node for v in islice(node.operands, 2))
    assert left is not None and right is not None
    for k, (name, verb, has, producer) in enumerate((("input", "is", "has", left), ("weights", "are", "have", right))):
        one = f"give the {name} one scale" + (", or one per output channel" if k else "")
        x = next(producer.operands)
        if x.dtype.name not in RANGES:
            raise Unsupported(f"the {name} {verb} {x.dtype}, integer kernels take u8 and s8",
                              f"quantize the {name} to u8 or s8", k)
        if producer.attrs["qtype"] == "per_group" and not (groups and producer is right):
            raise Unsupported(f"the {name} {has} scales of groups of {list(producer.attrs['group_shape'])}", one, k)
        if producer.attrs.get("group_axis") is not None:
            raise Unsupported(f"the {name} {has} scales of groups along " + "{own}", one, k,
                              own=Axes(x, (producer.attrs["group_axis"],)))
        if producer.output.dtype != "f32":
            raise Unsupported(f"the {name} {verb} dequantized to {producer.output.dtype}, integer kernels scale in f32",
                              f"dequantize the {name} with scales of f32, and cast the result", k)
    return left, right


def refuse_overflow(k: int, most_a: int, most_b: int, weights: Callable[[], np.ndarray] | None,
                    axis: int | tuple[int, int] = 1) -> None:
    """Raise Unsupported if sums of `k` products could exceed s32.

    `most_a` and `most_b` bound the absolute values of the operands. If k * most_a * most_b is too large, `weights` (if
    given) returns w - zw; the sums of |w - zw| along `axis` give a tighter bound.
    """
    bound = k * most_a * most_b
    if bound >= 2**31 and weights is not None:
        bound = most_a * int(np.abs(weights(), dtype=np.int32).sum(axis=axis, dtype=np.int64).max(initial=0))
    if bound >= 2**31:
        raise Unsupported(f"sums over k = {k} can reach {bound}, beyond s32",
                          f"split the sum: add {bound // 2**31 + 1} or more products of parts of k")


def _compensated(e: EpilogueBuilder, p: IntegerMatmul, constants: Arrays) -> Expr:
    """Correct the kernel's sum R = sum a' * w' for the zero points.

    a' is a as u8 (s8 + 128) and w' is w as s8 (u8 - 128); their zero points za and zw are shifted in the same way. With
    d = colsum(w') - k * zw, the accumulator is R - za * d - zw * rowsum(a'), all modulo 2**32. d is a constant if the
    weights are a constant matrix, and otherwise comes from sums in the packed weights.
    """
    za, zw = p.a_zp.shifted(shift(p.a_dtype)), p.b_zp.shifted(shift(p.b_dtype, signed=True))
    total, weights = acc(), constants[p.b]
    if not za.absent and weights is not None and weights.ndim == 2 and zw.data is not None and zw.data.ndim < 2:
        sums = weights.sum(axis=1 if p.transpose_b else 0, dtype=np.int64)
        d = family.known(sums - p.k * (zw.data - shift(p.b_dtype, signed=True)), (p.n,))
        if za.data is None or d.data is None or za.data.size != 1:
            total = total - d.expr(e) * za.expr(e)
        else:
            total = total + family.known(-int(za.data) * d.data, d.shape).expr(e)
    elif not za.absent:
        # If activations are one-dimensional, the result has the shape (n,): drop the leading 1.
        centered = e.slot(OperandSource("column sums", "s32", (*p.b_shape[:-2], 1, p.n)[-len(e.out):]))
        if not zw.absent:
            k = e.parameter(later(np.array, [p.k]), "s32", None) if is_open(p.k) else p.k
            centered = centered - zw.expr(e) * k
        total = total - centered * za.expr(e)
    if not zw.absent:
        total = total - e.slot(OperandSource("row sums", "s32", (*p.rows, 1))) * zw.expr(e)
    return total
