"""Fold dequantize -> pool -> epilogue -> quantize chains into partitions; pools of floats, too."""
from __future__ import annotations

from graphq.kernels.pool.lower import POOLS, lower_pool
from graphq.passes.fuse_anchor import FuseAnchor
from graphq.rewrite.rule import ANY


class FusePool(FuseAnchor):
    """quantize?(f?(pool(dequantize?(x)))) -> partition

    pool is max_pool, avg_pool, or reduce_mean over the spatial axes, channels-last by then (`channels_last`); f as in
    FuseMatmul.
    """

    anchor = "pool"
    operations = tuple(POOLS)
    lower = staticmethod(lower_pool)

    def pattern(self, g):
        """See the class; `absorbs` takes the dequantize along."""
        return self.epilogue(g, g.any_of(*POOLS)(..., attrs=ANY))
