"""The kernel of operations along rows, such as softmax.

For each row, the prologue computes the elements in f32, loops compute one or two numbers of the row, such as a mean
(`rows.loops`), and the epilogue computes the outputs. Prologue and epilogue use the widest vectors of the instruction
set. The loops always use the same lanes, because lanes determine the order of sums. The argument block is the ROWS
record, then the slots of the prologue's operands, then the slots of the epilogue's operands and the output.
"""
from __future__ import annotations

from graphq.base.sizes import largest
from graphq.kernels.jit import modules
from graphq.kernels.jit.code import Loop
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import emits
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import Builder, Value, c64, smaller
from graphq.kernels.lanes.slots import SlotOperand
from graphq.kernels.lanes.store_code import emitter_of
from graphq.kernels.lanes.stores import Store
from graphq.kernels.numbers.rows import LANES
from graphq.kernels.operands.space import Space
from graphq.kernels.rows.loops import store_numbers
from graphq.kernels.rows.lower import RowLowering
from graphq.plan.plan import Step, Target, pieces, rows_of_block, threads_for

ROWS = Record("batch", "m", "n", "each", "rooms", "room_count", "room_bytes", "numbers", "step", "epsilon", "columns")
"""The head of the argument block: `batch` times m rows of n elements. The field `each` is the rows per block.

The caller fills in the addresses of

    numbers   f32 [numbers, batch, m]; two numbers of a row are `step` bytes apart
    epsilon   f32

The plan fills in the address of `rooms`: buffers for one row of f32, one for each piece of the blocks. `columns` is the
number of results of a row, n or 1. It is a field, not a constant of the code: with a constant 1, LLVM would store the
low byte of an s32 result by storing all four bytes.
"""


def row_blocks(how: str, prologue: Store, store: Store, lanes: int, direct: bool, reduces: bool) -> Functions:
    """Make the block function of row operation `how`; prologue and epilogue have `lanes` lanes.

    If `direct`, rows are read in place, because the prologue only loads f32. If `reduces`, the epilogue starts from the
    numbers of the rows instead of the elements.
    """

    @emits
    def block(b: Builder, args: Value, index: Value) -> None:
        batches, m, n, each, rooms, room_count, room_bytes = (ROWS.load(args, x) for x in (
            "batch", "m", "n", "each", "rooms", "room_count", "room_bytes"))
        numbers, step, epsilon, columns = (ROWS.load(args, x) for x in ("numbers", "step", "epsilon", "columns"))
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
            emitter_of(b, store, lanes, (after, batch, i, start)).emit(c64(1), columns, acc, start)

    return Functions(block=block)


def room_bytes(n: int) -> int:
    """The bytes of the buffer for a row of n f32, in whole vectors of 16."""
    return 64 * -(-n // LANES)


def plan_row(r: RowLowering, store: Store, space: Space, target: Target, strip_rows: int | None = None) -> Step:
    """Plan the rows of `space`; `store` is the epilogue. `strip_rows`, if given, is the number of rows of a block."""
    module = modules.load("row", row_blocks, r.how, r.prologue, store, target.level.lanes, r.direct, r.reduces,
                          level=target.level.base, cache=target.cache)
    batch, m, n = space.batch, space.m, space.n
    vectors = -(-n // LANES)
    worth = threads_for(target.threads, batch * m * (100 + 40 * vectors))  # measured: 20 to 45 cycles a vector (Zen 4)
    each = rows_of_block(m, batch, worth) if strip_rows is None else strip_rows
    blocks = batch * -(-m // each)
    shares = pieces(blocks, worth, target.threads)
    words = ROWS.named({"batch": batch, "m": m, "n": n, "each": each, "room_count": largest(1, shares),
                        "room_bytes": room_bytes(n), "step": 4 * batch * m, "columns": 1 if r.reduces else n})
    return Step(f"{r.how}_{target.level.name}", module.block, words, blocks, shares)
