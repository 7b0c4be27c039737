"""A kernel of rows, for tests of steps that run strip by strip; a process that compiles imports this file."""
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import Record, load_s64, store_s64

ROWS = Record("source", "source_bytes", "source_stride", "target", "target_bytes", "target_stride", "batch", "m",
              "each", "by", "rooms", "room_count", "room_bytes")
"""Rows of an s64 each, `batch` times m, `stride` bytes apart (batch elements `bytes`), to which `by` is added."""


def adding_rows():
    """A block adds a number to the rows of a strip, by way of the room of its piece."""
    def block(args, index):
        a = ROWS(args)
        m, each, by = a.m, a.each, a.by
        parts = (m + each - 1) // each
        batch, first = index // parts, index % parts * each
        room = a.rooms + ((index + 1) * a.room_count - 1) // (a.batch * parts) * a.room_bytes
        source, target = a.source + batch * a.source_bytes, a.target + batch * a.target_bytes
        for i in range(first, min(first + each, m)):
            store_s64(room, load_s64(source + i * a.source_stride) + by)
            store_s64(target + i * a.target_stride, load_s64(room))

    return Functions(block=block)
