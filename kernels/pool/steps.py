"""The plan step of a pool."""
from __future__ import annotations

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.pixels import Pixels
from graphq.kernels.operands.space import factor
from graphq.kernels.pool import means
from graphq.kernels.pool import tiles as pool
from graphq.kernels.pool.lower import Pool
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.plan.slots import operand_slot, output, run


def pool_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """One step; the tables of its windows are a constant."""
    p = lowered.anchor
    assert isinstance(p, Pool)
    source = node.inputs[p.source]
    assert source is not None
    operands = [operand_slot(b, node, s, lowered.out) for s in lowered.sources]
    space = factor(lowered.out, [strides for _, strides in operands], keep=1)
    pixels = Pixels(p.dtype, p.windows, space.n, space.batch, space.m)
    step = pool.plan_pool(lowered.store, p.how, pixels, b.target, p.order)
    header = {"images": Ref(b.of[source]), "windows": Ref(b.constant(p.windows.block(p.pad)))}
    if p.counts is not None:
        header["weights"] = Ref(b.constant(later(means.tables, p.scales, p.counts)))
    slots = [(ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])
