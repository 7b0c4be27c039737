"""Tiles of the integer matmul on AMX: tdpbusd / tdpbssd on tile registers of 16 rows x 64 bytes.

A tile is 32 x 64 outputs, in two passes of 2 x 2 accumulators, 2 tiles of activations and 2 of weights, or 16 x 64 for
few rows, in one pass of 1 x 4. Rows at the edge are a matter of the tile configuration, which `amx_setup` loads once
for all tiles with as many rows.

Activations are read where they lie, but for copies: the last k % 64 of each row or tap with zeros after them, and the
pixels of windows that do not lie evenly. The first tile of a row of tiles makes the copies for all of
them, where there is room to keep them, else each its own.

s8 activations use tdpbssd. sum (a + 128) * w = sum a * w + 128 * sum w, so the accumulators start from the column sums.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphq.kernels.jit.deferred import intrinsic, types
from graphq.kernels.jit.intrinsics import I8, I64, c64
from graphq.kernels.jit.x86 import (
    S32X16,
    Loop,
    Tiles,
    at,
    filled,
    load,
    load_bytes,
    opaque,
    prefetch,
    smaller,
    store,
    vector,
)
from graphq.kernels.operands.tile_frame import FRAME, ROWS_AT, Frame, Window, frame_signature
from graphq.kernels.operands.windows import WINDOWS

# Scratch memory after the accumulators: configuration, emulated tile registers, first sums.
STATE = 8192
FIRST = STATE + 64 + 8 * 1024
SCRATCH = FIRST + 4 * 64
LINE, HALF = vector(I8, 64), vector(I8, 32)
ROWS = 32
COPIES = 1 << 19
"""Bytes for copies: the 9 taps of 256 channels of 14 x 14 pixels. They are in L2, as the weights of a tile are."""
AGAIN = 2
"""Says that each tile makes its copies, as they are not kept, rather than the first one of a row of tiles."""


def line_bytes(k: int, taps: int) -> int:
    """Bytes of the copy of a row of `taps` of `k`, and of 32 more: an odd multiple of 64, for the sets of L1."""
    step = 64 if k >= 64 else 4
    return 64 * ((taps * (-(-k // step) * step) + 95) // 64 | 1)


def amx_setup(row_tiles: int, emulated: bool) -> Any:
    """Make the intrinsic `(frame, rows)`: configure for 1 to 16 * `row_tiles` rows, or release the tiles for 0."""

    @intrinsic
    def setup(_typing: Any, address: Any, rows: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            rows = args[1]
            state = at(b, Frame.read(b, args[0]).acc, STATE)
            tiles = Tiles(b, state, emulated)
            with b.if_else(b.icmp_signed(">", rows, c64(0))) as (configure, release):
                with configure:
                    # bytes 0: palette 1, 16..31: 64 bytes a row (u16 each), 48..55: rows of each tile
                    words = [1, 0, *[0x0040_0040_0040_0040] * 2, 0, 0, 0x1010_1010_1010_1010, 0]
                    store(b, vector(I64, 8)(words), state)
                    sums_of, a_of, _ = _numbers(row_tiles)
                    for r in range(row_tiles):
                        left = smaller(b, b.sub(rows, c64(16 * r)), c64(16))
                        left = b.select(b.icmp_signed(">", left, c64(0)), left, c64(16))  # tiles that will not be used
                        for number in (*sums_of[r], a_of[r]):
                            store(b, b.trunc(left, I8), at(b, state, 48 + number))
                    tiles.configure()
                with release:
                    tiles.release()
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    return setup


def _numbers(row_tiles: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Give the tile registers of the accumulators [row][column], the activations [row] and the weights."""
    if row_tiles == 2:
        return [[0, 1], [2, 3]], [4, 5], [6, 7]
    return [[0, 1, 2, 3]], [4], [5, 6, 7]


Step = tuple[list[Any], list[Any], Any, Any]
"""64 bytes of k: addresses of tiles of rows, the bytes between their rows, the place in a panel, the step's number."""


class _Rows:
    """Activations in rows of f.k bytes, f.stride apart; the last f.k % 64 are copied, 64 bytes apart."""

    def __init__(self, b: Any, f: Frame) -> None:
        self.b, self.f = b, f
        self.steps, self.tail = b.ashr(f.k, c64(6)), b.and_(f.k, c64(63))
        self.all_steps = b.ashr(at(b, f.k, 63), c64(6))
        self.copies = FRAME.load(b, f.address, "copies")
        self.panel = b.shl(b.ashr(at(b, f.k, 3), c64(2)), c64(6))  # bytes

    def copy(self) -> None:
        """Emit the copies."""
        b, f = self.b, self.f
        last = at(b, f.a, b.sub(f.k, self.tail))
        with b.if_then(b.icmp_signed(">", self.tail, c64(0))), Loop(b, f.rows, [last, self.copies]) as row:
            source, target = row.values
            store(b, load_bytes(b, source, self.tail), target)
            row.update([opaque(b, at(b, source, f.stride)), opaque(b, at(b, target, 64))])

    def each(self, used: int, first: bool) -> Iterator[Step]:
        """Emit the loop over steps of `used` tiles of rows."""
        b, f = self.b, self.f
        rows = [at(b, f.a, b.mul(f.stride, c64(16 * r))) for r in range(used)]
        with Loop(b, self.steps) as loop:
            yield [at(b, x, b.mul(loop.k, c64(64))) for x in rows], [f.stride] * used, b.shl(loop.k, c64(10)), loop.k
        with b.if_then(b.icmp_signed(">", self.tail, c64(0))):
            # weights past the end of a panel, or a tap, are some other memory of the packed buffer, times zeros
            yield ([at(b, self.copies, 1024 * r) for r in range(used)], [c64(64)] * used, b.shl(self.steps, c64(10)),
                   self.steps)


class _Pixels:
    """Activations in windows. A step of 64 bytes of a tap is loaded where 16 rows lie evenly, and copied where not.

    Pixels do not at borders and line ends, and the last bytes of taps that are not multiples of 64 are copied, too.
    Taps of less than 64 bytes are copied one after another, at multiples of 4 bytes as in packed weights: they share
    steps.
    """

    def __init__(self, b: Any, f: Frame, fresh: Any, once: bool) -> None:
        self.b, self.f, self.window = b, f, Window(b, f)
        self.fresh = b.icmp_signed("!=", fresh, c64(0))
        self.taps = b.mul(self.window.outer, self.window.inner)
        self.whole, self.tail = b.ashr(f.k, c64(6)), b.and_(f.k, c64(63))
        self.short = b.icmp_signed("<", f.k, c64(64))
        self.pixel = load(b, at(b, f.stride, WINDOWS.load(b, f.stride, "more")), I64, 8)
        tap = b.and_(at(b, f.k, 3), c64(-4))
        self.tap_panel, self.panel = b.shl(tap, c64(4)), b.shl(b.mul(tap, self.taps), c64(4))
        self.tap_bytes = b.select(self.short, tap, b.and_(at(b, f.k, 63), c64(-64)))
        total = b.mul(self.tap_bytes, self.taps)
        self.all_steps = b.ashr(at(b, total, 63), c64(6))
        self.line = b.shl(b.or_(b.ashr(at(b, total, 95), c64(6)), c64(1)), c64(6))
        self.apart = self.tap_bytes
        if once:  # copies of all taps in the same place stay in L1
            again = b.and_(b.icmp_signed("==", fresh, c64(AGAIN)), b.not_(self.short))
            self.apart, self.line = b.select(again, c64(0), self.apart), b.select(again, self.tap_bytes, self.line)
        self.copies = FRAME.load(b, f.address, "copies")

    def _run(self, tap: Any, r: Any) -> tuple[Any, Any]:
        """Where the pixels of tile `r` of rows start at a tap, and whether they lie evenly."""
        b = self.b
        run = load(b, at(b, self.f.runs, b.mul(b.add(b.mul(self.taps, r), tap), c64(8))), I64, 8)
        return run, b.icmp_signed(">=", run, c64(0))

    def copy(self) -> None:
        """Emit the copies of short taps; those of others are made as they are needed."""
        b, f, window = self.b, self.f, self.window
        with b.if_then(self.short):
            with Loop(b, f.rows) as row:  # what lies behind the last tap
                end = at(b, self.copies, b.mul(row.k, self.line), b.shl(self.all_steps, c64(6)))
                store(b, filled(LINE, 0), at(b, end, -64))
            with Loop(b, window.outer) as outer, Loop(b, window.inner) as inner, Loop(b, c64(ROWS // 16)) as part:
                tap = b.add(b.mul(outer.k, window.inner), inner.k)
                first = b.shl(part.k, c64(4))
                target = at(b, self.copies, b.mul(tap, self.tap_bytes), b.mul(first, self.line))
                count = smaller(b, b.sub(f.rows, first), c64(16))
                with b.if_then(b.icmp_signed(">", count, c64(0))):
                    run, is_even = self._run(tap, part.k)
                    with b.if_else(is_even) as (even, uneven):
                        with even, Loop(b, count, [at(b, f.a, run), target]) as row:
                            source, place = row.values
                            self._copy_short(source, place)
                            row.update([opaque(b, at(b, source, self.pixel)), opaque(b, at(b, place, self.line))])
                        with uneven:
                            for source, place in self._rows(outer.k, inner.k, first, count, target, self.line):
                                self._copy_short(source, place)

    def _copy_short(self, source: Any, target: Any) -> None:
        """Emit the copy of a tap of less than 64 bytes; 32 bytes at a time, as stores of 64 would cross lines."""
        b, k = self.b, self.f.k
        with Loop(b, b.ashr(k, c64(5)), [source, target]) as half:
            store(b, load(b, half.values[0], HALF), half.values[1])
            half.update([at(b, x, 32) for x in half.values])
        store(b, load_bytes(b, half.values[0], b.and_(k, c64(31)), 32), half.values[1])

    def _rows(self, outer: Any, inner: Any, first: Any, count: Any, target: Any, apart: Any
              ) -> Iterator[tuple[Any, Any]]:
        """Emit a loop over `count` rows from `first` on; gives where each reads at a tap, and its copy's address."""
        b, f = self.b, self.f
        words = at(b, f.address, ROWS_AT, b.shl(first, c64(4)))
        with Loop(b, count, [words, target]) as row:
            words, target = row.values
            offset = b.add(*(load(b, at(b, load(b, at(b, words, 8 * n), I64, 8), b.shl(tap, c64(3))), I64, 8)
                             for n, tap in enumerate((outer, inner))))
            yield b.select(b.icmp_signed(">=", offset, c64(0)), b.add(f.a, offset), self.window.pad), target
            row.update([opaque(b, at(b, words, 16)), opaque(b, at(b, target, apart))])

    def _copy_steps(self, outer: Any, inner: Any, r: int, even: Any, target: Any) -> None:
        """Emit the copies of a tap of tile `r` of rows: all steps, or of an even one the last, if that is not whole."""
        b, f = self.b, self.f
        whole = b.select(even, c64(0), self.whole)
        skipped = b.shl(b.sub(self.whole, whole), c64(6))
        count = smaller(b, b.sub(f.rows, c64(16 * r)), c64(16))
        some = b.or_(b.not_(even), b.icmp_signed("!=", self.tail, c64(0)))
        with b.if_then(b.and_(b.not_(self.short), some)):
            for source, row in self._rows(outer, inner, c64(16 * r), count, at(b, target, skipped), self.line):
                with Loop(b, whole, [at(b, source, skipped), row]) as part:
                    store(b, load(b, part.values[0], LINE), part.values[1])
                    part.update([opaque(b, at(b, x, 64)) for x in part.values])
                with b.if_then(b.icmp_signed("!=", self.tail, c64(0))):
                    store(b, load_bytes(b, part.values[0], self.tail), part.values[1])

    def each(self, used: int, first: bool) -> Iterator[Step]:
        """Emit the loops over taps and their steps, or over all steps; copies are made in the `first` pass."""
        b, f, window = self.b, self.f, self.window
        once = b.select(self.short, c64(1), window.outer), b.select(self.short, c64(1), window.inner)
        steps = b.select(self.short, self.all_steps, b.ashr(self.tap_bytes, c64(6)))
        with Loop(b, once[0]) as outer, Loop(b, once[1]) as inner:
            tap = b.add(b.mul(outer.k, window.inner), inner.k)
            runs = [self._run(tap, c64(r)) for r in range(used)]
            runs = [(run, b.and_(even, b.not_(self.short))) for run, even in runs]
            place = at(b, self.copies, b.mul(tap, self.apart))
            copied = [at(b, place, b.mul(self.line, c64(16 * r))) for r in range(used)]
            if first:
                with b.if_then(self.fresh):
                    for r in range(used):
                        self._copy_steps(outer.k, inner.k, r, runs[r][1], copied[r])
            with Loop(b, steps) as loop:
                done = b.shl(loop.k, c64(6))
                even = [b.and_(x, b.icmp_signed("<", loop.k, self.whole)) for _, x in runs]
                rows = [at(b, b.select(x, at(b, f.a, run), copy), done)
                        for x, (run, _), copy in zip(even, runs, copied, strict=True)]
                yield (rows, [b.select(x, self.pixel, self.line) for x in even],
                       at(b, b.mul(tap, self.tap_panel), b.shl(done, c64(4))), b.add(b.mul(tap, steps), loop.k))


def prefetched(b: Any, address: Any, lines: Any) -> Any:
    """Emit prefetches of `lines` of 64 bytes to L2; the address after them.

    Few after each product, not all of a step's at once, as loads of tiles wait for lines that are under way: the 7 x 7
    pixels of ResNet-50, whose weights come from L3 at 20 GB/s, take 5 % less time.
    """
    with Loop(b, lines, [address]) as line:
        prefetch(b, line.values[0], level=2)
        line.update([opaque(b, at(b, line.values[0], 64))])
    return line.values[0]


def amx_tile(row_tiles: int, panels: int, a_dtype: str, emulated: bool, layout: str = "rows") -> Any:
    """Make the tile intrinsic of 16 * `row_tiles` x 16 * `panels` outputs; `amx_setup` for its rows must have run."""
    sums_of, a_of, w_of = _numbers(row_tiles)
    signed, width = a_dtype == "s8", len(sums_of[0])

    def accumulate(b: Any, f: Frame, source: _Rows | _Pixels, used: int) -> None:
        tiles = Tiles(b, at(b, f.acc, STATE), emulated)
        ahead, pace = (FRAME.load(b, f.address, name) for name in ("ahead", "step"))
        passes = [range(first, min(first + width, panels)) for first in range(0, panels, width)]
        fetched = b.mul(pace, c64(16 // len(passes)))  # bytes that a step of a pass brings in, of 16 groups
        lines, dots = b.ashr(at(b, fetched, 63), c64(6)), used * width
        shares = [b.ashr(at(b, lines, dots - 1 - n), c64(dots.bit_length() - 1)) for n in range(dots)]
        for number, columns in enumerate(passes):
            for j in columns:
                if signed:
                    first = at(b, f.acc, FIRST + 64 * j)
                    store(b, b.shl(load(b, at(b, f.sums, 64 * j), S32X16), filled(S32X16, 7)), first)
                for r in range(used):
                    if signed:
                        tiles.load(sums_of[r][j % width], first, c64(0))
                    else:
                        tiles.zero(sums_of[r][j % width])
            for a, lda, place, step in source.each(used, number == 0):
                bring = at(b, ahead, b.mul(b.add(step, b.mul(source.all_steps, c64(number))), fetched))
                for j in columns:
                    weights = w_of[j % width % len(w_of)]
                    tiles.load(weights, at(b, f.w, place, b.mul(source.panel, c64(j))), c64(64))
                    for r in range(used):
                        if j == columns[0]:
                            tiles.load(a_of[r], a[r], lda[r])
                        tiles.dot(sums_of[r][j % width], a_of[r], weights, signed)
                        bring = prefetched(b, bring, shares[j % width * used + r])
            for r in range(used):
                for j in columns:
                    tiles.store(sums_of[r][j % width], at(b, f.acc, 16 * r * 64 * panels + 64 * j), c64(64 * panels))

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            f = Frame.read(b, args[0])
            fresh = FRAME.load(b, f.address, "fresh")
            source = _Rows(b, f) if layout == "rows" else _Pixels(b, f, fresh, once=panels <= width)
            with b.if_then(b.icmp_signed("!=", fresh, c64(0))):
                source.copy()
            if row_tiles == 1:
                accumulate(b, f, source, 1)
                return context.get_dummy_value()
            with b.if_else(b.icmp_signed(">", f.rows, c64(16))) as (both, one):
                with both:
                    accumulate(b, f, source, 2)
                with one:
                    accumulate(b, f, source, 1)
            return context.get_dummy_value()

        return frame_signature(), codegen

    return tile
