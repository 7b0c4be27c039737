"""Matmuls of integers and of floats, from a partition's body.

An integer matmul's formula (design: "What the numbers are"), with x, w the quantised operands:

    acc = sum_k (x[i,k] - zx) * (w[k,j] - zw[j])          exact, s32
    y   = f32(acc) * m[j] + b[j]                          m = f32(sx * sw[j]), rounded once from f64
    out = epilogue(y), e.g. saturate(rint(relu(y) * (1/s)) + zp)

Of floats y = acc + b[j], acc the f32 sums that `float_sums` defines.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.epilogue import Epilogue, Source, Unsupported, translate
from graphq.kernels.expression import Expr, Store, acc, op
from graphq.kernels.float_sums import float_sums
from graphq.kernels.lower import Arrays, Lowered, result_dims

RANGES = {"u8": (0, 255), "s8": (-128, 127)}


@dataclass(frozen=True, eq=False)
class Matmul:
    """The operands of a matmul: input numbers of the partition, types, shapes and layout."""

    a: int
    b: int
    a_dtype: str
    b_dtype: str
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    transpose_a: bool
    transpose_b: bool

    @property
    def k(self) -> int:
        """The length of the sums."""
        return self.b_shape[-1] if self.transpose_b else self.b_shape[-2]

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.b_shape[-2] if self.transpose_b else self.b_shape[-1]

    @property
    def rows(self) -> tuple[int, ...]:
        """Dimensions of the source before k: batch and m."""
        shape = self.a_shape
        return (*shape[:-2], shape[-1]) if self.transpose_a else shape[:-1]

    def operands(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The arrays to multiply: (..., m, k) or (k,), and (..., k, n)."""
        a, b = inputs[self.a], inputs[self.b]
        return a.swapaxes(-1, -2) if self.transpose_a else a, b.swapaxes(-1, -2) if self.transpose_b else b


@dataclass(frozen=True, eq=False)
class IntegerMatmul(Matmul):
    """A matmul of u8 and s8, and their zero points; those of the weights are one, or one a column."""

    integer: ClassVar[bool] = True
    a_zp: int
    b_zp: np.ndarray

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """sum_k (a - a_zp) * (b - b_zp) in s32. Exact in f64: products are below 2**17, and sums below 2**31."""
        a, b = (x.astype(np.float64) for x in self.operands(inputs))
        return np.asarray((a - self.a_zp) @ (b - self.b_zp)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class FloatMatmul(Matmul):
    """A matmul of f32, bf16 or f16."""

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The f32 sums as kernels order them (`float_sums`)."""
        a, b = self.operands(inputs)
        return float_sums(a, b) if a.ndim > 1 else float_sums(a[None], b)[0]


def lower_matmul(body: Graph, constants: Arrays, *, compensate: bool = False) -> Lowered:
    """Lower a body of a matmul, whose operands may come from dequantize, and an epilogue; raises Unsupported.

    `constants` has the arrays of constant inputs. `compensate`: the accumulator of integers is the raw sum of the
    shifted operands that kernels give, and the expression begins with the correction for shifts and zero points.
    """
    out = result_dims(body)
    node = next(n for n in body.nodes if n.op.name == "matmul")
    e = Epilogue(out, anchored=True)
    producers = [v.node for v in node.inputs[:2] if v is not None and v.node is not None]
    total: Expr
    product: Matmul
    if producers:
        product, scale = _quantised(body, node, constants)
        total = op("to_f32", _compensated(e, product, constants) if compensate else acc())
        total = total * e.parameter(scale, "f32", len(out) - 1)
    else:
        product, total = _floats(body, node), acc("f32")

    def dense(args: list[Any]) -> Expr:
        return total if len(args) < 3 or args[2] is None else total + args[2]

    expr = translate(e, body, (node, dense), producers, own=(0, 1))
    return Lowered(out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources), product)


def _floats(body: Graph, node: Node) -> FloatMatmul:
    """The operands of a matmul of floats."""
    a, b = (v for v in node.inputs[:2] if v is not None)
    _check_ranks(a.type.dims, b.type.dims)
    return FloatMatmul(body.inputs.index(a), body.inputs.index(b), a.dtype.name, b.dtype.name, a.type.dims, b.type.dims,
                       node.attrs["transpose_a"] and len(a.type.dims) > 1, node.attrs["transpose_b"])


def _check_ranks(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if len(b) < 2 or len(a) < (2 if len(b) > 2 else 1):
        raise Unsupported(f"one-dimensional operands {list(a)} and {list(b)}")


def _quantised(body: Graph, node: Node, constants: Arrays) -> tuple[IntegerMatmul, np.ndarray]:
    """The integer operands of the matmul, and the scale per column, rounded once from f64."""
    index = {v: k for k, v in enumerate(body.inputs)}
    left, right = quantised_operands(node)
    a, b = (next(n.operands) for n in (left, right))
    _check_ranks(a.type.dims, b.type.dims)
    if left.attrs["qtype"] != "per_tensor":
        axis, rank = left.attrs["axis"], len(a.type.dims)
        summed = max(rank - (2 if node.attrs["transpose_a"] else 1), 0)
        raise Unsupported(f"the source is quantised per channel along axis {axis}: " + (
            "its scale would stand inside the sum" if axis % rank == summed
            else "kernels take one scale and zero point for the source"))
    columns = len(b.type.dims) - (2 if node.attrs["transpose_b"] else 1)
    if right.attrs["qtype"] == "per_channel" and right.attrs["axis"] % len(b.type.dims) != columns:
        raise Unsupported(f"the weights are quantised along axis {right.attrs['axis']}, which is not the columns'")
    a_zp, b_zp = ((n.attrs["zps"] or (0,)) for n in (left, right))
    product = IntegerMatmul(
        index[a], index[b], a.dtype.name, b.dtype.name, a.type.dims, b.type.dims,
        node.attrs["transpose_a"] and len(a.type.dims) > 1, node.attrs["transpose_b"], a_zp[0],
        np.asarray(b_zp, np.int32))
    _refuse_overflow(product, constants[product.b])
    return product, joint_scale(left, right)


def joint_scale(left: Node, right: Node) -> np.ndarray:
    """f32(sx * sw), rounded once from f64."""
    scales = [np.asarray(n.attrs["scales"], np.float32).astype(np.float64) for n in (left, right)]
    return (scales[0] * scales[1]).astype(np.float32)


def quantised_operands(node: Node) -> tuple[Node, Node]:
    """The dequantize nodes of an anchor's source and weights; raises Unsupported unless they are of u8 or s8."""
    left, right = (v.node for v in islice(node.operands, 2))
    assert left is not None and right is not None
    for name, x in (("source", next(left.operands)), ("weights", next(right.operands))):
        if x.dtype.name not in RANGES:
            raise Unsupported(f"the {name} are {x.dtype}, integer kernels take u8 and s8")
    return left, right


def _refuse_overflow(p: IntegerMatmul, weights: np.ndarray | None) -> None:
    """Refuse sums that could leave s32: bounded by k for any weights, by the weights themselves when constant."""
    absolute = None
    if weights is not None:
        w = weights.swapaxes(-1, -2) if p.transpose_b else weights
        absolute = np.abs(w.astype(np.int64) - p.b_zp).sum(axis=-2)
    refuse_overflow(p.k, p.a_dtype, p.a_zp, p.b_dtype, p.b_zp, absolute)


def refuse_overflow(k: int, a_dtype: str, a_zp: int, b_dtype: str, b_zp: np.ndarray,
                    absolute: np.ndarray | None) -> None:
    """Raise Unsupported when sums over k could leave s32: by k, or by sum |w - zw| of constant weights (`absolute`)."""
    most_a = max(abs(x - a_zp) for x in RANGES[a_dtype])
    most_b = max(int(np.abs(x - b_zp.astype(np.int64)).max(initial=0)) for x in RANGES[b_dtype])
    bound = k * most_a * most_b
    if bound >= 2**31 and absolute is not None:
        bound = most_a * int(absolute.max(initial=0))
    if bound >= 2**31:
        raise Unsupported(f"sums over k = {k} can reach {bound}, beyond s32")


def _compensated(e: Epilogue, p: IntegerMatmul, constants: Arrays) -> Expr:
    """acc from the raw sum R = sum a'*w' of the operands as kernels take them.

    a' is u8 (s8 + 128), w' is s8 (u8 - 128).

    With za, zw shifted likewise: acc = R - za * colsum(w') - zw * rowsum(a') + k * za * zw, all modulo 2**32.
    """
    za = p.a_zp + (128 if p.a_dtype == "s8" else 0)
    zw = p.b_zp.astype(np.int64) - (128 if p.b_dtype == "u8" else 0)
    total, last = acc(), len(e.out) - 1
    weights = constants[p.b]
    constant = wrapped(p.k * za * zw)
    if za and weights is not None and weights.ndim == 2:
        constant = wrapped(constant.astype(np.int64) - za * column_sums(p, weights))
    elif za:
        shape = (*p.b_shape[:-2], 1, p.n)[-len(e.out):]  # 2-D weights of a 1-D source: (n,)
        sums = e.slot(Source("column sums", "s32", shape), "column sums")
        total = total - sums * e.parameter([za], "s32", None)
    if zw.any():
        rows = e.slot(Source("row sums", "s32", (*p.rows, 1)), "row sums")
        total = total - rows * e.parameter(wrapped(zw), "s32", last)
    return total + e.parameter(constant, "s32", last) if constant.any() else total


def wrapped(x: np.ndarray) -> np.ndarray:
    """Modulo 2**32, as s32."""
    return np.atleast_1d(x).astype(np.int64).astype(np.uint32).view(np.int32)


def column_sums(p: IntegerMatmul, weights: np.ndarray) -> np.ndarray:
    """sum_k w' of 2-D weights, w' = w as s8 (u8 - 128)."""
    w = weights.astype(np.int64) - (128 if p.b_dtype == "u8" else 0)
    return np.asarray(w.sum(axis=1 if p.transpose_b else 0))
