"""Fold chains of elementwise operations into one partition each, a single loop over memory."""
from __future__ import annotations

from graphq.kernels.family.epilogue import RULES, refuses
from graphq.kernels.family.lower import lower_eltwise
from graphq.passes.fuse_anchor import FuseLowered

MAX_CHAIN = 48
"""Operations in one kernel; longer chains are cut, since their temporaries no longer fit into registers."""


class FuseEltwise(FuseLowered):
    """f(g(x), h(y), ...) of elementwise operations -> partition"""

    anchor = "eltwise"
    lower = staticmethod(lower_eltwise)

    def pattern(self, g):
        """See the class."""
        return g.repeat(RULES, max=MAX_CHAIN, where=refuses)
