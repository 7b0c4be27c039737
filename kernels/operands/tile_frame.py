"""The frame: the argument of a tile function, and how the tile function reads activations.

A tile function computes a tile of a matmul or convolution. It gets the address of a frame: a FRAME record and, for
windows, two words for each row of the tile. Activations have one of three layouts (`ActivationLayout`):

    rows      row i is at a + i * stride
    columns   the operand is transposed: element (i, k) is at a + k * stride + i * (its bytes)
    windows   row i belongs to an output pixel; `a` is the input image, and `stride` the address of a WINDOWS record.
              The two words of row i point into the record's outer and inner tables, at the row's offsets, one per tap
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from graphq.kernels.jit import interleave, load_bytes, njit
from graphq.kernels.jit.intrinsics import Record, load_s64, store_s64
from graphq.kernels.jit.values import I8, I16, I32, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.operands.windows import WINDOWS

LAYOUTS = ("rows", "columns", "windows")
"""The layouts of activations (see the module); code stores their index."""
IN_ROWS, IN_COLUMNS, IN_WINDOWS = range(len(LAYOUTS))
FRAME = Record("a", "stride", "w", "k", "rows", "sums", "acc", "runs", "args", "batch", "i", "j", "columns", "ahead",
               "step", "entries", "copies", "fresh", "order")
"""The argument of a tile function: the addresses of its activations, weights and results.

a, stride        the activations (see the layouts above)
w, sums          the first panel of weights, and its column sums
k                the bytes of a row of activations, or of one tap of a window
rows             the number of valid rows of the tile
acc              the address for the sums: dense rows, 16 sums of 4 bytes for each panel
runs             the table entries of the tile's first run, for tiles that read runs of RUN pixels of windows
args, batch, i, j, columns    for tiles that write outputs: the argument block; the batch element, row and column of
                 the first output; how many columns are valid
ahead, step      weights of the next tiles, to prefetch: `step` bytes with each group of four bytes of k
entries          for tiles that write outputs: the address for the entries of outputs near a rounding tie. The tile
                 replaces it by the number of entries, or by -1 if the tile is partial and wrote none
copies, fresh    for tile registers: the address for copies of activations, and whether the tile makes them
                 (`matmul.matrix.OWN_COPIES`)
order            for sorted weights: the order of the panel's groups (`matmul.pack.sort`)
"""
ROWS_AT = FRAME.nbytes
MOST_ROWS = 32
FRAME_BYTES = ROWS_AT + 16 * MOST_ROWS
RUN = 16


class Frame(NamedTuple):
    """The fields of a frame that locate operands and results, as values of kernel code."""

    address: Value
    a: Value
    stride: Value
    w: Value
    k: Value
    rows: Value
    sums: Value
    acc: Value
    runs: Value

    @staticmethod
    def read(address: Value) -> Frame:
        """Emit the loads of the fields."""
        return Frame(address, *(FRAME.load(address, name) for name in Frame._fields[1:]))


def clamped(f: Frame, count: int) -> list[Value]:
    """The addresses of `count` rows. Rows past the last valid row get that row's address: all memory is valid."""
    last = f.rows - 1
    return [f.a + smaller(i, last) * f.stride for i in range(count)]


class RowGroups:
    """Activations in rows, read in groups: a group is four neighboring bytes of each row.

    `addresses` are the addresses of the tile's rows or, with `of_tap`, of the pixels that a tap of the windows reads.
    `first` is the address of the first row's first group. `apart` are the distances of all rows from the first row.
    """

    def __init__(self, f: Frame, addresses: Sequence[Value], itemsize: int, of_tap: bool = False) -> None:
        self.f, self.addresses, self.itemsize = f, addresses, itemsize
        self.first, self.done = addresses[0], f.k & -4
        self.apart = [row - self.first for row in addresses]
        self.brings_next = itemsize == 1 and not of_tap and len(addresses) > 1

    def at(self, number: Value, place: Value) -> Iterable[Value]:
        """Emit the loads of group `number` of all rows, one s32 each. In the first row, the group is at `place`."""
        if self.brings_next:
            self._bring_next(number, place)
        return ((place + row).load(I32) for row in self.apart)

    def several(self, place: Value, count: int) -> Iterable[Value]:
        """Emit the loads of the next `count` groups of all rows, one vector each. The first row's are at `place`."""
        return ((place + row).load(vector(I32, count)) for row in self.apart)

    def tail(self, count: Value) -> Iterable[Value]:
        """Emit the loads of the last group; it has `count` (1 to 3) bytes."""
        return [tail_group(row + self.done, count, self.itemsize) for row in self.addresses]

    def _bring_next(self, number: Value, place: Value) -> None:
        """Prefetch from a row of the next tile. A cache line has 16 groups, so 16 rows are prefetched before it ends.

        If activations are not in L2, 3,136 x 256 x 64 with VNNI takes 7 % less time (Zen 4). Floats would need a line
        of each row every 16 steps, and got slower: MobileNetV2 by 3 %, a sentence encoder by 5 % (Xeon). Tiles of a
        single row do not prefetch, because they are used for matmuls of few rows and seldom have a next row.
        """
        rows = len(self.apart)
        row = (number & ((1 << (rows - 1).bit_length()) - 1)) + rows
        (place + row * self.f.stride).prefetch()


class ColumnGroups:
    """Transposed activations, read in groups of four bytes along k for `rows` (at most 16) rows."""

    def __init__(self, f: Frame, rows: int, itemsize: int) -> None:
        self.f, self.rows, self.itemsize, self.first = f, rows, itemsize, f.a
        self.done = f.k >> 2

    def at(self, number: Value, place: Value) -> Iterable[Value]:
        """Emit the loads of group `number` of all rows, one s32 each."""
        return read_columns(self.f, self.rows, number, c64(4), self.itemsize)

    def tail(self, count: Value) -> Iterable[Value]:
        """Emit the loads of the last group; it has `count` bytes."""
        return read_columns(self.f, self.rows, self.done, count, self.itemsize)


def tail_group(address: Value, count: Value, itemsize: int, fill: int | None = None) -> Value:
    """Load the last `count` (1 to 3) bytes of a row as a group of four (s32), without reading further bytes.

    Missing elements are 0. If elements are bytes, the last byte is repeated instead, because packed weights are 0
    there, or missing bytes are `fill` if it is given.
    """
    if itemsize == 2:
        return address.load(I16).zext(I32)
    last = count - 1
    group = constant(I32, 0)
    for i in range(3 if fill is None else 4):
        byte = (address + smaller(i, last)).load(I8).zext(I32)
        byte = byte if fill is None else (c64(i) < count).select(byte, fill)
        group = group | (byte << (8 * i))
    return group


def read_columns(f: Frame, rows: int, group: Value, count: Value, itemsize: int) -> list[Value]:
    """Load group `group` of `rows` (at most 16) rows of a transposed operand.

    The elements of all rows at one index k are neighbors in memory and take one load; the loads of a group are then
    interleaved. Only the first `count` bytes of a row's group are loaded, the others become 0. Bytes past the last
    valid row are not read.
    """
    lanes = 8 if rows <= 8 else 16
    items, valid = 4 // itemsize, f.rows * itemsize
    first = group * items
    lines = [load_bytes(f.a + (first + t) * f.stride,
                        (c64(t * itemsize) < count).select(valid, 0), lanes * itemsize)
             for t in range(items)]
    words = interleave(lines, lanes).as_type(vector(I32, lanes))
    return [words.lane(i) for i in range(rows)]


Groups: TypeAlias = RowGroups | ColumnGroups
"""How a tile reads activations; windows are read as rows, tap by tap."""


class Window:
    """The addresses that the taps of a window read.

    An address is `a` plus an outer and an inner table entry, or the row of padding if the entries' sum is negative.
    """

    def __init__(self, b: Builder, f: Frame) -> None:
        self.b, self.f = b, f
        self.outer, self.inner, pad, self.even = (
            WINDOWS.load(f.stride, name) for name in ("ko", "ki", "pad_row", "even_pad"))
        self.pad = f.stride + pad

    def entry(self, table: int, row: Value, tap: Value) -> Value:
        """Emit the load of a tap's entry in the outer (0) or the inner (1) table."""
        entries = (self.f.address + (ROWS_AT + 8 * table) + row * 16).load(I64, 8)
        return (entries + tap * 8).load(I64, 8)

    def inner_taps(self, outer: Value, rows: int, silent: int) -> Value:
        """Emit the number of inner taps that a tile of `rows` rows has to read at an outer tap: all, or 0.

        It is 0 if every row reads only padding there and all bytes of the padding are `silent`: such bytes add nothing
        to the sums. 3 x 3 taps on 14 x 14 pixels then take 4 % less time, on 7 x 7 pixels 10 %.
        """
        outside = c64(-1)
        for row in range(rows):
            outside = outside & self.entry(0, self.b.value(I64, row), outer)
        skips = self.even.ne(0) & self.pad.load(I8).eq(silent)
        return (skips & (outside < 0)).select(0, self.inner)

    def address(self, row: Value, outer: Value, inner: Value) -> Value:
        """Emit the address of the channels that row `row` of the tile reads at tap (outer, inner)."""
        offset = self.entry(0, row, outer) + self.entry(1, row, inner)
        inside = offset >= 0
        return inside.select(self.f.a + offset, self.pad)


@njit
def locate(frame: int, layout: int, itemsize: int, a: int, batch: int, m: int, i: int, rows: int, step: int) -> None:
    """Fill in the frame's fields that locate a tile's activations.

    `layout` is an index into LAYOUTS. The tile has `step` rows, and the first `rows` are valid. The tile begins at row
    `i` of the `m` rows of batch element `batch`, whose activations are at `a`, `itemsize` bytes each.
    """
    f = FRAME(frame)
    f.a = a + i * (f.stride if layout == IN_ROWS else itemsize if layout == IN_COLUMNS else 0)
    if layout == IN_WINDOWS:
        locate_windows(frame, f.stride, batch, m, i, rows, step)


@njit
def locate_windows(frame: int, windows: int, batch: int, m: int, i: int, rows: int, step: int) -> None:
    """Fill in the words of a tile's `step` rows: output pixels from pixel `i` on.

    The first `rows` are valid. A batch element has `m` output pixels, and batch elements follow one another in the
    image.
    """
    w = WINDOWS(windows)
    width, outer_taps, inner_taps = w.width, w.ko, w.ki
    outer, inner = windows + w.outer_table, windows + w.inner_table
    line = batch % (width * w.height // m)
    run = line * ((m + RUN - 1) // RUN) + i // RUN
    FRAME(frame).runs = windows + w.more + 8 + run * outer_taps * inner_taps * 8
    y, x = (line * m + i) // width, (line * m + i) % width
    entry, last = frame + ROWS_AT, frame + ROWS_AT + 16 * (rows - 1)
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
        store_s64(frame + ROWS_AT + 16 * more, load_s64(last))
        store_s64(frame + ROWS_AT + 16 * more + 8, load_s64(last + 8))
