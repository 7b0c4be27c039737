"""Tiles of the integer matmul on AMX: tdpbusd / tdpbssd on tile registers of 16 rows x 64 bytes.

A tile is 32 x 32 outputs (2 x 2 accumulators, 2 tiles of activations, 2 of weights) or 16 x 64 for few rows (1 x 4).
Activations are read where they lie; the last k % 64 of each row go through a zero-padded copy. Rows at the edge are a
matter of the tile configuration, which `amx_setup` loads once for all tiles with as many rows.

s8 activations use tdpbssd. sum (a + 128) * w = sum a * w + 128 * sum w, so the accumulators start from the column sums.
"""
from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from graphq.kernels.intrinsics import I8, I64, c64
from graphq.kernels.matmul_vector import FRAME, frame
from graphq.kernels.x86 import S32X16, Loop, Tiles, at, filled, load, load_bytes, smaller, store, vector

# Scratch memory after the accumulators: configuration, emulated tile registers, the last k of 32 rows, first sums.
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
            state = at(b, frame(b, args[0])[-1], STATE)
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


def amx_tile(row_tiles: int, panels: int, a_dtype: str, emulated: bool) -> Any:
    """Make the tile intrinsic of 16 * `row_tiles` x 16 * `panels` outputs; `amx_setup` for its rows must have run."""
    sums_of, a_of, w_of = _numbers(row_tiles)
    signed = a_dtype == "s8"

    def multiply(b: Any, tiles: Tiles, used: int, a: list[Any], lda: Any, w: list[Any]) -> None:
        for j in range(panels):
            weights = w_of[j % len(w_of)]
            tiles.load(weights, w[j], c64(64))
            for r in range(used):
                if j == 0:
                    tiles.load(a_of[r], a[r], lda)
                tiles.dot(sums_of[r][j], a_of[r], weights, signed)

    def accumulate(b: Any, used: int, args: Any) -> None:
        a, lda, w, k, m, sums, acc = args
        tiles = Tiles(b, at(b, acc, STATE), emulated)
        stride = b.shl(b.ashr(at(b, k, 3), c64(2)), c64(6))  # bytes of a panel
        for j in range(panels):
            if signed:
                first = at(b, acc, FIRST + 64 * j)
                store(b, b.shl(load(b, at(b, sums, 64 * j), S32X16), filled(S32X16, 7)), first)
            for r in range(used):
                if signed:
                    tiles.load(sums_of[r][j], first, c64(0))
                else:
                    tiles.zero(sums_of[r][j])
        panel = [at(b, w, b.mul(stride, c64(j))) for j in range(panels)]
        row = [at(b, a, b.mul(lda, c64(16 * r))) for r in range(used)]
        steps, tail = b.ashr(k, c64(6)), b.and_(k, c64(63))
        with Loop(b, steps) as loop:
            multiply(b, tiles, used, [at(b, x, b.mul(loop.k, c64(64))) for x in row], lda,
                     [at(b, x, b.mul(loop.k, c64(1024))) for x in panel])
        with b.if_then(b.icmp_signed(">", tail, c64(0))):
            source, copy = at(b, a, b.mul(steps, c64(64))), at(b, acc, COPY)
            with Loop(b, m) as loop:
                line = load_bytes(b, at(b, source, b.mul(loop.k, lda)), tail)
                store(b, line, at(b, copy, b.mul(loop.k, c64(64))))
            # weights past the panel's end are some other memory of the packed buffer, times these zeros
            multiply(b, tiles, used, [at(b, copy, 1024 * r) for r in range(used)], c64(64),
                     [at(b, x, b.mul(steps, c64(1024))) for x in panel])
        for r in range(used):
            for j in range(panels):
                tiles.store(sums_of[r][j], at(b, acc, 16 * r * 64 * panels + 64 * j), c64(64 * panels))

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            args = frame(b, args[0])
            if row_tiles == 1:
                accumulate(b, 1, args)
                return context.get_dummy_value()
            with b.if_else(b.icmp_signed(">", args[4], c64(16))) as (both, one):
                with both:
                    accumulate(b, 2, args)
                with one:
                    accumulate(b, 1, args)
            return context.get_dummy_value()

        return FRAME, codegen

    return tile
