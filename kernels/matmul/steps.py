"""From a lowered matmul to plan steps."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.jit.registry import ActivationLayout
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul import pack
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul import row_sums as rows
from graphq.kernels.matmul.lower import Matmul
from graphq.kernels.moves.transpose import plan_transpose
from graphq.kernels.operands.space import Walk, broadcast_strides, factor
from graphq.kernels.operands.sum_terms import terms
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.plan.slots import Strides, every, operand_slot, output, run, table


def matmul_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Up to four steps: transpose the source (of integers), pack the weights, sum rows, multiply."""
    p = lowered.anchor
    assert isinstance(p, Matmul)
    item = STORAGE[p.a_dtype].itemsize
    source, layout = _source(b, node, p)
    weights = node.inputs[p.b]
    assert weights is not None
    sorts = weights.data is not None and matmul.sorts(p.a_dtype, layout, b.target.level)
    packed, packed_bytes = _weights(b, node, p, sorts)
    a_strides = _strides(p.rows, lowered.out, p.k * item)
    if layout == "columns":
        a_strides = (*a_strides[:-1], item)
    operands = [(Ref(source), a_strides + (0,)),
                (Ref(packed), _strides((*p.b_shape[:-2], 1), lowered.out, packed_bytes) + (0,))]
    for s in lowered.sources:
        if s.origin == "column sums":
            operands.append((Ref(packed), _strides((*p.b_shape[:-2], 1), lowered.out, packed_bytes) + (4,)))
        elif s.origin == "row sums":
            operands.append((Ref(_row_sums(b, source, p, layout)), broadcast_strides(s.shape, lowered.out, 4)))
        else:
            operands.append(operand_slot(b, node, s, lowered.out))
    batched = any(operands[1][1])
    space = factor(lowered.out, [strides for _, strides in operands], keep=2 if batched else 1)
    product = matmul.Product(p.a_dtype, space.m, space.n, p.k, space.batch, layout,
                             w_dtype=matmul.SORTED if sorts else None)
    step = matmul.plan_matmul(lowered.store, product, b.target)
    if sorts:
        data = b.buffers[packed].data
        assert isinstance(data, np.ndarray)
        step = replace(step, exact=pack.exact_share(data, p.k, p.n))
    (a, a_walk), (w, w_walk), *slots = [(ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    stride = p.rows[-1] * item if layout == "columns" else a_walk.row
    header = {"a": a, "a_table": table(b, a_walk), "stride": stride,
              "w": w, "w_table": table(b, w_walk)}
    if lowered.store.second_look is not None:
        assert lowered.products is not None
        header["terms"] = Ref(b.constant(terms(lowered.products.sum, p.k, signed=p.a_dtype == "s8", parts=1)))
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])


def _strides(shape: Sequence[int], out: Sequence[int], step: int) -> Strides:
    """Byte strides along the rows and batch of `out` of a dense array of `shape` whose elements are `step` bytes."""
    return broadcast_strides(shape[-len(out) + 1:] if len(out) > 1 else (), out[:-1], step)


def _source(b: PlanBuilder, node: Node, p: Matmul) -> tuple[int, ActivationLayout]:
    """The buffer of the activations and how to read them: a transposed source by columns, or copied where faster.

    One row is its own transpose.
    """
    value = node.inputs[p.a]
    assert value is not None
    if not p.transpose_a or p.rows[-1] == 1:
        return b.of[value], "rows"
    if matmul.takes_columns(matmul.Product(p.a_dtype, p.rows[-1], p.n, p.k), b.target.level):
        return b.of[value], "columns"
    axes, item = range(len(p.a_shape)), STORAGE[p.a_dtype].itemsize
    out = b.temporary(prod(p.a_shape) * item)
    step = plan_transpose(p.a_shape, (*axes[:-2], axes[-1], axes[-2]), item, b.target)
    run(b, step, {"source": Ref(b.of[value]), "target": Ref(out)}, [])
    return out, "rows"


def _weights(b: PlanBuilder, node: Node, p: Matmul, sorts: bool) -> tuple[int, int]:
    """The buffer of the packed weights and the bytes of a batch element: constants are packed now, others by a step.

    `sorts`: constants are packed sorted.
    """
    value = node.inputs[p.b]
    assert value is not None
    k, n, batch, item = p.k, p.n, prod(p.b_shape[:-2]), STORAGE[p.b_dtype].itemsize
    size = pack.packed_bytes(k, n, item)
    if value.data is not None:
        data = value.data.swapaxes(-1, -2) if p.transpose_b else value.data
        if sorts:
            return b.constant(pack.pack_sorted(data[..., None, :, :], k)), size + pack.sort_bytes(k, n)
        return b.constant(pack.pack(data)), size
    out = b.temporary(size * batch)
    along_k, along_n = (item, k * item) if p.transpose_b else (n * item, item)
    step = pack.plan_pack(p.b_dtype, k, n, batch, b.target)
    run(b, step, {"source": Ref(b.of[value]), "table": table(b, Walk(every(batch, k * n * item), 0)),
                  "along_k": along_k, "along_n": along_n, "packed": Ref(out)}, [])
    return out, size


def _row_sums(b: PlanBuilder, source: int, p: Matmul, layout: ActivationLayout) -> int:
    """A buffer with the s32 sum over k of every row of the activations."""
    m, batch = p.rows[-1] if p.rows else 1, prod(p.rows[:-1])
    out = b.temporary(4 * m * batch)
    if layout == "columns":
        step = rows.plan_column_sums(p.a_dtype, m, p.k, batch, b.target)
    else:
        step = rows.plan_row_sums(p.a_dtype, m * batch, p.k, 1, b.target)
    offsets = 0 if layout == "rows" else table(b, Walk(every(batch, m * p.k), 0))
    run(b, step, {"source": Ref(source), "table": offsets, "sums": Ref(out)}, [])
    return out
