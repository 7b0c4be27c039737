"""The family of operations along rows, such as softmax, layer norm and reductions: its record, its kernel and its plan.

For each row, the prologue computes the elements in f32, loops compute one or two numbers of the row, such as a mean
(`rows.loops`), and the epilogue computes the outputs. Prologue and epilogue use the widest vectors of the instruction
set. The loops always use the same lanes, because lanes determine the order of sums. The argument block is the ROW_BLOCK
record, then the slots of the prologue's operands, then the slots of the epilogue's operands and the output.
"""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.ir import Node
from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import MAX_EPILOGUE, Family, epilogue_operands, operand, slots_of, space_of
from graphq.kernels.jit import Loop, block_module
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import Builder, Value, c64, smaller
from graphq.kernels.lanes.epilogue_code import emitter_of
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.vector import SlotOperand
from graphq.kernels.numbers.rows import LANES
from graphq.kernels.operands.space import Space, broadcast_strides
from graphq.kernels.rows.loops import store_numbers
from graphq.kernels.rows.lower import ROWS, RowLowering, follows, lower_row
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Step, Target, plan_rows
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var

ROW_BLOCK = Record("batch", "m", "n", "each", "rooms", "room_count", "room_bytes", "numbers", "step", "epsilon",
                   "columns")
"""The head of the argument block: `batch` times m rows of n elements. The field `each` is the rows per block.

The caller fills in the addresses of

    numbers   f32 [numbers, batch, m]; two numbers of a row are `step` bytes apart
    epsilon   f32

The plan fills in the address of `rooms`: buffers for one row of f32, one for each piece of the blocks. `columns` is the
number of results of a row, n or 1. It is a field, not a constant of the code: with a constant 1, LLVM would store the
low byte of an s32 result by storing all four bytes.
"""


@block_module
def row_blocks(b: Builder, args: Value, index: Value, *, how: str, prologue: Epilogue, epilogue: Epilogue, lanes: int,
               direct: bool, reduces: bool) -> None:
    """Compute row operation `how`; prologue and epilogue have `lanes` lanes.

    If `direct`, rows are read in place, because the prologue only loads f32. If `reduces`, the epilogue starts from the
    numbers of the rows instead of the elements.
    """
    batches, m, n, each, rooms, room_count, room_bytes = (ROW_BLOCK.load(args, x) for x in (
        "batch", "m", "n", "each", "rooms", "room_count", "room_bytes"))
    numbers, step, epsilon, columns = (ROW_BLOCK.load(args, x) for x in ("numbers", "step", "epsilon", "columns"))
    parts, start = (m + each - 1).udiv(each), c64(0)
    batch, first = index.udiv(parts), index.urem(parts) * each
    room = rooms + ((index + 1) * room_count - 1).udiv(batches * parts) * room_bytes
    source = SlotOperand.read(b, (args, batch, start, start), 0, "f32", "vector") if direct else None
    with Loop(b, smaller(first + each, m) - first) as loop:
        i = first + loop.k
        stats = numbers + (batch * m + i) * 4
        if source is None:
            row = room
            emitter_of(b, prologue, lanes, (args, batch, i, start), into_acc=True).emit(c64(1), n, room, start)
        else:
            row = source.row(i)
        store_numbers(b, how, row, n, room, stats, step, epsilon)
        acc = stats if reduces else room if how.startswith("softmax") else row
        after = args + 24 * prologue.slots
        emitter_of(b, epilogue, lanes, (after, batch, i, start)).emit(c64(1), columns, acc, start)


def room_bytes(n: int) -> int:
    """The bytes of the buffer for a row of n f32, in whole vectors of 16."""
    return 64 * -(-n // LANES)


def plan_row(r: RowLowering, epilogue: Epilogue, space: Space, target: Target, strip_rows: int | None = None) -> Step:
    """Plan the rows of `space`. `strip_rows`, if given, is the number of rows of a block."""
    batch, m, n = space.batch, space.m, space.n
    words = {"batch": batch, "m": m, "n": n, "room_bytes": room_bytes(n), "step": 4 * batch * m,
             "columns": 1 if r.reduces else n}
    # measured: 20 to 45 cycles a vector (Zen 4)
    return plan_rows(row_blocks, ROW_BLOCK, words, target, rows=m, cycles=100 + 40 * -(-n // LANES), batch=batch,
                     of=(r.how, r.prologue, epilogue, target.level.lanes, r.direct, r.reduces), each=strip_rows,
                     name=f"{r.how}_{target.level.name}")


def row_steps(b: PlanBuilder, node: Node, lowered: Lowered[RowLowering]) -> None:
    """Add the step of a row operation, with temporary memory for the numbers of its rows."""
    r = lowered.anchor
    # the output may have further leading axes of size 1
    dims = (*[1] * (len(lowered.out) - len(r.dims)), *r.dims)
    count = prod(dims[:-1])
    numbers = b.temporary(2 * 4 * count)
    operands = [operand(b, node, s, dims) for s in r.sources] + epilogue_operands(b, node, lowered, {
        "row numbers": lambda s: (Ref(numbers, 4 * count * s.index), broadcast_strides(s.shape, lowered.out, 4))})
    space = space_of(b, dims, operands, keep=1)
    step = plan_row(r, lowered.epilogue, space, b.target, b.strip_rows)
    epsilon = b.constant(np.array([r.epsilon], np.float32))
    b.run(step, {"numbers": Ref(numbers), "epsilon": Ref(epsilon)}, slots_of(b, operands, space))


def floats(g: PatternBuilder) -> PatternLike:
    """Make the pattern row(g?(x), gamma?, beta?); g is a lane-wise chain that only the row operation reads."""
    row, before = g.any_of(*ROW.operations), g.repeat(lane_wise_operations(), max=MAX_EPILOGUE, where=refuses)
    a, b = Var("a"), Var("b")
    return g.any_of(*(row(before, *more, attrs=ANY) for more in ((), (a,), (a, b))), row(..., attrs=ANY))


ROW = Family("row", tuple(sorted(ROWS)), lower_row, row_steps, floats=floats, follows=follows)
