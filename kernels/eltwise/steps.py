"""The plan step of an elementwise chain."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.eltwise import tiles as eltwise
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.slots import store_slots
from graphq.plan.builder import PlanBuilder


def eltwise_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step, a loop over the elements of the output."""
    space, slots = store_slots(b, node, lowered)
    b.run(eltwise.plan_eltwise(lowered.store, space, b.target, b.strip_rows), {}, slots)
