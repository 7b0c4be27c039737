"""From a lowered matmul with 4-bit weights to its plan step."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.slots import store_slots
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul_4bit import tiles as matmul_4bit
from graphq.kernels.matmul_4bit.lower import GroupedMatmul
from graphq.kernels.matmul_4bit.pack import panel_bytes
from graphq.kernels.operands.space import broadcast_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.step import Ref


def matmul_4bit_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the one step of the matmul; the constant weights are packed at compile time."""
    p = lowered.anchor
    assert isinstance(p, GroupedMatmul)
    k = p.a_shape[-1]
    rows = broadcast_strides(p.a_shape[:-1], lowered.out[:-1], k)
    space, ((a, a_table, stride), *slots) = store_slots(
        b, node, lowered, before=[(Ref(b.of[node.operand(p.a)]), (*rows, 0))], keep=1)
    product = matmul.Product(p.a_dtype, space.m, space.n, k, space.batch, w_dtype=matmul_4bit.W_DTYPE)
    step = matmul.plan_matmul(lowered.store, product, b.target)
    packed = p.packed()
    b.run(step, {"a": a, "a_table": a_table, "stride": stride, "w": Ref(b.constant(packed)),
                 "panel_bytes": panel_bytes(packed)}, slots)
