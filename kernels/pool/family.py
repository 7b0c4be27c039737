"""The record of the family of pools: max_pool, avg_pool, and reduce_mean over any axes but the last."""
from __future__ import annotations

from graphq.kernels.family.record import Family
from graphq.kernels.pool.lower import POOLS, lower_pool
from graphq.kernels.pool.steps import pool_steps
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike


def quantised(g: PatternBuilder) -> PatternLike:
    """pool(dequantize?(x))"""
    return g.any_of(*POOLS)(..., attrs=ANY)


POOL = Family("pool", tuple(POOLS), lower_pool, pool_steps, quantised, channels_last=("max_pool", "avg_pool"))
