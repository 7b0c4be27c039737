"""The record of the family of row operations (softmax, layer norm, reductions), and its plan step."""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import MAX_EPILOGUE, Family
from graphq.kernels.family.slots import operand, slots_of, space_of
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import broadcast_strides
from graphq.kernels.rows import tiles as row
from graphq.kernels.rows.lower import ROWS, RowLowering, follows, lower_row
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var


def row_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step of a row operation, with temporary memory for the numbers of its rows."""
    r = lowered.anchor
    assert isinstance(r, RowLowering)
    # the output may have further leading axes of size 1
    dims = (*[1] * (len(lowered.out) - len(r.dims)), *r.dims)
    count = prod(dims[:-1])
    numbers = b.temporary(2 * 4 * count)
    operands = [operand(b, node, s, dims) for s in r.sources]
    for s in lowered.sources:
        if s.origin == "row numbers":
            operands.append((Ref(numbers, 4 * count * s.index), broadcast_strides(s.shape, lowered.out, 4)))
        else:
            operands.append(operand(b, node, s, lowered.out))
    result = broadcast_strides(lowered.out, lowered.out, STORAGE[lowered.store.dtype].itemsize)
    operands.append((Ref(b.result(node.output)), result))
    space = space_of(b, dims, operands, keep=1)
    step = row.plan_row(r, lowered.store, space, b.target, b.strip_rows)
    epsilon = b.constant(np.array([r.epsilon], np.float32))
    b.run(step, {"numbers": Ref(numbers), "epsilon": Ref(epsilon)}, slots_of(b, operands, space))


def floats(g: PatternBuilder) -> PatternLike:
    """Make the pattern row(g?(x), gamma?, beta?); g is a lane-wise chain that only the row operation reads."""
    row, before = g.any_of(*ROW.operations), g.repeat(lane_wise_operations(), max=MAX_EPILOGUE, where=refuses)
    a, b = Var("a"), Var("b")
    return g.any_of(*(row(before, *more, attrs=ANY) for more in ((), (a,), (a, b))), row(..., attrs=ANY))


ROW = Family("row", tuple(sorted(ROWS)), lower_row, row_steps, floats=floats, follows=follows)
