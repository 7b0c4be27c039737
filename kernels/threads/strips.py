"""Run several steps strip by strip: a strip of rows goes through all steps before the next strip does.

A strip is some rows of a batch element. Data that only the next step reads then take memory for one strip instead of
all rows. This memory, a room, stays in the cache of a core. Each thread runs some neighboring strips at a time, a
piece; each piece has a room of its own.

The steps need no code for strips. Each step runs on copies of its argument block: in the copy for a strip, addresses of
data in a room are adjusted, so row i is at `address + i * stride`.
"""
from graphq.kernels.jit import block_module
from graphq.kernels.jit.intrinsics import SLOTS, Record, call_block, load_s64, store_s64

STRIPS = Record("steps", "batch", "m", "each", "rooms", "room_count", "room_bytes")
"""The argument block of `steps` steps. A batch element has `m` rows; the field `each` is the rows of a strip.

For each step, a PART follows, the step's argument block, and a MOVED for each word that is the address of data in a
room. These words hold addresses in the first room. The data in a room have as many rows as a strip.

    rooms, room_count, room_bytes    memory for copies of argument blocks, one for each piece of the blocks
"""
PART = Record("function", "words", "moved")
"""A step's block function, the words of its argument block, and the number of its MOVED records."""
MOVED = Record("word", "stride")
"""The index of a word of an argument block, and the bytes between rows of the data at its address."""
PART_BYTES, MOVED_BYTES = PART.nbytes, MOVED.nbytes


@block_module
def strips_module(args: int, index: int) -> None:
    """Run all steps on a strip."""
    a = STRIPS(args)
    steps, each = a.steps, a.each
    parts = (a.m + each - 1) // each
    piece = ((index + 1) * a.room_count - 1) // (a.batch * parts)
    copy, rows = a.rooms + piece * a.room_bytes, piece * each - index % parts * each
    part = args + SLOTS
    for _ in range(steps):
        x = PART(part)
        function, words, moved = x.function, x.words, x.moved
        part += PART_BYTES
        for k in range(words):
            store_s64(copy + 8 * k, load_s64(part + 8 * k))
        part += 8 * words
        for _ in range(moved):
            y = MOVED(part)
            word = copy + 8 * y.word
            store_s64(word, load_s64(word) + rows * y.stride)
            part += MOVED_BYTES
        call_block(function, copy, index)
