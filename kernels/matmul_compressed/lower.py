"""Lower matmuls with compressed weights: find the kernels' operands, and define the NumPy formula of the results.

Weights w (k, n) of 4 or 8 bits have a scale s and a zero point zw for each group g of rows and each column. 8-bit
activations x have one zero point zx. Their scales sx are per-tensor, per-row, or one per row and group. Then

    acc_g = sum_{k in g} (x[i,k] - zx) * (w[k,j] - zw[g,j])       exact, s32
    y     = sum_g f32(acc_g) * m[i,g,j]                           m = f32(sx * s[g,j]), rounded once

y starts from 0 and goes through the groups in order, with one IEEE multiplication and one addition each.

f32 and bf16 activations are multiplied by the dequantized weights f32(w - zw) * s. If the graph dequantizes to f16 or
bf16, the dequantized weights are first rounded to this dtype. The products are added as in all float kernels
(`tile_sums`). Bias and epilogue follow as in `matmul.lower`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.kernels.family.anchored import RANGES, plus_bias, wrapped
from graphq.kernels.family.epilogue import EpilogueBuilder
from graphq.kernels.family.lower import Arrays, Lowered, lower_body, result_dims
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.matmul_compressed.pack import BITS, pack_floats, pack_integers
from graphq.kernels.numbers.float_sums import BLOCK, SMALLEST_NORMAL, tile_sums
from graphq.kernels.target.level import shift

LOW = {"u4": 0, "s4": 8, "u8": 0, "s8": 128}
"""For each dtype of weights, the number that makes the smallest weight 0 when it is added."""
FLOATS = ("f32", "bf16")
"""The dtypes of activations that are multiplied as floats."""
FINEST = 8
"""With float activations, groups have a multiple of 8 rows, because a line of 4-bit weights has 8 rows."""


@dataclass(frozen=True, eq=False)
class CompressedMatmul:
    """The operands of a matmul with compressed weights: indices of run-time inputs, and constants.

    `a` is the index of the activations, `row_scales` the index of their scales (..., row_groups) per row. Without
    `row_scales`, `a_scale` is the scale of all activations. `weights` are as in the graph: (k, n), or (n, k) if
    `transposed`. Kernels read u, the weights plus LOW; `z` (groups, n) are the zero points of u. `scales` (groups, n)
    are s in the module's formula. Dequantized weights are rounded to the dtype `rounding`.
    """

    a: int
    a_dtype: str
    a_shape: tuple[int, ...]
    weights: np.ndarray
    w_dtype: str
    transposed: bool
    z: np.ndarray
    scales: np.ndarray
    a_zp: int = 0
    a_scale: np.float32 = np.float32(1)
    row_scales: int | None = None
    row_groups: int = 1
    rounding: str = "f32"

    @property
    def n(self) -> int:
        """The number of columns of the result."""
        return self.weights.shape[0 if self.transposed else 1]

    @property
    def bits(self) -> int:
        """The bits of a weight."""
        return BITS[self.w_dtype]

    @property
    def u(self) -> np.ndarray:
        """The weights (k, n) as integers from 0 on, in a new array."""
        u = (self.weights.astype(np.int16) + LOW[self.w_dtype]).astype(np.uint8)
        return np.ascontiguousarray(u.T if self.transposed else u)

    @property
    def floats(self) -> bool:
        """Whether the activations are floats."""
        return self.a_dtype in FLOATS

    @property
    def centered(self) -> np.ndarray:
        """The weights minus their zero points, as s32 (groups, rows of a group, n)."""
        return np.asarray(self.u.reshape(len(self.z), -1, self.n).astype(np.int32) - self.z[:, None])

    def packed(self) -> np.ndarray:
        """The packed weights. For 8-bit activations, they include corrections for the activations' zero point."""
        if self.floats:
            return pack_floats(self.u, self.z, self.scales, self.bits)
        zero_point = self.a_zp + shift(self.a_dtype, signed=True)
        sums = self.centered.sum(axis=1, dtype=np.int64)
        return pack_integers(self.u, self.z, self.scales, wrapped(-zero_point * sums), self.bits)

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sums y of the formula, in f32."""
        x, w = inputs[self.a], self.centered
        if self.floats:
            with np.errstate(all="ignore"):
                w = (w.astype(np.float32) * self.scales[:, None]).reshape(-1, self.n).astype(STORAGE[self.rounding])
            return tile_sums(x, w) if x.ndim > 1 else tile_sums(x[None], w)[0]
        centered, w = x.astype(np.float64) - self.a_zp, w.astype(np.float64)
        total = np.zeros((*self.a_shape[:-1], self.n), np.float32)
        size = w.shape[1]
        with np.errstate(all="ignore"):
            for g, scales in enumerate(self.scales):
                exact = centered[..., g * size:(g + 1) * size] @ w[g]
                of_rows = self.a_scale if self.row_scales is None else \
                    inputs[self.row_scales][..., g % self.row_groups, None]
                total += exact.astype(np.int32).astype(np.float32) * (scales * of_rows)
        return total


def lower_matmul_compressed(body: Graph, constants: Arrays) -> Lowered:
    """Lower a body of a matmul, a (dynamic) dequantize of its weights, and an epilogue. Raises Unsupported.

    The dequantizes and the cast of weights become part of the kernel.
    """
    e = EpilogueBuilder(result_dims(body), anchored=True)
    node = next(n for n in body.nodes if n.op.name == "matmul")
    left, right = (v.node for v in islice(node.operands, 2))
    assert right is not None
    casts = [right] if right.op.name == "type_cast" else []
    right = next(right.operands).node if casts else right
    assert right is not None
    if left is not None and left.op.name == right.op.name == "dequantize":
        raise Unsupported("weights with one known scale per tensor or column belong to the family of matmuls")
    if casts and casts[0].output.dtype != f32:
        raise Unsupported(f"the weights are dequantized to {right.output.dtype} and cast to {casts[0].output.dtype}",
                          "dequantize the weights to the dtype of the input", 1)
    weights = _Weights(body, node, right, constants)
    product = _floats(body, node, weights) if left is None else _integers(body, left, weights)
    producers = [*casts, right] if left is None else [left, *casts, right]
    return lower_body(e, body, (node, plus_bias(acc("f32"))), producers, range(2), anchor=product)


class _Weights:
    """The constant weights that the node `dequantizes` converts to floats. Raises Unsupported."""

    def __init__(self, body: Graph, node: Node, dequantizes: Node, constants: Arrays) -> None:
        w = next(dequantizes.operands)
        if w.dtype.name not in BITS:
            raise Unsupported(f"the weights are {w.dtype}: kernels with scales in groups take s4, u4, s8 and u8",
                              "quantize the weights to 4 or 8 bits, or give them one scale per column", 1)
        self.rounding = dequantizes.output.dtype.name
        self.dtype, self.transposed = w.dtype.name, node.attrs["transpose_b"]
        self.source_transposed = node.attrs["transpose_a"]
        index = {v: k for k, v in enumerate(body.inputs)}
        given = [_constant(v, index, constants) for v in dequantizes.inputs]
        attrs = dequantizes.attrs
        if dequantizes.op.name == "dequantize":
            given += [np.asarray(attrs["scales"], np.float32), np.asarray(attrs["zps"] or [0] * len(attrs["scales"]))]
        data, scales, zps = (*given, None)[:3]
        assert data is not None and scales is not None
        if data.ndim != 2 or not data.size:
            raise Unsupported(f"compressed weights are one matrix, got {w.type}",
                              "take one matrix of weights, or expand them", 1)
        self.data = data
        spread = _WeightSpread(dequantizes, data.shape, self.transposed)
        self.z = spread.of(np.zeros(np.shape(scales)) if zps is None else zps).astype(np.int64) + LOW[self.dtype]
        self.scales = spread.of(scales).astype(np.float32)
        if np.abs(self.z).max() >= 1 << 22:
            raise Unsupported("zero points are beyond 22 bits", "take smaller zero points", 1)

    @property
    def k(self) -> int:
        return self.data.shape[1 if self.transposed else 0]

    def repeated(self, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """Zero points and scales for `groups` groups, a multiple of the weights' own number of groups."""
        times = groups // len(self.z)
        return self.z.repeat(times, axis=0).astype(np.int32), self.scales.repeat(times, axis=0)


def _floats(body: Graph, node: Node, w: _Weights) -> CompressedMatmul:
    """The operands of a matmul of floats. Groups are split until blocks of a sum consist of whole groups."""
    a = next(node.operands)
    if a.dtype.name not in FLOATS:
        raise Unsupported(f"the input is {a.dtype}, compressed weights take {' and '.join(FLOATS)}, or u8 and s8 that "
                          "are dequantized", "cast the input to f32", 0)
    if w.source_transposed and len(a.type.dims) > 1:
        raise Unsupported("with compressed weights the input is not transposed", "transpose the input before", 0)
    group = gcd(w.k // len(w.z), BLOCK)
    if group % FINEST:
        raise Unsupported(f"groups of {w.k // len(w.z)} rows are not a multiple of {FINEST}",
                          f"take groups of a multiple of {FINEST} rows", 1)
    z, scales = w.repeated(w.k // group)
    if w.rounding == "bf16":
        for wrong in scales[~np.isfinite(scales) | (scales != 0) & (np.abs(scales) < SMALLEST_NORMAL)]:
            raise Unsupported(f"a scale of the weights is {wrong}, kernels round finite and normal numbers to bf16",
                              "take scales between 2**-126 and 2**127", 1)
    return CompressedMatmul(body.inputs.index(a), a.dtype.name, a.type.dims, w.data, w.dtype, w.transposed, z, scales,
                            rounding=w.rounding)


def _integers(body: Graph, left: Node, w: _Weights) -> CompressedMatmul:
    a = next(left.operands)
    if a.dtype.name not in RANGES:
        raise Unsupported(f"the input is {a.dtype}, integer kernels take u8 and s8",
                          "quantize the input to u8 or s8", 0)
    if w.rounding != "f32":
        raise Unsupported(f"the weights are rounded to {w.rounding}, integer kernels scale in f32",
                          "dequantize the weights to f32", 1)
    if w.source_transposed or left.output.dtype != "f32":
        raise Unsupported("with compressed weights the input is dequantized to f32, and not transposed",
                          "dequantize to f32, and transpose the input before", 0)
    index, scale, zp, groups = body.inputs.index, np.float32(1), 0, 1
    row_scales = None
    if left.op.name == "dequantize":
        if left.attrs["qtype"] != "per_tensor":
            raise Unsupported("with compressed weights the input has one scale, or scales of rows and groups that are "
                              "tensors", "quantize the input per tensor", 0)
        scale, zp = np.float32(left.attrs["scales"][0]), (left.attrs["zps"] or (0,))[0]
    else:
        groups = _row_groups(left, a.type.dims)
        row_scales = index(left.operand(1))
    finest = max(groups, len(w.z))
    if finest % len(w.z) or groups not in (1, finest):
        raise Unsupported(f"the input has scales of {groups} groups, the weights of {len(w.z)}",
                          "quantize input and weights in groups of the same size", 0)
    z, scales = w.repeated(finest)
    product = CompressedMatmul(index(a), a.dtype.name, a.type.dims, w.data, w.dtype, w.transposed, z, scales, zp, scale,
                               row_scales, groups)
    _refuse_overflow(product)
    return product


def _row_groups(left: Node, dims: tuple[int, ...]) -> int:
    """The number of scales per row of dynamically quantized activations. Raises Unsupported for other scales."""
    attrs, wanted = left.attrs, "with compressed weights an input whose scales are a tensor needs scales per group"
    if attrs["qtype"] != "per_group" or set(attrs["group_shape"][:-1]) - {1} or left.inputs[2:] not in ((), (None,)):
        raise Unsupported(f"{wanted}, and no zero points",
                          "quantize the input symmetrically, in groups of [1, ..., size]", 0)
    return dims[-1] // int(attrs["group_shape"][-1])


def _constant(v: Value | None, index: dict[Value, int], constants: Arrays) -> np.ndarray | None:
    """The array of operand `v` of a dequantize; None if absent. Raises Unsupported if `v` is not constant."""
    if v is None:
        return None
    data = constants[index[v]]
    if data is None:
        raise Unsupported("compressed weights are packed at compile time: weights, scales and zero points must be "
                          "constant", "make weights, scales and zero points constants", 1)
    return data


class _WeightSpread:
    """Repeats scales or zero points of weights to the shape (number of groups along k, n)."""

    def __init__(self, node: Node, shape: tuple[int, ...], transposed: bool) -> None:
        self.attrs, self.transposed = node.attrs, transposed
        self.along_k = 1 if transposed else 0
        self.n = shape[1 - self.along_k]
        if self.attrs["qtype"] == "per_channel" and self.attrs["axis"] % 2 == self.along_k:
            weights = next(node.operands)
            raise Unsupported("the weights are quantized along {own}, not along the columns",
                              "quantize the weights along {columns}, or in groups", 1,
                              own=Axes(weights, (self.along_k,)), columns=Axes(weights, (1 - self.along_k,)))

    def of(self, values: np.ndarray) -> np.ndarray:
        if self.attrs["qtype"] != "per_group":
            return np.broadcast_to(values.reshape(1, -1), (1, self.n))
        values = values.T if self.transposed else values
        return values.repeat(self.attrs["group_shape"][1 - self.along_k], axis=1)


def _refuse_overflow(p: CompressedMatmul) -> None:
    most = max(abs(x - p.a_zp) for x in RANGES[p.a_dtype])
    group = p.weights.size // p.n // len(p.z)
    if most * group * max(int(p.z.max()), (1 << p.bits) - 1 - int(p.z.min())) < 2**31:
        return
    bound = most * int(np.abs(p.centered).sum(axis=1, dtype=np.int64).max(initial=0))
    if bound >= 2**31:
        raise Unsupported(f"sums over groups of {group} can reach {bound}, beyond s32",
                          "take smaller groups", 1)

