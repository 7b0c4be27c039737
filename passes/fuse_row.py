"""Fold softmax, layer norm and the like into partitions, with the lane-wise chains before and after them."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.family.epilogue import RULES, refuses
from graphq.kernels.rows.lower import ROWS, lower_row
from graphq.passes.fuse_anchor import MAX_EPILOGUE, FuseAnchor
from graphq.rewrite.rule import ANY


class FuseRow(FuseAnchor):
    """f?(row(g?(x), gamma?, beta?)) -> partition

    row is one of ROWS along the last axis, f as in FuseMatmul, g any lane-wise chain that nothing else reads.
    """

    anchor = "row"
    operations = tuple(sorted(ROWS))
    lower = staticmethod(lower_row)

    def pattern(self, g, a, b):
        """See the class; without g where its result has other users."""
        row, before = g.any_of(*self.operations), g.repeat(RULES, max=MAX_EPILOGUE, where=refuses)
        forms = [row(x, *more, attrs=ANY) for x in (before,) for more in ((), (a,), (a, b))]
        return self.epilogue(g, g.any_of(*forms, row(..., attrs=ANY)))

    def absorbs(self, node: Node) -> bool:
        """What is dequantized before the operation is part of g."""
        return super().absorbs(node) and not any(u.node and u.node.op.name in ROWS for u in node.output.uses)
