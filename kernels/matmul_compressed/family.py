"""The family of matmuls with compressed weights: the lowering, the NumPy formula of the results, steps and record.

Weights w (k, n) of at most 8 bits have a scale s and a zero point zw for each group g of rows and each column. 8-bit
activations x have one zero point zx. Their scales sx are per-tensor, per-row, or one per row and group. Then

    acc_g = sum_{k in g} (x[i,k] - zx) * (w[k,j] - zw[g,j])       exact, s32
    y     = sum_g f32(acc_g) * m[i,g,j]                           m = f32(sx * s[g,j]), rounded once

y starts from 0 and goes through the groups in order, with one IEEE multiplication and one addition each. Weights that
are floats are multiples of a unit (see `pack.CODES`): kernels read w / unit as integers, and s * unit as the scale.
Weights that are floats of 6 or 8 bits are multiplied by float activations only.

f32 and bf16 activations are multiplied by the dequantized weights f32(w - zw) * s. If the graph dequantizes to f16 or
bf16, the dequantized weights are first rounded to this dtype. The products are added as in all float kernels
(`tile_sums`). Bias and epilogue follow as in `matmul.lower`.
"""
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import EpilogueBuilder
from graphq.kernels.family.lower import RANGES, Arrays, Lowered, lower_body, plus_bias, result_dims, wrapped
from graphq.kernels.family.record import Family, Operand, epilogue_operands, space_of
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.matmul.family import product_step
from graphq.kernels.matmul.lower import Matmul, matmul_fields
from graphq.kernels.matmul.row_sums import plan_row_sums
from graphq.kernels.matmul_compressed.floats import FRACTION
from graphq.kernels.matmul_compressed.pack import (
    BITS,
    CODES,
    WeightCode,
    finest,
    pack_floats,
    pack_integers,
    panel_bytes,
)
from graphq.kernels.matmul_compressed.tiles import W_DTYPES
from graphq.kernels.numbers.float_sums import BLOCK, SMALLEST_NORMAL, tile_sums
from graphq.kernels.operands.space import broadcast_strides
from graphq.kernels.target.products import shift
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Word
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var

FLOATS = ("f32", "bf16")
"""The dtypes of activations that are multiplied as floats."""


@dataclass(frozen=True, eq=False)
class CompressedMatmul(Matmul):
    """A matmul with compressed weights, which are constant.

    `row_scales` is the index of the activations' scales (..., row_groups) per row. Without `row_scales`, `a_scale` is
    the scale of all activations. `weights` are as in the graph: (k, n), or (n, k) if `transpose_b`. Kernels read u
    (see `pack.CODES`). `z` (groups, n) are the zero points of u. `scales` (groups, n) are s in the module's formula
    times the unit of the weights. Dequantized weights are rounded to the dtype `rounding`.
    """

    weights: np.ndarray
    z: np.ndarray
    scales: np.ndarray
    a_zp: int = 0
    a_scale: np.float32 = np.float32(1)
    row_scales: int | None = None
    row_groups: int = 1
    rounding: str = "f32"

    @property
    def code(self) -> WeightCode:
        """The form in which kernels read the weights."""
        return CODES[self.b_dtype]

    @property
    def u(self) -> np.ndarray:
        """The weights (k, n) in units, plus `code.low`: integers, in f32."""
        u = self.weights.astype(np.float32) / np.float32(self.code.unit) + self.code.low
        return u.T if self.transpose_b else u

    @property
    def codes(self) -> np.ndarray:
        """The codes of the weights (k, n), in a new array."""
        w, numpy = self.weights, self.code.numpy
        codes = (w.astype(np.int16) + self.code.low).astype(numpy) if numpy is np.uint8 else w.astype(numpy)
        return np.ascontiguousarray(codes.view(np.uint8).T if self.transpose_b else codes.view(np.uint8))

    @property
    def floats(self) -> bool:
        """Whether the activations are floats."""
        return self.a_dtype in FLOATS

    @property
    def group(self) -> int:
        """The number of rows of weights in a group."""
        return self.k // len(self.z)

    @property
    def centered(self) -> np.ndarray:
        """The weights in units minus their zero points: integers, as f32 (groups, rows of a group, n)."""
        return self.u.reshape(len(self.z), -1, self.n) - self.z[:, None].astype(np.float32)

    def packed(self) -> np.ndarray:
        """The packed weights. For 8-bit activations, they include corrections for the activations' zero point."""
        if self.floats:
            return pack_floats(self.codes, self.z, self.scales, BITS[self.code.name])
        zero_point = self.a_zp + shift(self.a_dtype, signed=True)
        sums = self.centered.sum(axis=1, dtype=np.float64).astype(np.int64)
        return pack_integers(self.codes, self.z, self.scales, wrapped(-zero_point * sums), BITS[self.code.name])

    def split(self, times: int) -> "CompressedMatmul":
        """The same product with every group split into `times` groups."""
        return replace(self, z=self.z.repeat(times, axis=0).astype(np.int32), scales=self.scales.repeat(times, axis=0))

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sums y of the formula, in f32."""
        x, w = inputs[self.a], self.centered
        if self.floats:
            with np.errstate(all="ignore"):
                w = (w * self.scales[:, None]).reshape(-1, self.n).astype(STORAGE[self.rounding])
            return tile_sums(x, w) if x.ndim > 1 else tile_sums(x[None], w)[0]
        centered, w = x.astype(np.float64) - self.a_zp, w.astype(np.float64)
        total = np.zeros((*self.rows, self.n), np.float32)
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
    left, right = node.operand(0).node, node.operand(1).maker
    casts = [right] if right.op.name == "type_cast" else []
    right = next(right.operands).maker if casts else right
    if left is not None and left.op.name == right.op.name == "dequantize":
        raise Unsupported("weights with one known scale per tensor or column belong to the family of matmuls")
    if casts and casts[0].output.dtype != f32:
        raise Unsupported(f"the weights are dequantized to {right.output.dtype} and cast to {casts[0].output.dtype}",
                          "dequantize the weights to the dtype of the input", 1)
    p = _product(body, node, next((node if left is None else left).operands), right, constants)
    p = _floats(p) if left is None else _integers(body, node, left, p)
    producers = [*casts, right] if left is None else [left, *casts, right]
    return lower_body(e, body, (node, plus_bias(acc("f32"))), producers, range(2), anchor=p)


def _product(body: Graph, node: Node, a: Value, dequantizes: Node, constants: Arrays) -> CompressedMatmul:
    """The product of `a` and the constant weights that the node `dequantizes` converts. Raises Unsupported."""
    w, attrs, given = next(dequantizes.operands), dequantizes.attrs, list[np.ndarray | None]()
    if w.dtype.name not in CODES:
        raise Unsupported(f"the weights are {w.dtype}: kernels with scales in groups take {', '.join(CODES)}",
                          "quantize the weights to 4 or 8 bits, or give them one scale per column", 1)
    for v in dequantizes.inputs:
        given.append(None if v is None else constants[body.inputs.index(v)])
        if v is not None and given[-1] is None:
            raise Unsupported("compressed weights are packed at compile time: weights, scales and zero points must be "
                              "constant", "make weights, scales and zero points constants", 1)
    if dequantizes.op.name == "dequantize":
        given += [np.asarray(attrs["scales"], np.float32), np.asarray(attrs["zps"] or [0] * len(attrs["scales"]))]
    (data, scales, zps), code = (*given, None)[:3], CODES[w.dtype.name]
    assert data is not None and scales is not None
    scales = scales.astype(np.float32)
    units = scales * np.float32(code.unit)
    if code.name in FRACTION and not np.isfinite(data.astype(np.float32)).all() or (units / code.unit != scales).any():
        raise Unsupported("kernels take finite weights and normal scales", "take finite weights and larger scales", 1)
    if data.ndim != 2 or not data.size:
        raise Unsupported(f"compressed weights are one matrix, got {w.type}",
                          "take one matrix of weights, or expand them", 1)
    transposed = node.attrs["transpose_b"]
    along_k = 1 if transposed else 0
    n = data.shape[1 - along_k]
    if attrs["qtype"] == "per_channel" and attrs["axis"] % 2 == along_k:
        raise Unsupported("the weights are quantized along {own}, not along the columns",
                          "quantize the weights along {columns}, or in groups", 1,
                          own=Axes(w, (along_k,)), columns=Axes(w, (1 - along_k,)))

    def spread(x: np.ndarray) -> np.ndarray:
        """Repeat scales or zero points to the shape (number of groups along k, n)."""
        if attrs["qtype"] != "per_group":
            return np.broadcast_to(x.reshape(1, -1), (1, n))
        return (x.T if transposed else x).repeat(attrs["group_shape"][1 - along_k], axis=1)

    z = spread(np.zeros(np.shape(scales)) if zps is None else zps).astype(np.int64) + code.low
    if np.abs(z).max() >= 1 << 22:
        raise Unsupported("zero points are beyond 22 bits", "take smaller zero points", 1)
    return CompressedMatmul(**matmul_fields(body, node, a, w), weights=data, z=z,
                            scales=spread(units), rounding=dequantizes.output.dtype.name)


def _floats(p: CompressedMatmul) -> CompressedMatmul:
    """The product of float activations. Groups are split until blocks of a sum consist of whole groups."""
    if not p.floats:
        raise Unsupported(f"the input is {p.a_dtype}, compressed weights take {' and '.join(FLOATS)}, or u8 and s8 "
                          "that are dequantized", "cast the input to f32", 0)
    if p.transpose_a:
        raise Unsupported("with compressed weights the input is not transposed", "transpose the input before", 0)
    group = gcd(p.group, BLOCK)
    if group % (rows := finest(p.b_dtype)):
        raise Unsupported(f"groups of {p.group} rows are not a multiple of {rows}",
                          f"take groups of a multiple of {rows} rows", 1)
    if p.rounding == "bf16":
        for wrong in p.scales[~np.isfinite(p.scales) | (p.scales != 0) & (np.abs(p.scales) < SMALLEST_NORMAL)]:
            raise Unsupported(f"a scale of the weights is {wrong}, kernels round finite and normal numbers to bf16",
                              "take scales between 2**-126 and 2**127", 1)
    return p.split(p.group // group)


def _integers(body: Graph, node: Node, left: Node, p: CompressedMatmul) -> CompressedMatmul:
    """The product of the activations that the node `left` dequantizes. Groups are split until both operands' agree."""
    if p.code.name in FRACTION:
        raise Unsupported(f"the weights are {p.b_dtype}, integer kernels take integers and f4_e2m1",
                          "quantize the weights to 4 or 8 bits", 1)
    if p.a_dtype not in RANGES:
        raise Unsupported(f"the input is {p.a_dtype}, integer kernels take u8 and s8",
                          "quantize the input to u8 or s8", 0)
    if p.rounding != "f32":
        raise Unsupported(f"the weights are rounded to {p.rounding}, integer kernels scale in f32",
                          "dequantize the weights to f32", 1)
    if node.attrs["transpose_a"] or left.output.dtype != "f32":
        raise Unsupported("with compressed weights the input is dequantized to f32, and not transposed",
                          "dequantize to f32, and transpose the input before", 0)
    attrs = left.attrs
    if left.op.name == "dequantize":
        if attrs["qtype"] != "per_tensor":
            raise Unsupported("with compressed weights the input has one scale, or scales of rows and groups that are "
                              "tensors", "quantize the input per tensor", 0)
        p = replace(p, a_scale=np.float32(attrs["scales"][0]), a_zp=(attrs["zps"] or (0,))[0])
    else:
        if attrs["qtype"] != "per_group" or set(attrs["group_shape"][:-1]) - {1} or \
                left.inputs[2:] not in ((), (None,)):
            raise Unsupported("with compressed weights an input whose scales are a tensor needs scales per group, and "
                              "no zero points", "quantize the input symmetrically, in groups of [1, ..., size]", 0)
        p = replace(p, row_scales=body.inputs.index(left.operand(1)), row_groups=p.k // int(attrs["group_shape"][-1]))
    finest = max(p.row_groups, len(p.z))
    if finest % len(p.z) or p.row_groups not in (1, finest):
        raise Unsupported(f"the input has scales of {p.row_groups} groups, the weights of {len(p.z)}",
                          "quantize input and weights in groups of the same size", 0)
    p = p.split(finest // len(p.z))
    most = max(abs(x - p.a_zp) for x in RANGES[p.a_dtype])
    if most * p.group * max(int(p.z.max()), int(p.u.max()) - int(p.z.min())) >= 2**31:
        bound = most * int(np.abs(p.centered).sum(axis=1, dtype=np.float64).max(initial=0))
        if bound >= 2**31:
            raise Unsupported(f"sums over groups of {p.group} can reach {bound}, beyond s32", "take smaller groups", 1)
    return p


def matmul_compressed_steps(b: PlanBuilder, node: Node, lowered: Lowered[CompressedMatmul]) -> None:
    """Add the step of the matmul. For integer activations, first add a step that sums each group of a row."""
    p = lowered.anchor
    data, source = p.packed(), b.of[node.operand(p.a)]
    packed, words = b.constant(data), dict[str, Word](panel_bytes=panel_bytes(data))

    def of_rows(buffer: int, nbytes: int) -> Operand:
        return Ref(buffer), (*broadcast_strides(p.rows, lowered.out[:-1], nbytes), 0)

    more = dict[str, Operand]()
    if p.row_scales is not None:
        more["row_scales"] = of_rows(b.of[node.operand(p.row_scales)], 4 * p.row_groups)
        words["row_scales_step"] = 4 if p.row_groups > 1 else 0
    elif not p.floats:
        words["row_scales"] = Ref(b.constant(np.array([p.a_scale], np.float32)))
    if not p.floats:
        count = prod(p.rows) * len(p.z)
        sums = b.temporary(4 * count)
        b.run(plan_row_sums(p.a_dtype, count, p.group, 1, b.target), {"source": Ref(source), "sums": Ref(sums)})
        more["row_sums"] = of_rows(sums, 4 * len(p.z))
    operands = [of_rows(source, p.k * p.itemsize), of_rows(packed, 0), *more.values(),
                *epilogue_operands(b, node, lowered)]
    space = space_of(b, lowered.out, operands, keep=1)
    product_step(b, lowered, operands, space, words, more=more, k=p.k, w_dtype=W_DTYPES[p.code.name, p.rounding])


def quantized(g: PatternBuilder) -> PatternLike:
    """Make the pattern matmul(x, weights, bias?); x is dequantize(q), dynamic_dequantize(q, scales), or any floats.

    `weights` is dequantize(w) or dynamic_dequantize(w, scales, zps?) of constants, perhaps cast to f32. CODES has
    the dtype of w. The scales of w are per-tensor, per-column, or one per group of rows and columns.
    """
    q, w = Var("q"), (Var("w"), Var("scales"))
    dynamic = [g.dynamic_dequantize(*operands, attrs=ANY) for operands in (w, (*w, Var("zps")))]
    weights = g.any_of(g.dequantize(Var("w"), attrs=ANY), *dynamic, g.type_cast(g.any_of(*dynamic), attrs=ANY))
    x = g.any_of(g.dequantize(q, attrs=ANY), g.dynamic_dequantize(q, Var("row_scales"), attrs=ANY), Var("x"))
    return g.any_of(g.matmul(x, weights, attrs=ANY), g.matmul(x, weights, Var("bias"), attrs=ANY))


MATMUL_COMPRESSED = Family("matmul_compressed", ("matmul",), lower_matmul_compressed,
                           matmul_compressed_steps, quantized)
