"""Fold dequantize -> concat -> epilogue -> quantize chains into partitions; any concat, too."""
from __future__ import annotations

from graphq.kernels.epilogue import RULES
from graphq.kernels.lower_concat import lower_concat
from graphq.passes.fuse_matmul import MAX_EPILOGUE, FuseMatmul, ends_chain
from graphq.rewrite import ANY


class FuseConcat(FuseMatmul):
    """quantize?(f?(concat(dequantize?(x), ...))) -> partition; f as in FuseMatmul"""

    anchor = "concat"
    operations = ("concat",)
    lower = staticmethod(lower_concat)

    def pattern(self, g):  # type: ignore[override]
        """See the class; `absorbs` takes the dequantizes along."""
        return g.repeat(RULES, g.concat(..., attrs=ANY), max=MAX_EPILOGUE, where=ends_chain)
