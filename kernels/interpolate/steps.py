"""The plan step of an interpolate."""
from __future__ import annotations

import numpy as np

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.pixels import Pixels
from graphq.kernels.interpolate import blend
from graphq.kernels.interpolate.lower import Blend
from graphq.kernels.operands.space import factor
from graphq.kernels.pool import means
from graphq.kernels.pool.means import Scales
from graphq.kernels.pool.steps import pool_steps
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.plan.slots import operand_slot, output, run


def interpolate_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """One step; the tables of its windows and its weights are constants."""
    p = lowered.anchor
    if not isinstance(p, Blend):
        return pool_steps(b, node, lowered)
    source = node.inputs[p.source]
    assert source is not None
    operands = [operand_slot(b, node, s, lowered.out) for s in lowered.sources]
    space = factor(lowered.out, [strides for _, strides in operands], keep=1)
    pixels = Pixels(p.dtype, p.windows, space.n, space.batch, space.m)
    step = blend.plan_blend(lowered.store, pixels, b.target)
    header = {"images": Ref(b.of[source]), "windows": Ref(b.constant(p.windows.block(p.pad))),
              "weights": Ref(b.constant(later(_weights, p.scales, p.outer, p.inner)))}
    slots = [(ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])


def _weights(scales: Scales | None, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return means.tables(scales, np.concatenate([outer.ravel(), inner.ravel()]))
