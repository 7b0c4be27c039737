"""Fold dequantize -> concat -> epilogue -> quantize chains into partitions; any concat, too."""
from __future__ import annotations

from graphq.kernels.concat.lower import lower_concat
from graphq.passes.fuse_anchor import FuseAnchor
from graphq.rewrite.rule import ANY


class FuseConcat(FuseAnchor):
    """quantize?(f?(concat(dequantize?(x), ...))) -> partition; f as in FuseMatmul"""

    anchor = "concat"
    operations = ("concat",)
    lower = staticmethod(lower_concat)

    def pattern(self, g):
        """See the class; `absorbs` takes the dequantizes along."""
        return self.epilogue(g, g.concat(..., attrs=ANY))
