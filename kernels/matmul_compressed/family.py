"""The record of the family of matmuls with compressed weights, and the function that adds their steps to a plan."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family
from graphq.kernels.family.slots import Operand, store_slots
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul.family import product_step
from graphq.kernels.matmul.plan import Product
from graphq.kernels.matmul.row_sums import plan_sums
from graphq.kernels.matmul_compressed.lower import CompressedMatmul, lower_matmul_compressed
from graphq.kernels.matmul_compressed.pack import panel_bytes
from graphq.kernels.matmul_compressed.tiles import ROUNDED, W_DTYPES
from graphq.kernels.operands.space import broadcast_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Word
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def matmul_compressed_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step of the matmul. For integer activations, first add a step that sums each group of a row."""
    p = lowered.anchor
    assert isinstance(p, CompressedMatmul)
    k, data = p.a_shape[-1], p.packed()
    packed, words = b.constant(data), dict[str, Word](panel_bytes=panel_bytes(data))

    def of_rows(buffer: int, nbytes: int) -> Operand:
        return Ref(buffer), (*broadcast_strides(p.a_shape[:-1], lowered.out[:-1], nbytes), 0)

    more: dict[str, Operand] = {}
    if p.row_scales is not None:
        more["row_scales"] = of_rows(b.of[node.operand(p.row_scales)], 4 * p.row_groups)
        words["row_scales_step"] = 4 if p.row_groups > 1 else 0
    elif not p.floats:
        words["row_scales"] = Ref(b.constant(np.array([p.a_scale], np.float32)))
    source = b.of[node.operand(p.a)]
    if not p.floats:
        groups = len(p.z)
        count = prod(p.a_shape[:-1]) * groups
        sums = b.temporary(4 * count)
        b.run(plan_sums(p.a_dtype, count, k // groups, 1, b.target), {"source": Ref(source), "sums": Ref(sums)})
        more["row_sums"] = of_rows(sums, 4 * groups)
    before = [of_rows(source, k * STORAGE[p.a_dtype].itemsize), of_rows(packed, 0), *more.values()]
    space, (a, w, *slots) = store_slots(b, node, lowered, before=before, keep=1)
    for name, (address, table, row) in zip(more, slots, strict=False):
        words |= {name: address, f"{name}_table": table, f"{name}_row": row}
    w_dtype = W_DTYPES[p.bits] if p.rounding == "f32" else ROUNDED[p.bits, p.rounding]
    x = Product(p.a_dtype, space.m, space.n, k, space.batch, w_dtype=w_dtype)
    product_step(b, lowered, x, [a, w, *slots[len(more):]], packed, words)


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
