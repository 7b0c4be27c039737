"""The record of the family of matmuls with compressed weights, and the function that adds their steps to a plan."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family
from graphq.kernels.family.slots import store_slots
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.row_sums import plan_sums
from graphq.kernels.matmul_compressed.lower import CompressedMatmul, lower_matmul_compressed
from graphq.kernels.matmul_compressed.pack import panel_bytes
from graphq.kernels.matmul_compressed.tiles import ROUNDED, W_DTYPES
from graphq.kernels.operands.space import broadcast_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def matmul_compressed_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step of the matmul. For integer activations, first add a step that sums each group of a row."""
    p = lowered.anchor
    assert isinstance(p, CompressedMatmul)
    item = STORAGE[p.a_dtype].itemsize
    k = p.a_shape[-1]
    rows = broadcast_strides(p.a_shape[:-1], lowered.out[:-1], k * item)
    before = [(Ref(b.of[node.operand(p.a)]), (*rows, 0))]
    if p.row_scales is not None:
        rows = broadcast_strides(p.a_shape[:-1], lowered.out[:-1], 4 * p.row_groups)
        before.append((Ref(b.of[node.operand(p.row_scales)]), (*rows, 0)))
    if not p.floats:
        groups = len(p.z)
        count = prod(p.a_shape[:-1]) * groups
        sums_of_groups = Ref(b.temporary(4 * count))
        b.run(plan_sums(p.a_dtype, count, k // groups, 1, b.target), {"source": before[0][0], "sums": sums_of_groups})
        before.append((sums_of_groups, (*broadcast_strides(p.a_shape[:-1], lowered.out[:-1], 4 * groups), 0)))
    space, ((a, a_table, stride), *slots) = store_slots(b, node, lowered, before=before, keep=1)
    words = {"a": a, "a_table": a_table, "stride": stride}
    if p.row_scales is not None:
        (scales, table, row), *slots = slots
        words |= {"row_scales": scales, "row_scales_table": table, "row_scales_row": row,
                  "row_scales_step": 4 if p.row_groups > 1 else 0}
    elif not p.floats:
        words |= {"row_scales": Ref(b.constant(np.array([p.a_scale], np.float32)))}
    if not p.floats:
        (sums, table, row), *slots = slots
        words |= {"row_sums": sums, "row_sums_table": table, "row_sums_row": row}
    w_dtype = W_DTYPES[p.bits] if p.rounding == "f32" else ROUNDED[p.bits, p.rounding]
    product = matmul.Product(p.a_dtype, space.m, space.n, k, space.batch, w_dtype=w_dtype)
    step = matmul.plan_matmul(lowered.store, product, b.target)
    packed = p.packed()
    b.run(step, {**words, "w": Ref(b.constant(packed)), "panel_bytes": panel_bytes(packed)}, slots)


def quantized(g: PatternBuilder) -> PatternLike:
    """Make the pattern matmul(x, weights, bias?); x is dequantize(q), dynamic_dequantize(q, scales), or any floats.

    `weights` is dequantize(w) or dynamic_dequantize(w, scales, zps?) of constants, perhaps cast to f32. w is s4, u4, s8
    or u8. The scales of w are per-tensor, per-column, or one per group of rows and columns.
    """
    q, w = Var("q"), (Var("w"), Var("scales"))
    dynamic = [g.dynamic_dequantize(*operands, attrs=ANY) for operands in (w, (*w, Var("zps")))]
    weights = g.any_of(g.dequantize(Var("w"), attrs=ANY), *dynamic, g.type_cast(g.any_of(*dynamic), attrs=ANY))
    x = g.any_of(g.dequantize(q, attrs=ANY), g.dynamic_dequantize(q, Var("row_scales"), attrs=ANY), Var("x"))
    return g.any_of(g.matmul(x, weights, attrs=ANY), g.matmul(x, weights, Var("bias"), attrs=ANY))


MATMUL_COMPRESSED = Family("matmul_compressed", ("matmul",), lower_matmul_compressed,
                           matmul_compressed_steps, quantized)
