"""The plan step of an interpolate."""
from __future__ import annotations

import numpy as np

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.slots import store_slots
from graphq.kernels.interpolate import blend
from graphq.kernels.interpolate.lower import Blend
from graphq.kernels.pixels.plan import Pixels
from graphq.kernels.pool import means
from graphq.kernels.pool.means import Scales
from graphq.kernels.pool.steps import pool_steps
from graphq.plan.builder import PlanBuilder
from graphq.plan.step import Ref


def interpolate_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step; the tables of its windows and its weights are constants."""
    p = lowered.anchor
    if not isinstance(p, Blend):
        return pool_steps(b, node, lowered)
    space, slots = store_slots(b, node, lowered, keep=1)
    pixels = Pixels(p.dtype, p.windows, space.n, space.batch, space.m)
    step = blend.plan_blend(lowered.store, pixels, b.target)
    words = {"images": Ref(b.of[node.operand(p.source)]), "windows": Ref(b.constant(p.windows.block(p.pad))),
             "weights": Ref(b.constant(later(_weights, p.scales, p.outer, p.inner)))}
    b.run(step, words, slots)


def _weights(scales: Scales | None, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return means.tables(scales, np.concatenate([outer.ravel(), inner.ravel()]))
