"""The record of the matmul family, and the function that adds a matmul's steps to a plan."""
from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family, Operand, any_operands, epilogue_operands, in_room, slots_of, space_of
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul import pack
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import ActivationLayout
from graphq.kernels.matmul.lower import MATMULS, Matmul, ProductLowering, follows, lower_matmul, strided
from graphq.kernels.matmul.plan import Product
from graphq.kernels.matmul.row_sums import plan_row_sums
from graphq.kernels.moves.transpose import plan_transpose
from graphq.kernels.operands.space import Space, broadcast_strides, dense, table, terms
from graphq.ops.quant import DEQUANTIZES
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Word
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def product_step(b: PlanBuilder, lowered: Lowered[ProductLowering], operands: Sequence[Operand], space: Space,
                 words: Mapping[str, Word], *, more: Collection[str] = (), k: int, layout: ActivationLayout = "rows",
                 taps: int = 1, w_dtype: str | None = None, joined: int = 1, **packing: int) -> None:
    """Add the step of a product: a matmul or a convolution, with weights of any kind.

    `operands` are the activations, the packed weights, the operands with the names `more` in the argument block, and
    the epilogue's operands. `space` is their iteration domain. `words` are further words of the argument block. `k`,
    `layout`, `taps` and `w_dtype` are fields of `Product`. Weights packed jointly multiply by zeros: only one of
    `joined` multiply-accumulates is counted. `packing` has the fields of TERMS that describe the packed weights.
    """
    p = lowered.anchor
    x = Product(p.a_dtype, space.m, space.n, k, space.batch, layout, taps, w_dtype)
    step = matmul.plan_matmul(lowered.epilogue, x, b.target, strip_rows=b.strip_rows)
    step = step._replace(macs=step.macs // joined)
    if w_dtype == pack.SORTED:
        data = b.buffers[operands[1][0].buffer].data
        assert isinstance(data, np.ndarray)
        step = step._replace(exact=pack.exact_share(data, x.k, x.n, x.taps))
    (a, a_table, row), (w, w_table, _), *slots = slots_of(b, operands, space)
    words = {"a": a, "a_table": a_table, "stride": row, "w": w, "w_table": w_table, **words}
    for name, (address, at, row) in zip(more, slots, strict=False):
        words |= {name: address, f"{name}_table": at, f"{name}_row": row}
    if lowered.epilogue.second_look is not None:
        assert lowered.stated_sum is not None
        words["terms"] = Ref(b.constant(terms(lowered.stated_sum.sum, signed=x.a_dtype == "s8", **packing)))
    b.run(step, words, slots[len(more):])


def matmul_steps(b: PlanBuilder, node: Node, lowered: Lowered[Matmul]) -> None:
    """Add up to four steps: transpose activations, pack the weights, sum rows, and multiply."""
    p = lowered.anchor
    source: int = b.of[node.operand(p.a)]
    layout: ActivationLayout = "rows"
    if p.transpose_a and p.rows[-1] != 1:
        source, layout = _transposed(b, source, p)
    constant = node.operand(p.b).data is not None
    w_dtype = matmul.weights_dtype(p.a_dtype, layout, p.k, 1, b.target.level) if constant else None
    packed, packed_bytes = _weights(b, node, p, w_dtype)
    strides = b.strides.get(node.operand(p.a))
    own = [0 if d == 1 else s for d, s in zip(p.rows, strides or dense((*p.rows, p.k), p.itemsize), strict=False)]
    a_strides = (*[0] * (len(lowered.out) - 1 - len(own)), *own)
    if layout == "columns":
        a_strides = (*a_strides[:-1], p.itemsize)
    matrices = (*p.b_shape[:-2], 1)[1 - len(lowered.out):] if len(lowered.out) > 1 else ()
    w_strides = broadcast_strides(matrices, lowered.out[:-1], packed_bytes)
    operands = [(Ref(source), (*a_strides, 0)), (Ref(packed), (*w_strides, 0)), *epilogue_operands(b, node, lowered, {
        "column sums": lambda _: (Ref(packed), (*w_strides, 4)),
        "row sums": lambda s: (Ref(_sum_rows(b, source, p, layout, strides)),
                               broadcast_strides(s.shape, lowered.out, 4))})]
    space = space_of(b, lowered.out, operands, keep=2 if any(w_strides) else 1)
    words = {"stride": p.rows[-1] * p.itemsize} if layout == "columns" else {}
    product_step(b, lowered, operands, space, words, k=p.k, layout=layout, w_dtype=w_dtype, channels=p.k, parts=1)


def _transposed(b: PlanBuilder, source: int, p: Matmul) -> tuple[int, ActivationLayout]:
    """The buffer and the layout of transposed activations; they are read in place from `source` if that is faster."""
    if matmul.takes_columns(Product(p.a_dtype, p.rows[-1], p.n, p.k), b.target.level):
        return source, "columns"
    axes = range(len(p.a_shape))
    out = b.temporary(prod(p.a_shape) * p.itemsize)
    step = plan_transpose(p.a_shape, (*axes[:-2], axes[-1], axes[-2]), p.itemsize, b.target)
    b.run(step, {"source": Ref(source), "target": Ref(out)})
    return out, "rows"


def _weights(b: PlanBuilder, node: Node, p: Matmul, w_dtype: str | None) -> tuple[int, int]:
    """The buffer of packed weights, and the bytes per batch element. A step packs weights that are not constant."""
    value = node.operand(p.b)
    k, n, batch, item = p.k, p.n, prod(p.b_shape[:-2]), STORAGE[p.b_dtype].itemsize
    if value.data is not None:
        packed = b.packed(_packed, value.data, p.transpose_b, w_dtype)
        data = b.buffers[packed].data
        assert isinstance(data, np.ndarray)
        return packed, data.shape[-1]
    size = pack.packed_bytes(k, n, item)
    out = b.temporary(size * batch)
    step = pack.plan_pack(p.b_dtype, k, n, batch, b.target)
    *outer, rows, columns = b.strides.get(value) or dense(p.b_shape, item)
    along_n, along_k = (rows, columns) if p.transpose_b else (columns, rows)
    b.run(step, {"source": Ref(b.of[value]), "along_k": along_k, "along_n": along_n, "packed": Ref(out),
                 "table": b.table(table([*zip(p.b_shape[:-2], outer, strict=True)]))})
    return out, size


def _packed(w: np.ndarray, transposed: bool, w_dtype: str | None) -> np.ndarray:
    w = w.swapaxes(-1, -2) if transposed else w
    sorts, paired = w_dtype == pack.SORTED, w_dtype == pack.PAIRED
    return pack.pack_sorted(w[..., None, :, :], w.shape[-2]) if sorts else pack.pack(w, paired)


def _sum_rows(b: PlanBuilder, source: int, p: Matmul, layout: ActivationLayout, strides: Sequence[int] | None) -> int:
    """Add the step that sums each row of the activations over k; returns the buffer of the s32 sums."""
    m, batch = p.rows[-1] if p.rows else 1, prod(p.rows[:-1])
    out = b.temporary(4 * m * batch)
    stride: dict[str, int] = {}
    if b.strips is not None and (strip := in_room(b, source)) is not None:
        step = plan_row_sums(p.a_dtype, b.strips.m, p.k, b.strips.batch, b.target, strip_rows=b.strips.each)
        offsets, stride = None, {"stride": strip.row}
    elif layout == "columns":
        step, offsets = plan_row_sums(p.a_dtype, m, p.k, batch, b.target, columns=True), table([(batch, m * p.k)])
    elif strides is not None:
        step = plan_row_sums(p.a_dtype, m, p.k, batch, b.target)
        offsets, stride = table([*zip(p.rows[:-1], strides, strict=False)]), {"stride": strides[-2]}
    else:
        step, offsets = plan_row_sums(p.a_dtype, m * batch, p.k, 1, b.target), None
    b.run(step, {"source": Ref(source), "table": b.table(offsets), "sums": Ref(out), **stride})
    return out


def dequantized_operands(g: PatternBuilder, *names: str) -> PatternLike:
    """Make the pattern op(dequantize(x), dequantize(w), bias?); a dequantize may also be a dynamic_dequantize."""
    x, w = (g.any_of(*DEQUANTIZES)(..., attrs=ANY) for _ in range(2))
    return g.any_of(*(g.any_of(*names)(*operands, attrs=ANY) for operands in ((x, w), (x, w, Var("bias")))))


def quantized(g: PatternBuilder) -> PatternLike:
    """Make the pattern matmul(dequantize(x), dequantize(w), bias?) or matmul_integer(...)."""
    return g.any_of(dequantized_operands(g, "matmul"), g.matmul_integer(..., attrs=ANY))


def macs(node: Node) -> int:
    """Count the multiply-accumulates: each element of the result is a sum of k products."""
    dims = next(node.operands).type.dims
    return node.output.type.size * dims[-2 if node.attrs.get("transpose_a") and len(dims) > 1 else -1]


MATMUL = Family("matmul", MATMULS, lower_matmul, matmul_steps, quantized, any_operands("matmul"),
                follows=follows, strided=strided, macs=dict.fromkeys(MATMULS, macs))
