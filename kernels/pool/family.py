"""The record of the pool family (max_pool, avg_pool, reduce_mean over any axes but the last), and its plan step."""
from __future__ import annotations

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.family.slots import store_slots
from graphq.kernels.pixels.blocks import Pixels
from graphq.kernels.pool import means
from graphq.kernels.pool import tiles as pool
from graphq.kernels.pool.lower import POOLS, Pool, lower_pool
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref


def pool_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step of a pool. The tables of its windows are a constant of the plan."""
    p = lowered.anchor
    assert isinstance(p, Pool)
    space, slots = store_slots(b, node, lowered, keep=1)
    pixels = Pixels(p.dtype, p.windows, space.n, space.batch, space.m)
    step = pool.plan_pool(lowered.store, p.how, pixels, b.target, p.order)
    words = {"images": Ref(b.of[node.operand(p.source)]), "windows": Ref(b.constant(p.windows.block(p.pad)))}
    if p.counts is not None:
        words["weights"] = Ref(b.constant(later(means.tables, p.scales, p.counts)))
    b.run(step, words, slots)


POOL = Family("pool", tuple(POOLS), lower_pool, pool_steps, any_operands(*POOLS),
              any_operands(*POOLS), channels_last=("max_pool", "avg_pool"))
