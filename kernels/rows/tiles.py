"""The kernel of an operation along rows: a prologue into a row of f32, the row's numbers, and the epilogue.

Words of an argument block, the slots of the prologue's operands first, then the epilogue's and the output:

    0 batch   1 m   2 n   3 rows a block   4 a row of f32 for each block   5 bytes of it
    6 the row's numbers, f32 [numbers, batch, m]   7 bytes of each of them   8 the f32 epsilon
    9 results a row, n or 1: where LLVM sees that it is 1, it stores the four bytes of an s32 for the low byte
"""
from __future__ import annotations

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import HEADER_WORDS, load_s64, word
from graphq.kernels.jit.isa import Level
from graphq.kernels.jit.registry import Step, threads_for
from graphq.kernels.lanes.store_code import epilogue
from graphq.kernels.lanes.stores import Store
from graphq.kernels.numbers.rows import LANES
from graphq.kernels.rows.loops import numbers_of

ROOM, NUMBERS, EPSILON = 4, 6, 8  # words that the caller fills in
BLOCKS_PER_THREAD = 4


def row_blocks(how: str, prologue: Store, store: Store, lanes: int, direct: bool, reduces: bool) -> Functions:
    """Make the block function of `how` along rows, `lanes` at a time before and after.

    `direct`: the prologue loads f32, no more, and rows are read where they lie. `reduces`: the epilogue's accumulators
    are the numbers of rows, not the elements.
    """
    read, numbers = epilogue(prologue, lanes, into_acc=True), numbers_of(how)
    write, after = epilogue(store, lanes), 24 * prologue.slots
    in_room = how.startswith("softmax")
    source_word, table_word, stride_word = range(HEADER_WORDS, HEADER_WORDS + 3)

    def block(args: int, index: int) -> None:
        m, n, each, step = word(args, 1), word(args, 2), word(args, 3), word(args, 7)
        parts = (m + each - 1) // each
        batch, first = index // parts, index % parts * each
        room, columns = word(args, 4) + index * word(args, 5), word(args, 9)
        source = word(args, source_word)
        if direct and word(args, table_word):
            source += load_s64(word(args, table_word) + 8 * batch)
        for i in range(first, min(first + each, m)):
            stats = word(args, 6) + 4 * (batch * m + i)
            if direct:
                row = source + i * word(args, stride_word)
            else:
                row = room
                read(args, batch, i, 0, 1, n, room, 0, 0)
            numbers(row, n, room, stats, step, word(args, 8))
            if reduces:
                acc = stats
            else:
                acc = room if in_room else row
            write(args + after, batch, i, 0, 1, columns, acc, 0, 0)

    return Functions(block=block)


def plan_row(how: str, prologue: Store, store: Store, batch: int, m: int, n: int, level: Level, *, direct: bool,
             reduces: bool, threads: int = 1, cache: bool = True) -> Step:
    """Plan batch * m rows of n elements at ISA level `level`."""
    made = modules.load("row", row_blocks, how, prologue, store, level.lanes, direct, reduces, cache=cache)
    vectors = -(-n // LANES)
    worth = threads_for(threads, batch * m * (100 + 40 * vectors))  # 128 x 384 and 1536 x 128 on Zen 4: 20 to 45
    parts = max(1, min(m, -(-BLOCKS_PER_THREAD * worth // max(1, batch)))) if worth > 1 else 1
    each = max(1, -(-m // parts))
    header = (batch, m, n, each, 0, 64 * vectors, 0, 4 * batch * m, 0, 1 if reduces else n)
    return Step(f"{how}_{level.name}", made.block, header, batch * -(-m // each), made, serial=worth == 1)
