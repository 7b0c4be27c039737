"""From a lowered matmul with 4-bit weights to its plan step."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul_4bit import tiles as matmul_4bit
from graphq.kernels.matmul_4bit.lower import GroupedMatmul
from graphq.kernels.operands.space import broadcast_strides, factor
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.plan.slots import operand_slot, output, run, table


def matmul_4bit_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """One step; the weights are packed here."""
    p = lowered.anchor
    assert isinstance(p, GroupedMatmul)
    value = node.inputs[p.a]
    assert value is not None
    k = p.a_shape[-1]
    rows = broadcast_strides(p.a_shape[:-1], lowered.out[:-1], k)
    operands = [(Ref(b.of[value]), (*rows, 0)), *(operand_slot(b, node, s, lowered.out) for s in lowered.sources)]
    space = factor(lowered.out, [strides for _, strides in operands], keep=1)
    product = matmul.Product(p.a_dtype, space.m, space.n, k, space.batch, w_dtype=matmul_4bit.W_DTYPE)
    step = matmul.plan_matmul(lowered.store, product, b.target)
    (a, a_walk), *slots = [(ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    header = {"a": a, "a_table": table(b, a_walk), "stride": a_walk.row,
              "w": Ref(b.constant(p.packed()))}
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])
