"""From a partition's body with 4-bit weights to what its kernels compute, and to the formula that states the numbers.

Weights w (k, n) have a scale s and a zero point zw for each group g of rows and each column; x has one of each:

    acc_g = sum_{k in g} (x[i,k] - zx) * (w[k,j] - zw[g,j])       exact, s32
    y     = sum_g f32(acc_g) * m[g,j]                             m = f32(sx * s[g,j]), rounded once from f64

The sum starts from 0 and goes through the groups in order, one IEEE multiplication and one addition each; then come the
bias and the epilogue as in `lower`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.checks import check_lanes
from graphq.kernels.family.epilogue import EpilogueBuilder, translate
from graphq.kernels.family.lower import Arrays, Lowered, result_dims
from graphq.kernels.family.scales import RANGES, wrapped
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import Expr, acc
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul_4bit.pack import pack_4bit


@dataclass(frozen=True, eq=False)
class GroupedMatmul:
    """The operands of a matmul with weights in groups: input numbers of the partition, and its constants.

    `z` (groups, n) are the zero points of the weights `u`, `scales` are m of the formula. `weights` are as the graph
    has them: (n, k) where they are `transposed`, from `-low` on.
    """

    a: int
    a_dtype: str
    a_shape: tuple[int, ...]
    a_zp: int
    weights: np.ndarray
    low: int
    transposed: bool
    z: np.ndarray
    scales: np.ndarray

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.weights.shape[0 if self.transposed else 1]

    @property
    def u(self) -> np.ndarray:
        """The weights (k, n) as 0 to 15, a copy."""
        u = (self.weights.astype(np.int8) + np.int8(self.low)).astype(np.uint8)
        return np.ascontiguousarray(u.T if self.transposed else u)

    @property
    def centred(self) -> np.ndarray:
        """w - zw, s32 (groups, group, n)."""
        return np.asarray(self.u.reshape(len(self.z), -1, self.n).astype(np.int32) - self.z[:, None])

    def packed(self) -> np.ndarray:
        """The weights as kernels read them; corrections undo the zero point and the shift of the activations."""
        shift = self.a_zp + (128 if self.a_dtype == "s8" else 0)
        sums = self.centred.sum(axis=1, dtype=np.int64)
        return pack_4bit(self.u, self.z, self.scales, wrapped(-shift * sums))

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sums y of the formula, in f32."""
        x, w = inputs[self.a].astype(np.float64) - self.a_zp, self.centred.astype(np.float64)
        total = np.zeros((*self.a_shape[:-1], self.n), np.float32)
        size = w.shape[1]
        for g, scales in enumerate(self.scales):
            exact = x[..., g * size:(g + 1) * size] @ w[g]
            total += exact.astype(np.int32).astype(np.float32) * scales
        return total


def check_matmul_4bit(body: Graph, constants: Arrays) -> tuple[Node, GroupedMatmul, list[Node]]:
    """The matmul of a body of dequantize, dynamic_dequantize, matmul and an epilogue; raises Unsupported.

    `constants` has the arrays of constant inputs. Gives the node, its operands, and the nodes that only kernels read.
    """
    out = result_dims(body)
    node = next(n for n in body.nodes if n.op.name == "matmul")
    left, right = (v.node for v in islice(node.operands, 2))
    assert left is not None and right is not None
    product = _product(body, node, left, right, constants)
    check_lanes(body, out, node, (left, right), anchored=True)
    return node, product, [left, right]


def lower_matmul_4bit(body: Graph, constants: Arrays) -> Lowered:
    """Lower a body that `check_matmul_4bit` accepts; raises Unsupported."""
    node, product, producers = check_matmul_4bit(body, constants)
    e = EpilogueBuilder(body.outputs[0].type.dims, anchored=True)

    def dense(args: list[Any]) -> Expr:
        return acc("f32") if len(args) < 3 or args[2] is None else acc("f32") + args[2]

    expr = translate(e, body, (node, dense), producers)
    return Lowered(e.out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources), product)


def _product(body: Graph, node: Node, left: Node, right: Node, constants: Arrays) -> GroupedMatmul:
    index = {v: k for k, v in enumerate(body.inputs)}
    a, w = next(left.operands), next(right.operands)
    if w.dtype.name not in ("s4", "u4"):
        raise Unsupported(f"the weights are {w.dtype}: kernels with scales in groups take s4 and u4",
                          "quantize the weights to s4 or u4, or give them one scale a column", 1)
    if a.dtype.name not in RANGES:
        raise Unsupported(f"the source is {a.dtype}, integer kernels take u8 and s8",
                          "quantize the source to u8 or s8", 0)
    if left.attrs["qtype"] != "per_tensor" or node.attrs["transpose_a"]:
        raise Unsupported("with 4-bit weights the source has one scale and is not transposed",
                          "quantize the source per tensor, and transpose it before", 0)
    weights, scales, zps = (_constant(v, index, constants) for v in (*right.inputs, None)[:3])
    assert weights is not None and scales is not None
    if weights.ndim != 2 or not weights.size:
        raise Unsupported(f"4-bit weights are one matrix, got {w.type}",
                          "take one matrix of weights, or such of 8 bits", 1)
    swap = node.attrs["transpose_b"]
    low = 8 if w.dtype == "s4" else 0
    spread = _Spread(right, weights.shape, swap)
    z = spread.of(np.zeros_like(scales) if zps is None else zps).astype(np.int64) + low
    if -z.min() + 15 > 127 or z.max() > 128:
        raise Unsupported("4-bit weights less their zero points must fit in s8, the zero points are "
                          f"{z.min() - low} to {z.max() - low}",
                          "take zero points among the 4-bit numbers", 1)
    zp, sx = (left.attrs["zps"] or (0,))[0], np.float64(np.float32(left.attrs["scales"][0]))
    with np.errstate(over="ignore"):
        product = GroupedMatmul(index[a], a.dtype.name, a.type.dims, zp, weights, low, swap,
                                z.astype(np.int32), (sx * spread.of(scales).astype(np.float64)).astype(np.float32))
    _refuse_overflow(product)
    return product


def _constant(v: Value | None, index: dict[Value, int], constants: Arrays) -> np.ndarray | None:
    """The data of an operand of dynamic_dequantize; None when it is absent."""
    if v is None:
        return None
    data = constants[index[v]]
    if data is None:
        raise Unsupported("4-bit weights are packed at compile time: they, scales and zero points must be constant",
                          "make weights, scales and zero points constants", 1)
    return data


class _Spread:
    """Parameters of a dynamic_dequantize of weights as (groups along k, n)."""

    def __init__(self, node: Node, shape: tuple[int, ...], transposed: bool) -> None:
        self.attrs, self.transposed = node.attrs, transposed
        self.along_k = 1 if transposed else 0
        self.n = shape[1 - self.along_k]
        if self.attrs["qtype"] == "per_channel" and self.attrs["axis"] % 2 == self.along_k:
            weights = next(node.operands)
            raise Unsupported("the weights are quantized along {own}, which is not the columns'",
                              "quantize the weights along {columns}, or in groups", 1,
                              own=Axes(weights, (self.along_k,)), columns=Axes(weights, (1 - self.along_k,)))

    def of(self, values: np.ndarray) -> np.ndarray:
        """Scales or zero points, one a group and column."""
        if self.attrs["qtype"] != "per_group":
            return np.broadcast_to(values.reshape(1, -1), (1, self.n))
        values = values.T if self.transposed else values
        return values.repeat(self.attrs["group_shape"][1 - self.along_k], axis=1)


def _refuse_overflow(p: GroupedMatmul) -> None:
    """Refuse sums of a group that could leave s32."""
    most = max(abs(x - p.a_zp) for x in RANGES[p.a_dtype])
    bound = most * int(np.abs(p.centred).sum(axis=1, dtype=np.int64).max(initial=0))
    if bound >= 2**31:
        raise Unsupported(f"sums over groups of {p.centred.shape[1]} can reach {bound}, beyond s32",
                          "take smaller groups", 1)
