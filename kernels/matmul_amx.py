"""Tiles of the integer matmul on AMX: tdpbusd / tdpbssd on tile registers of 16 rows x 64 bytes.

A tile is 32 x 32 outputs (2 x 2 accumulators, 2 tiles of activations, 2 of weights) or 16 x 64 for few rows (1 x 4).
Activations are read where they lie; the last k % 64 of each row go through a zero-padded copy, and so do the rows of a
window that do not lie evenly. Rows at the edge are a matter of the tile configuration, which `amx_setup` loads once for
all tiles with as many rows.

s8 activations use tdpbssd. sum (a + 128) * w = sum a * w + 128 * sum w, so the accumulators start from the column sums.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphq.kernels.intrinsics import I8, I64, c64
from graphq.kernels.jit import intrinsic, types
from graphq.kernels.tile_frame import Frame, Window, frame_signature
from graphq.kernels.windows import MORE
from graphq.kernels.x86 import S32X16, Loop, Tiles, at, filled, load, load_bytes, smaller, store, vector

# Scratch memory after the accumulators: configuration, emulated tile registers, 64 bytes of k of 32 rows, first sums.
STATE = 4096
COPY = STATE + 64 + 8 * 1024
FIRST = COPY + 32 * 64
SCRATCH = FIRST + 4 * 64


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


def amx_tile(row_tiles: int, panels: int, a_dtype: str, emulated: bool, reading: str = "rows") -> Any:
    """Make the tile intrinsic of 16 * `row_tiles` x 16 * `panels` outputs; `amx_setup` for its rows must have run."""
    sums_of, a_of, w_of = _numbers(row_tiles)
    signed = a_dtype == "s8"

    def multiply(b: Any, tiles: Tiles, used: int, a: list[Any], lda: list[Any], w: list[Any]) -> None:
        for j in range(panels):
            weights = w_of[j % len(w_of)]
            tiles.load(weights, w[j], c64(64))
            for r in range(used):
                if j == 0:
                    tiles.load(a_of[r], a[r], lda[r])
                tiles.dot(sums_of[r][j], a_of[r], weights, signed)

    def copied(b: Any, f: Frame, r: int, address: Callable[[Any], Any], length: Any) -> Any:
        """Copy `length` (at most 64) bytes of 16 rows from row 16 * r on, zeros after them; the copies' address."""
        copy = at(b, f.acc, COPY + 1024 * r)
        with Loop(b, smaller(b, b.sub(f.rows, c64(16 * r)), c64(16))) as loop:
            line = load_bytes(b, address(b.add(loop.k, c64(16 * r))), length)
            store(b, line, at(b, copy, b.mul(loop.k, c64(64))))
        return copy

    def from_rows(b: Any, f: Frame, tiles: Tiles, used: int, panel: list[Any]) -> None:
        """Multiply f.k bytes of rows f.stride apart."""
        steps, tail = b.ashr(f.k, c64(6)), b.and_(f.k, c64(63))
        rows = [at(b, f.a, b.mul(f.stride, c64(16 * r))) for r in range(used)]
        with Loop(b, steps) as loop:
            multiply(b, tiles, used, [at(b, x, b.mul(loop.k, c64(64))) for x in rows], [f.stride] * used,
                     [at(b, x, b.mul(loop.k, c64(1024))) for x in panel])
        with b.if_then(b.icmp_signed(">", tail, c64(0))):
            source = at(b, f.a, b.mul(steps, c64(64)))
            # weights past the panel's end are some other memory of the packed buffer, times these zeros
            copies = [copied(b, f, r, lambda i: at(b, source, b.mul(i, f.stride)), tail) for r in range(used)]
            multiply(b, tiles, used, copies, [c64(64)] * used, [at(b, x, b.mul(steps, c64(1024))) for x in panel])

    def from_window(b: Any, f: Frame, tiles: Tiles, used: int, window: Window, outer: Any, inner: Any,
                    panel: list[Any]) -> None:
        """Multiply one tap: 16 rows that lie evenly are a tile load, others (borders, line ends) go through copies.

        So does a last part of fewer than 64 channels.
        """
        tap = b.mul(b.add(b.mul(outer, window.inner), inner), c64(8))
        taps = b.mul(b.mul(window.outer, window.inner), c64(8))
        runs = [load(b, at(b, f.runs, tap, b.mul(taps, c64(r))), I64, 8) for r in range(used)]
        step = load(b, at(b, f.stride, load(b, at(b, f.stride, 8 * MORE), I64, 8)), I64, 8)
        with Loop(b, b.ashr(at(b, f.k, 63), c64(6))) as loop:
            done = b.mul(loop.k, c64(64))
            length = smaller(b, b.sub(f.k, done), c64(64))
            whole = b.icmp_signed("==", length, c64(64))
            a, lda = [], []
            for r, run in enumerate(runs):
                even = b.and_(whole, b.icmp_signed(">=", run, c64(0)))
                with b.if_then(b.not_(even)):
                    copied(b, f, r, lambda i: at(b, window.address(i, outer, inner), done), length)
                a.append(b.select(even, at(b, f.a, run, done), at(b, f.acc, COPY + 1024 * r)))
                lda.append(b.select(even, step, c64(64)))
            multiply(b, tiles, used, a, lda, [at(b, x, b.mul(loop.k, c64(1024))) for x in panel])

    def accumulate(b: Any, f: Frame, used: int) -> None:
        tiles = Tiles(b, at(b, f.acc, STATE), emulated)
        line = b.shl(b.ashr(at(b, f.k, 3), c64(2)), c64(6))  # bytes of a panel's k
        for j in range(panels):
            if signed:
                first = at(b, f.acc, FIRST + 64 * j)
                store(b, b.shl(load(b, at(b, f.sums, 64 * j), S32X16), filled(S32X16, 7)), first)
            for r in range(used):
                if signed:
                    tiles.load(sums_of[r][j], first, c64(0))
                else:
                    tiles.zero(sums_of[r][j])
        if reading == "rows":
            panel = [at(b, f.w, b.mul(line, c64(j))) for j in range(panels)]
            from_rows(b, f, tiles, used, panel)
        else:
            window = Window(b, f)
            stride = b.mul(line, b.mul(window.outer, window.inner))
            with Loop(b, window.outer) as outer, Loop(b, window.inner) as inner:
                tap = b.add(b.mul(outer.k, window.inner), inner.k)
                panel = [at(b, f.w, b.mul(tap, line), b.mul(stride, c64(j))) for j in range(panels)]
                from_window(b, f, tiles, used, window, outer.k, inner.k, panel)
        for r in range(used):
            for j in range(panels):
                tiles.store(sums_of[r][j], at(b, f.acc, 16 * r * 64 * panels + 64 * j), c64(64 * panels))

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            f = Frame.read(b, args[0])
            if row_tiles == 1:
                accumulate(b, f, 1)
                return context.get_dummy_value()
            with b.if_else(b.icmp_signed(">", f.rows, c64(16))) as (both, one):
                with both:
                    accumulate(b, f, 2)
                with one:
                    accumulate(b, f, 1)
            return context.get_dummy_value()

        return frame_signature(), codegen

    return tile
