"""The record of the family of operations along rows: softmax, layer norm, reductions and the like."""
from __future__ import annotations

from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.record import MAX_EPILOGUE, Family
from graphq.kernels.rows.lower import ROWS, check_row, follows, lower_row
from graphq.kernels.rows.steps import row_steps
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def floats(g: PatternBuilder) -> PatternLike:
    """The pattern row(g?(x), gamma?, beta?), where g is any lane-wise chain whose result has no other users."""
    row, before = g.any_of(*ROW.operations), g.repeat(lane_wise_operations(), max=MAX_EPILOGUE, where=refuses)
    a, b = Var("a"), Var("b")
    return g.any_of(*(row(before, *more, attrs=ANY) for more in ((), (a,), (a, b))), row(..., attrs=ANY))


ROW = Family("row", tuple(sorted(ROWS)), check_row, lower_row, row_steps, floats=floats, follows=follows)
