"""The record of the family of pools: max_pool, avg_pool, and reduce_mean over any axes but the last."""
from __future__ import annotations

from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.pool.lower import POOLS, check_pool, lower_pool
from graphq.kernels.pool.steps import pool_steps

POOL = Family("pool", tuple(POOLS), check_pool, lower_pool, pool_steps, any_operands(*POOLS),
              channels_last=("max_pool", "avg_pool"))
