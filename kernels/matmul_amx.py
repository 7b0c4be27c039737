"""Tiles of the integer matmul on AMX: tdpbusd / tdpbssd on tile registers of 16 rows x 64 bytes.

A tile is 32 x 64 outputs, in two passes of 2 x 2 accumulators, 2 tiles of activations and 2 of weights, or 16 x 64 for
few rows, in one pass of 1 x 4. Rows at the edge are a matter of the tile configuration, which `amx_setup` loads once
for all tiles with as many rows.

Activations are read where they lie, but for copies: the last k % 64 of each row with zeros after them, the pixels of
windows that do not lie evenly, and all those of taps that are not multiples of 64 bytes, one after another. The first
tile of a row of tiles makes the copies for all of them.

s8 activations use tdpbssd. sum (a + 128) * w = sum a * w + 128 * sum w, so the accumulators start from the column sums.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphq.kernels.intrinsics import I8, I64, c64
from graphq.kernels.jit import intrinsic, types
from graphq.kernels.tile_frame import AHEAD_AT, COPIES_AT, Frame, Window, frame_signature
from graphq.kernels.windows import MORE
from graphq.kernels.x86 import (
    S32X16,
    Loop,
    Tiles,
    at,
    filled,
    load,
    load_bytes,
    prefetch,
    smaller,
    store,
    store_first,
    vector,
)

# Scratch memory after the accumulators: configuration, emulated tile registers, first sums.
STATE = 8192
FIRST = STATE + 64 + 8 * 1024
SCRATCH = FIRST + 4 * 64
LINE = vector(I8, 64)
ROWS = 32
COPIES = 1 << 19
"""Bytes for copies: the 9 taps of 256 channels of 14 x 14 pixels. They are in L2, as the weights of a tile are."""


def line_bytes(k: int) -> int:
    """Bytes of the copy of a row of `k`: an odd multiple of 64, for the sets of L1."""
    return 64 * (-(-k // 64) | 1)


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

        return types.void(types.uintp, types.intp), codegen

    return setup


def _numbers(row_tiles: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Give the tile registers of the accumulators [row][column], the activations [row] and the weights."""
    if row_tiles == 2:
        return [[0, 1], [2, 3]], [4, 5], [6, 7]
    return [[0, 1, 2, 3]], [4], [5, 6, 7]


Step = tuple[list[Any], list[Any], Any]
"""64 bytes of k: of each tile of rows the address and the bytes between rows, and the step's number."""


class _Rows:
    """Activations in rows of f.k bytes, f.stride apart; the last f.k % 64 are copied, 64 bytes apart."""

    def __init__(self, b: Any, f: Frame) -> None:
        self.b, self.f = b, f
        self.steps, self.tail = b.ashr(f.k, c64(6)), b.and_(f.k, c64(63))
        self.all_steps = b.ashr(at(b, f.k, 63), c64(6))
        self.copies = load(b, at(b, f.address, 8 * COPIES_AT), I64, 8)
        self.panel = b.shl(b.ashr(at(b, f.k, 3), c64(2)), c64(6))  # bytes

    def copy(self) -> None:
        """Emit the copies."""
        b, f = self.b, self.f
        with b.if_then(b.icmp_signed(">", self.tail, c64(0))), Loop(b, f.rows) as row:
            last = at(b, f.a, b.mul(row.k, f.stride), b.sub(f.k, self.tail))
            store(b, load_bytes(b, last, self.tail), at(b, self.copies, b.mul(row.k, c64(64))))

    def each(self, used: int) -> Iterator[Step]:
        """Emit the loop over steps of `used` tiles of rows."""
        b, f = self.b, self.f
        rows = [at(b, f.a, b.mul(f.stride, c64(16 * r))) for r in range(used)]
        with Loop(b, self.steps) as loop:
            yield [at(b, x, b.mul(loop.k, c64(64))) for x in rows], [f.stride] * used, loop.k
        with b.if_then(b.icmp_signed(">", self.tail, c64(0))):
            # weights past the panel's end are some other memory of the packed buffer, times zeros
            yield [at(b, self.copies, 1024 * r) for r in range(used)], [c64(64)] * used, self.steps


class _Pixels:
    """Activations in windows. Copies of rows have their taps at multiples of 4 bytes, as packed weights have them.

    Taps of multiples of 64 bytes are loaded where 16 rows lie evenly, and copied where not (borders, line ends); others
    are copied all, so that they share steps. A line of copies has `line_bytes`.
    """

    def __init__(self, b: Any, f: Frame) -> None:
        self.b, self.f, self.window = b, f, Window(b, f)
        self.taps = b.mul(self.window.outer, self.window.inner)
        self.tap_bytes = b.and_(at(b, f.k, 3), c64(-4))
        total = b.mul(self.tap_bytes, self.taps)
        self.all_steps, self.panel = b.ashr(at(b, total, 63), c64(6)), b.shl(total, c64(4))
        self.dense = b.icmp_signed("!=", b.and_(f.k, c64(63)), c64(0))
        self.line = b.shl(b.or_(self.all_steps, c64(1)), c64(6))
        self.copies = load(b, at(b, f.address, 8 * COPIES_AT), I64, 8)

    def _run(self, tap: Any, r: Any) -> tuple[Any, Any]:
        """Where the pixels of tile `r` of rows start at a tap, and whether they are loaded from there."""
        b = self.b
        run = load(b, at(b, self.f.runs, b.mul(b.add(b.mul(self.taps, r), tap), c64(8))), I64, 8)
        return run, b.and_(b.not_(self.dense), b.icmp_signed(">=", run, c64(0)))

    def copy(self) -> None:
        """Emit the copies."""
        b, f, window = self.b, self.f, self.window
        whole, tail = b.ashr(f.k, c64(6)), b.and_(f.k, c64(63))
        done = b.shl(whole, c64(6))
        with b.if_then(self.dense), Loop(b, f.rows) as row:  # what lies behind the last tap
            end = at(b, self.copies, b.mul(row.k, self.line), b.shl(self.all_steps, c64(6)))
            store(b, filled(LINE, 0), at(b, end, -64))
        with Loop(b, window.outer) as outer, Loop(b, window.inner) as inner, \
                Loop(b, b.ashr(at(b, f.rows, 15), c64(4))) as r:
            tap, first = b.add(b.mul(outer.k, window.inner), inner.k), b.shl(r.k, c64(4))
            with b.if_then(b.not_(self._run(tap, r.k)[1])), \
                    Loop(b, smaller(b, b.sub(f.rows, first), c64(16))) as row:
                number = b.add(first, row.k)
                source = window.address(number, outer.k, inner.k)
                target = at(b, self.copies, b.mul(number, self.line), b.mul(tap, self.tap_bytes))
                with Loop(b, whole) as part:
                    place = b.shl(part.k, c64(6))
                    store(b, load(b, at(b, source, place), LINE), at(b, target, place))
                with b.if_then(self.dense):
                    store_first(b, load_bytes(b, at(b, source, done), tail), at(b, target, done), tail)

    def each(self, used: int) -> Iterator[Step]:
        """Emit the loops over taps and their steps, or over all steps."""
        b, f = self.b, self.f
        taps = b.select(self.dense, c64(1), self.taps)
        steps = b.select(self.dense, self.all_steps, b.ashr(f.k, c64(6)))
        apart = load(b, at(b, f.stride, load(b, at(b, f.stride, 8 * MORE), I64, 8)), I64, 8)
        with Loop(b, taps) as tap:
            rows, strides = [], []
            for r in range(used):
                run, even = self._run(tap.k, c64(r))
                copied = at(b, self.copies, b.mul(self.line, c64(16 * r)), b.mul(tap.k, f.k))
                rows.append(b.select(even, at(b, f.a, run), copied))
                strides.append(b.select(even, apart, self.line))
            with Loop(b, steps) as loop:
                number = b.add(b.mul(tap.k, steps), loop.k)
                yield [at(b, x, b.mul(loop.k, c64(64))) for x in rows], strides, number


def amx_tile(row_tiles: int, panels: int, a_dtype: str, emulated: bool, reading: str = "rows") -> Any:
    """Make the tile intrinsic of 16 * `row_tiles` x 16 * `panels` outputs; `amx_setup` for its rows must have run."""
    sums_of, a_of, w_of = _numbers(row_tiles)
    signed, width = a_dtype == "s8", len(sums_of[0])

    def accumulate(b: Any, f: Frame, source: _Rows | _Pixels, used: int) -> None:
        tiles = Tiles(b, at(b, f.acc, STATE), emulated)
        ahead, pace = (load(b, at(b, f.address, 8 * (AHEAD_AT + n)), I64, 8) for n in range(2))
        passes = [range(first, min(first + width, panels)) for first in range(0, panels, width)]
        fetched = b.mul(pace, c64(16 // len(passes)))  # bytes that a step of a pass brings in, of 16 groups
        lines = b.ashr(at(b, fetched, 63), c64(6))
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
            for a, lda, step in source.each(used):
                bring = at(b, ahead, b.mul(b.add(step, b.mul(source.all_steps, c64(number))), fetched))
                with Loop(b, lines) as line:
                    prefetch(b, at(b, bring, b.mul(line.k, c64(64))), level=2)
                place = at(b, f.w, b.mul(step, c64(1024)))
                for j in columns:
                    weights = w_of[j % width % len(w_of)]
                    tiles.load(weights, at(b, place, b.mul(source.panel, c64(j))), c64(64))
                    for r in range(used):
                        if j == columns[0]:
                            tiles.load(a_of[r], a[r], lda[r])
                        tiles.dot(sums_of[r][j % width], a_of[r], weights, signed)
            for r in range(used):
                for j in columns:
                    tiles.store(sums_of[r][j % width], at(b, f.acc, 16 * r * 64 * panels + 64 * j), c64(64 * panels))

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            f = Frame.read(b, args[0])
            source = _Rows(b, f) if reading == "rows" else _Pixels(b, f)
            fresh = load(b, at(b, f.address, 8 * (COPIES_AT + 1)), I64, 8)
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
