"""Fold chains of elementwise operations into one partition each, a single loop over memory."""
from __future__ import annotations

from graphq.ir import Graph
from graphq.kernels.epilogue import RULES, Unsupported, refuses
from graphq.kernels.lower import lower_eltwise
from graphq.partition import Fusion, extract
from graphq.rewrite import Match

MAX_CHAIN = 48
"""Operations in one kernel; longer chains are cut, since their temporaries no longer fit into registers."""


class FuseEltwise(Fusion):
    """f(g(x), h(y), ...) of elementwise operations -> partition"""

    anchor = "eltwise"

    def pattern(self, g):
        """See the class."""
        return g.repeat(RULES, max=MAX_CHAIN, where=refuses)

    def check(self, g: Graph, match: Match) -> str | None:
        """A kernel must be able to compute it."""
        body, _, _ = extract(g, self.members(match))
        try:
            lower_eltwise(body)
        except Unsupported as e:
            return str(e)
        return None
