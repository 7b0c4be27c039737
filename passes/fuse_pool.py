"""Fold dequantize -> pool -> epilogue -> quantize chains into partitions; pools of floats, too."""
from __future__ import annotations

from graphq.kernels.epilogue import RULES
from graphq.kernels.lower_pool import POOLS, lower_pool
from graphq.passes.fuse_matmul import MAX_EPILOGUE, FuseMatmul, ends_chain
from graphq.rewrite import ANY


class FusePool(FuseMatmul):
    """quantize?(f?(pool(dequantize?(x)))) -> partition

    pool is max_pool, avg_pool, or reduce_mean over the spatial axes, channels-last by then (`channels_last`); f as in
    FuseMatmul.
    """

    anchor = "pool"
    operations = tuple(POOLS)
    lower = staticmethod(lower_pool)

    def pattern(self, g):  # type: ignore[override]
        """See the class; `absorbs` takes the dequantize along."""
        return g.repeat(RULES, g.any_of(*POOLS)(..., attrs=ANY), max=MAX_EPILOGUE, where=ends_chain)
