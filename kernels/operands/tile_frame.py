"""What a tile function is called with, and the three ways in which it finds its activations.

A tile function takes the address of a frame of 8-byte words:

    0 a   1 stride   2 w   3 k   4 rows   5 sums   6 acc   7 runs   8 ... two words for each row of the tile (windows)
    72 args   73 batch   74 i   75 j   76 columns   77 ahead   78 step   79 entries   80 copies   81 fresh

`w` is the address of the first panel, `k` bytes of a row (for windows: of one tap), `rows` how many rows are valid,
`sums` the column sums of the first panel, `acc` where the sums go: dense rows, 16 of 4 bytes for each panel. A tile
that writes the outputs takes the argument block, where in the outputs it starts, and its valid columns; where there may
be ties it takes the address for the entries of `store_code.epilogue`, and leaves there how many there are, or -1: then
the tile was not whole, and it wrote nothing. The weights of the next tiles are prefetched from `ahead` on, `step` bytes
further with each group of four bytes of k. A tile of AMX keeps copies of activations at `copies`; where it is `fresh`
it makes them, else an earlier one has, see `matmul.amx.AGAIN`. Readings:

    rows      row i lies at a + i * stride
    columns   the operand is transposed: element (i, k) lies at a + k * stride + i * (its bytes)
    windows   row i is an output pixel of an image at `a`; `stride` is the address of a `Windows` block, and the row's
              two words are the addresses of its entries in the block's tables, which tap by tap say where to read;
              `runs` is the address of the entries of the tile's first run, for tiles that read runs of RUN pixels
"""
from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import I8, I16, I32, I64, c64, load_s64, store_s64, word
from graphq.kernels.jit.x86 import at, interleave, load, load_bytes, smaller, vector
from graphq.kernels.operands.windows import EVEN_PAD, KI, KO, PAD_ROW

ROWS_AT = 8
RUN = 16
OUTPUTS_AT = ROWS_AT + 2 * 32
"""The largest tiles have 32 rows."""
AHEAD_AT = OUTPUTS_AT + 5
ENTRIES_AT = AHEAD_AT + 2
COPIES_AT = ENTRIES_AT + 1
FRAME_BYTES = 8 * (COPIES_AT + 2)


def frame_signature() -> Any:
    """Give the signature of every tile function."""
    return types.void(types.intp)


class Frame(NamedTuple):
    """The frame's words as IR values."""

    address: Any
    a: Any
    stride: Any
    w: Any
    k: Any
    rows: Any
    sums: Any
    acc: Any
    runs: Any

    @staticmethod
    def read(b: Any, address: Any) -> Frame:
        """Emit the loads."""
        return Frame(address, *(load(b, at(b, address, 8 * i), I64, 8) for i in range(ROWS_AT)))


def clamped(b: Any, f: Frame, count: int) -> list[Any]:
    """Give `count` row addresses; those past the last row repeat it, so that a tile at the edge reads valid memory."""
    last = b.sub(f.rows, c64(1))
    return [at(b, f.a, b.mul(smaller(b, c64(i), last), f.stride)) for i in range(count)]


def tail_group(b: Any, address: Any, count: Any, itemsize: int) -> Any:
    """Load the last `count` (1 to 3) bytes of a row as a group of four (s32), reading no byte beyond.

    Elements past the end are 0, or, of one byte, repeat the last one: their weights are the packed zeros.
    """
    if itemsize == 2:
        return b.zext(load(b, address, I16), I32)
    last = b.sub(count, c64(1))
    group = I32(0)
    for i in range(3):
        byte = b.zext(load(b, at(b, address, smaller(b, c64(i), last)), I8), I32)
        group = b.or_(group, b.shl(byte, I32(8 * i)))
    return group


def read_columns(b: Any, f: Frame, rows: int, group: Any, count: Any, itemsize: int) -> list[Any]:
    """Load group number `group` of `rows` (at most 16) rows of a transposed operand.

    A k of all rows is a load of neighbouring bytes; those of a group are interleaved. The first `count` bytes of each
    row's group exist, the others are 0; bytes past the last valid row are not read.
    """
    lanes = 8 if rows <= 8 else 16
    items, valid = 4 // itemsize, b.mul(f.rows, c64(itemsize))
    first = b.mul(group, c64(items))
    lines = [load_bytes(b, at(b, f.a, b.mul(b.add(first, c64(t)), f.stride)),
                        b.select(b.icmp_signed("<", c64(t * itemsize), count), valid, c64(0)), lanes * itemsize)
             for t in range(items)]
    words = b.bitcast(interleave(b, lines, lanes), vector(I32, lanes))
    return [b.extract_element(words, I32(i)) for i in range(rows)]


class Window:
    """Reads the addresses of taps: a + outer entry + inner entry, or the pad row where one of them is negative."""

    def __init__(self, b: ir.IRBuilder, f: Frame) -> None:
        self.b, self.f = b, f
        self.outer, self.inner, pad, self.even = (
            load(b, at(b, f.stride, 8 * i), I64, 8) for i in (KO, KI, PAD_ROW, EVEN_PAD))
        self.pad = b.add(f.stride, pad)

    def entry(self, table: int, row: Any, tap: Any) -> Any:
        """Emit the entry of a tap in the outer (0) or inner (1) table."""
        entries = load(self.b, at(self.b, self.f.address, 8 * (ROWS_AT + table), self.b.mul(row, c64(16))), I64, 8)
        return load(self.b, at(self.b, entries, self.b.mul(tap, c64(8))), I64, 8)

    def inner_taps(self, outer: Any, rows: int, silent: int) -> Any:
        """Emit how many inner taps there are for `rows` rows: none where all of them have padding of `silent` bytes.

        Such padding adds nothing to sums. 3 x 3 on 14 x 14 pixels takes 4 % less time, on 7 x 7 10 %.
        """
        b, outside = self.b, c64(-1)
        for row in range(rows):
            outside = b.and_(outside, self.entry(0, c64(row), outer))
        skips = b.and_(b.icmp_signed("!=", self.even, c64(0)), b.icmp_signed("==", load(b, self.pad, I8), I8(silent)))
        return b.select(b.and_(skips, b.icmp_signed("<", outside, c64(0))), c64(0), self.inner)

    def address(self, row: Any, outer: Any, inner: Any) -> Any:
        """Emit the address of the channels that row `row` (an IR value) of the tile reads at tap (outer, inner)."""
        b = self.b
        offset = b.add(self.entry(0, row, outer), self.entry(1, row, inner))
        inside = b.icmp_signed(">=", offset, c64(0))
        return b.select(inside, b.add(self.f.a, offset), self.pad)


@njit
def locate_windows(frame: int, windows: int, batch: int, m: int, i: int, rows: int, step: int) -> None:
    """Fill in the words of a tile's `step` rows, which are pixels `i` and on of a line; `rows` of them are valid.

    Lines have `m` output pixels, and come after one another in the batch.
    """
    width, outer_taps, inner_taps = word(windows, 0), word(windows, 1), word(windows, 2)
    outer, inner = windows + word(windows, 3), windows + word(windows, 4)
    line = batch % (width * word(windows, 6) // m)
    run = line * ((m + RUN - 1) // RUN) + i // RUN
    store_s64(frame + 8 * (ROWS_AT - 1), windows + word(windows, 7) + 8 + run * outer_taps * inner_taps * 8)
    y, x = (line * m + i) // width, (line * m + i) % width
    entry, last = frame + 8 * ROWS_AT, frame + 8 * ROWS_AT + 16 * (rows - 1)
    while entry <= last:
        end = min(entry + 16 * (width - x), last + 16)
        of_line, of_pixel = outer + 8 * y * outer_taps, inner + 8 * x * inner_taps
        while entry < end:
            store_s64(entry, of_line)
            store_s64(entry + 8, of_pixel)
            of_pixel += 8 * inner_taps
            entry += 16
        y, x = y + 1, 0
    for more in range(rows, step):
        store_s64(frame + 8 * ROWS_AT + 16 * more, load_s64(last))
        store_s64(frame + 8 * ROWS_AT + 16 * more + 8, load_s64(last + 8))
