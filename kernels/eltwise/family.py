"""The record of the family of lane-wise operations without an anchor: each partition is one loop over memory."""
from __future__ import annotations

from graphq.kernels.eltwise.steps import eltwise_steps
from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.lower import at_rows, check_eltwise, lower_eltwise
from graphq.kernels.family.record import Family
from graphq.rewrite.pattern import PatternBuilder, PatternLike

MAX_CHAIN = 48
"""The most operations in one kernel: the temporaries of longer chains would exceed the registers."""


def floats(g: PatternBuilder) -> PatternLike:
    """The pattern of a tree of lane-wise operations: f(g(x), h(y), ...)."""
    return g.repeat(lane_wise_operations(), max=MAX_CHAIN, where=refuses)


ELTWISE = Family("eltwise", (), check_eltwise, lower_eltwise, eltwise_steps, floats=floats, follows=at_rows)
