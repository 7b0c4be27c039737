"""Tiles of the integer matmul on AMX: products of bytes in tile registers of 16 rows x 64 bytes.

A tile function usually computes 32 x 64 outputs, in two passes of 32 columns. A pass uses 2 x 2 registers for
accumulators, 2 for activations and 2 for weights. For few rows there is a tile function of 16 x 64 outputs: one pass,
with 1 x 4 registers for accumulators. A tile at the lower edge of the result can have fewer rows; `matrix_setup`
configures the registers for these rows.

The tile function loads activations in place, with two exceptions that it copies first: the last k % 64 bytes of each
row or tap (padded with zeros), and windows whose pixels are not evenly spaced in memory. If there is memory to keep the
copies, the first tile of a row of tiles makes them for the whole row. Otherwise each tile makes its own.

Matrix instructions also multiply s8 activations `a` without adding 128 to them. Epilogues, however, expect
sum (a + 128) * w = sum a * w + 128 * sum w, so the accumulators start from 128 times the column sums.
"""
from __future__ import annotations

from collections.abc import Iterator

from graphq.kernels.jit import S32X16, Loop, load_bytes
from graphq.kernels.jit.values import I8, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.operands.tile_frame import FRAME, ROWS_AT, Frame, Window
from graphq.kernels.operands.windows import WINDOWS
from graphq.kernels.target.isa import LEVELS
from graphq.kernels.target.products import Matrix

# Offsets in scratch memory, after the accumulators: tile configuration and emulated tile registers (STATE), initial
# values of the accumulators (FIRST).
STATE = 8192
FIRST = STATE + max(level.matrix.state_bytes for level in LEVELS if level.matrix is not None)
SCRATCH = FIRST + 4 * 64
LINE, HALF = vector(I8, 64), vector(I8, 32)
ROWS = 32
COPIES = 1 << 19
"""The most bytes of copied activations: enough for 14 x 14 output pixels, 9 taps and 256 channels.

The copies then stay in L2, next to the weights of a tile.
"""
OWN_COPIES = 2
"""The value of a frame's word `fresh` if every tile makes its own copies of activations.

Otherwise `fresh` is 1 for the first tile of a row of tiles, and 0 for the tiles that read the first tile's copies.
"""


def line_bytes(k: int, taps: int) -> int:
    """The bytes that the copy of a row of activations takes: `taps` taps of `k` bytes, and 32 spare bytes.

    The result is an odd multiple of 64, so the copies of all rows spread over all sets of the L1 cache.
    """
    step = 64 if k >= 64 else 4
    return 64 * ((taps * (-(-k // step) * step) + 95) // 64 | 1)


def matrix_setup(b: Builder, address: Value, rows: Value, *, matrix: Matrix, row_tiles: int, emulated: bool) -> None:
    """Configure the tile registers for 1 to 16 * `row_tiles` rows; release them for 0 rows."""
    tiles = matrix.registers(b, Frame.read(address).acc + STATE, emulated)
    with b.if_else(rows > 0) as (configure, release):
        with configure:
            sums_of, a_of, _ = _numbers(row_tiles)
            counts: dict[int, Value] = {}
            for r in range(row_tiles):
                left = smaller(rows - 16 * r, 16)
                left = (left > 0).select(left, 16)  # without rows the register is not used; any number will do
                counts |= dict.fromkeys((*sums_of[r], a_of[r]), left)
            tiles.configure(counts)
        with release:
            tiles.release()


def _numbers(row_tiles: int) -> tuple[list[list[int]], list[int], list[int]]:
    """The indices of the tile registers for accumulators ([row][column]), activations ([row]) and weights."""
    if row_tiles == 2:
        return [[0, 1], [2, 3]], [4, 5], [6, 7]
    return [[0, 1, 2, 3]], [4], [5, 6, 7]


KStep = tuple[list[Value], list[Value], Value, Value]
"""A step of 64 bytes along k.

It has the addresses of each row tile's activations, the bytes between the rows of each row tile, the byte offset of the
weights from the start of a panel, and the index of the step.
"""


class _Rows:
    """Activations in rows of f.k bytes, f.stride bytes apart; the last f.k % 64 bytes of each row are copied."""

    def __init__(self, b: Builder, f: Frame) -> None:
        self.b, self.f = b, f
        self.steps, self.tail = f.k >> 6, f.k & 63
        self.all_steps = (f.k + 63) >> 6
        self.copies = FRAME.load(f.address, "copies")
        self.panel = ((f.k + 3) >> 2) << 6  # bytes of a panel

    def copy(self) -> None:
        b, f = self.b, self.f
        last = f.a + (f.k - self.tail)
        with b.if_then(self.tail > 0), Loop(b, f.rows, [last, self.copies]) as row:
            source, target = row.values
            load_bytes(source, self.tail).store(target)
            row.update([(source + f.stride).opaque(), (target + 64).opaque()])

    def each(self, used: int, first: bool) -> Iterator[KStep]:
        b, f = self.b, self.f
        rows = [f.a + f.stride * (16 * r) for r in range(used)]
        with Loop(b, self.steps) as loop:
            yield [x + loop.k * 64 for x in rows], [f.stride] * used, loop.k << 10, loop.k
        with b.if_then(self.tail > 0):
            # in the last step, zeros of the copy multiply the weights beyond the end of the panel
            yield ([self.copies + 1024 * r for r in range(used)], [c64(64)] * used, self.steps << 10, self.steps)


class _PixelRows:
    """Activations in windows of an image, in steps of 64 bytes of a tap.

    A step is loaded from the image if the 16 rows of the tile are evenly spaced there. At borders and at ends of lines
    they are not, and the step is loaded from a copy. The last partial step of a tap is always loaded from a copy.

    If a tap has fewer than 64 bytes, all taps of a pixel are copied one after another, each to a multiple of 4 bytes as
    in packed weights. Several taps then share a step.
    """

    def __init__(self, b: Builder, f: Frame, fresh: Value, once: bool) -> None:
        self.b, self.f, self.window = b, f, Window(b, f)
        self.fresh = fresh.ne(0)
        self.taps = self.window.outer * self.window.inner
        self.whole, self.tail = f.k >> 6, f.k & 63
        self.short = f.k < 64
        self.pixel = (f.stride + WINDOWS.load(f.stride, "more")).load(I64, 8)
        tap = (f.k + 3) & -4
        self.tap_panel, self.panel = tap << 4, (tap * self.taps) << 4
        self.tap_bytes = self.short.select(tap, (f.k + 63) & -64)
        total = self.tap_bytes * self.taps
        self.all_steps = (total + 63) >> 6
        self.line = (((total + 95) >> 6) | 1) << 6
        self.apart = self.tap_bytes
        if once:  # no copy is read again: if `fresh` is OWN_COPIES, all long taps share one memory in L1
            own = fresh.eq(OWN_COPIES) & ~self.short
            self.apart, self.line = own.select(0, self.apart), own.select(self.tap_bytes, self.line)
        self.copies = FRAME.load(f.address, "copies")

    def _run(self, tap: Value, r: Value) -> tuple[Value, Value]:
        """The address of row tile `r`'s first pixel at a tap, and whether the tile's pixels are at even distances."""
        run = (self.f.runs + (self.taps * r + tap) * 8).load(I64, 8)
        return run, run >= 0

    def copy(self) -> None:
        b, f, window = self.b, self.f, self.window
        with b.if_then(self.short):
            with Loop(b, f.rows) as row:  # write zeros after the last tap
                end = self.copies + row.k * self.line + (self.all_steps << 6)
                constant(LINE, 0).store(end + -64)
            with Loop(b, window.outer) as outer, Loop(b, window.inner) as inner, Loop(b, c64(ROWS // 16)) as part:
                tap = outer.k * window.inner + inner.k
                first = part.k << 4
                target = self.copies + tap * self.tap_bytes + first * self.line
                count = smaller(f.rows - first, 16)
                with b.if_then(count > 0):
                    run, is_even = self._run(tap, part.k)
                    with b.if_else(is_even) as (even, uneven):
                        with even, Loop(b, count, [f.a + run, target]) as row:
                            source, place = row.values
                            self._copy_short(source, place)
                            row.update([(source + self.pixel).opaque(), (place + self.line).opaque()])
                        with uneven:
                            for source, place in self._rows(outer.k, inner.k, first, count, target, self.line):
                                self._copy_short(source, place)

    def _copy_short(self, source: Value, target: Value) -> None:
        """Emit the copy of a tap of less than 64 bytes, 32 bytes at a time: longer stores would cross cache lines."""
        b, k = self.b, self.f.k
        with Loop(b, k >> 5, [source, target]) as half:
            half.values[0].load(HALF).store(half.values[1])
            half.update([x + 32 for x in half.values])
        load_bytes(half.values[0], k & 31, 32).store(half.values[1])

    def _rows(self, outer: Value, inner: Value, first: Value, count: Value, target: Value, apart: Value
              ) -> Iterator[tuple[Value, Value]]:
        """Emit a loop over `count` rows from `first` on; yields the address of a row and the address of its copy."""
        b, f = self.b, self.f
        words = f.address + ROWS_AT + (first << 4)
        with Loop(b, count, [words, target]) as row:
            words, target = row.values
            offset = b.add(*(((words + 8 * n).load(I64, 8) + (tap << 3)).load(I64, 8)
                             for n, tap in enumerate((outer, inner))))
            yield (offset >= 0).select(f.a + offset, self.window.pad), target
            row.update([(words + 16).opaque(), (target + apart).opaque()])

    def _copy_steps(self, outer: Value, inner: Value, r: int, even: Value, target: Value) -> None:
        """Emit copies of row tile `r` at a tap: of all steps, or only of a partial step if pixels are evenly spaced."""
        b, f = self.b, self.f
        whole = even.select(0, self.whole)
        skipped = (self.whole - whole) << 6
        count = smaller(f.rows - 16 * r, 16)
        some = ~even | self.tail.ne(0)
        with b.if_then(~self.short & some):
            for source, row in self._rows(outer, inner, b.value(I64, 16 * r), count, target + skipped, self.line):
                with Loop(b, whole, [source + skipped, row]) as part:
                    part.values[0].load(LINE).store(part.values[1])
                    part.update([(x + 64).opaque() for x in part.values])
                with b.if_then(self.tail.ne(0)):
                    load_bytes(part.values[0], self.tail).store(part.values[1])

    def each(self, used: int, first: bool) -> Iterator[KStep]:
        """Emit the loop over all steps along k, and yield each step; only the `first` pass makes copies."""
        b, f, window = self.b, self.f, self.window
        once = self.short.select(1, window.outer), self.short.select(1, window.inner)
        steps = self.short.select(self.all_steps, self.tap_bytes >> 6)
        with Loop(b, once[0]) as outer, Loop(b, once[1]) as inner:
            tap = outer.k * window.inner + inner.k
            runs = [self._run(tap, c64(r)) for r in range(used)]
            runs = [(run, even & ~self.short) for run, even in runs]
            place = self.copies + tap * self.apart
            copied = [place + self.line * (16 * r) for r in range(used)]
            if first:
                with b.if_then(self.fresh):
                    for r in range(used):
                        self._copy_steps(outer.k, inner.k, r, runs[r][1], copied[r])
            with Loop(b, steps) as loop:
                done = loop.k << 6
                even = [x & (loop.k < self.whole) for _, x in runs]
                rows = [x.select(f.a + run, copy) + done for x, (run, _), copy in zip(even, runs, copied, strict=True)]
                yield (rows, [x.select(self.pixel, self.line) for x in even],
                       tap * self.tap_panel + (done << 4), tap * steps + loop.k)


def prefetched(b: Builder, address: Value, lines: Value) -> Value:
    """Emit prefetches of `lines` lines of 64 bytes to L2; returns the address after them.

    Each product is followed by a few prefetches. If all prefetches of a step came together, the next tile loads would
    wait for them. ResNet-50's 7 x 7 layers, at 20 GB/s from L3, take 5 % less time with spread prefetches.
    """
    with Loop(b, lines, [address]) as line:
        line.values[0].prefetch(level=2)
        line.update([(line.values[0] + 64).opaque()])
    return line.values[0]


def matrix_tile(b: Builder, address: Value, index: Value, *, matrix: Matrix, row_tiles: int, panels: int, a_dtype: str,
                emulated: bool, layout: str = "rows") -> None:
    """Emit the tile of 16 * `row_tiles` x 16 * `panels` outputs; `matrix_setup` must run first."""
    sums_of, a_of, w_of = _numbers(row_tiles)
    signed, width = a_dtype == "s8", len(sums_of[0])
    f = Frame.read(address)
    fresh = FRAME.load(f.address, "fresh")
    source = _Rows(b, f) if layout == "rows" else _PixelRows(b, f, fresh, once=panels <= width)

    def accumulate(used: int) -> None:
        tiles = matrix.registers(b, f.acc + STATE, emulated)
        ahead, pace = (FRAME.load(f.address, name) for name in ("ahead", "step"))
        passes = [range(first, min(first + width, panels)) for first in range(0, panels, width)]
        fetched = pace * (16 // len(passes))  # `pace` is the bytes to prefetch per group; a step has 16
        lines, dots = (fetched + 63) >> 6, used * width
        shares = [(lines + (dots - 1 - n)) >> (dots.bit_length() - 1) for n in range(dots)]
        for number, columns in enumerate(passes):
            for j in columns:
                if signed:
                    first = f.acc + (FIRST + 64 * j)
                    ((f.sums + 64 * j).load(S32X16) << 7).store(first)
                for r in range(used):
                    if signed:
                        tiles.load(sums_of[r][j % width], first, c64(0))
                    else:
                        tiles.zero(sums_of[r][j % width])
            for a, lda, place, step in source.each(used, number == 0):
                bring = ahead + (step + source.all_steps * number) * fetched
                for j in columns:
                    weights = w_of[j % width % len(w_of)]
                    tiles.load(weights, f.w + place + source.panel * j, c64(64))
                    for r in range(used):
                        if j == columns[0]:
                            tiles.load(a_of[r], a[r], lda[r])
                        tiles.dot(sums_of[r][j % width], a_of[r], weights, signed)
                        bring = prefetched(b, bring, shares[j % width * used + r])
            for r in range(used):
                for j in columns:
                    tiles.store(sums_of[r][j % width], f.acc + (16 * r * 64 * panels + 64 * j), c64(64 * panels))

    with b.if_then(fresh.ne(0)):
        source.copy()
    if row_tiles == 1:
        accumulate(1)
        return
    with b.if_else(f.rows > 16) as (both, one):
        with both:
            accumulate(2)
        with one:
            accumulate(1)
