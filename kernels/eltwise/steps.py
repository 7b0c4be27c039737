"""The plan step of an elementwise chain."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.eltwise import tiles as eltwise
from graphq.kernels.family.lower import Lowered
from graphq.kernels.operands.space import factor
from graphq.plan.builder import PlanBuilder
from graphq.plan.slots import operand_slot, output, run


def eltwise_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """One step: the loop over the output."""
    operands = [operand_slot(b, node, s, lowered.out) for s in lowered.sources]
    space = factor(lowered.out, [strides for _, strides in operands])
    out = b.result(node.output)
    step = eltwise.plan_eltwise(lowered.store, space, b.target)
    slots = [(ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    run(b, step, {}, [*slots, output(out, space, lowered)])
