"""Depthwise convolutions of u8 and s8 by vpdpbusd, which adds four taps of a column of the window to a 32-bit lane.

The bytes of four taps of a column are interleaved into vectors of 32-bit lanes, one a channel. Neighbouring output
pixels of a line share columns, whose bytes are interleaved once: with 3 x 3 taps, four pixels take 8 operations for a
vector of outputs, where the pairs of taps of `pairs` take 20. s8 activations are read as x + 128, and their
sums start from -128 * (sum of w).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphq.kernels.depthwise.packing import QUAD, Layout
from graphq.kernels.family.pixels import ADDRESSES, tile_functions, view_frame, view_windows
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import I8, I16, I32, I64, c64, intrinsic
from graphq.kernels.jit.shuffles import repeated
from graphq.kernels.jit.x86 import Loop, at, dot_u8s8, filled, load, shuffle, smaller, store, vector
from graphq.kernels.lanes.vector import vec
from graphq.kernels.matmul.vector import FLIP
from graphq.kernels.operands.windows import WINDOWS, SharedColumns, shared_columns


def column_locator(ko: int, ki: int, columns: SharedColumns) -> Any:
    """Make the function that stores the addresses of the columns that pixels from (outer, inner) on read, line by line.

    The pixels are neighbours of a line.
    """

    @intrinsic
    def locate(_typing: Any, windows: Any, image: Any, outer: Any, inner: Any, addresses: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            windows, image, outer, inner, addresses = args

            def table(name: str, entry: Any) -> Any:
                return at(b, windows, WINDOWS.load(b, windows, name), b.mul(entry, c64(8)))

            pad = at(b, windows, WINDOWS.load(b, windows, "pad_row"))
            down, across = table("outer_table", b.mul(outer, c64(ko))), table("inner_table", b.mul(inner, c64(ki)))
            inners = [load(b, at(b, across, 8 * (p * ki + k)), I64, 8) for _, ((p, k), *_) in columns]
            for a in range(ko):
                line = load(b, at(b, down, 8 * a), I64, 8)
                for n, column in enumerate(inners):
                    offset = b.add(line, column)
                    address = b.select(b.icmp_signed(">=", offset, c64(0)), b.add(image, offset), pad)
                    store(b, address, at(b, addresses, 8 * (a * len(columns) + n)), 8)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), codegen

    return locate


def _interleaved(b: Any, taps: Sequence[Any], lanes: int) -> list[Any]:
    """Four vectors of `lanes` channels, a lane with the bytes of four taps, of vectors of bytes as `_loaded`."""
    def unpacked(x: Any, y: Any, bits: int) -> tuple[Any, Any]:
        """The elements of both halves of each 128 bits, in turns."""
        each = 128 // bits
        kind = vector(I8 if bits == 8 else I16, lanes * 32 // bits)
        x, y = b.bitcast(x, kind), b.bitcast(y, kind)
        lower, upper = ([n + of * kind.count for part in range(0, kind.count, each)
                         for n in range(part + half, part + half + each // 2) for of in (0, 1)]
                        for half in (0, each // 2))
        return shuffle(b, x, y, lower), shuffle(b, x, y, upper)

    pairs = [unpacked(x, y, 8) for x, y in (taps[:2], taps[2:])]
    halves = [unpacked(x, y, 16) for x, y in zip(*pairs, strict=True)]
    return [b.bitcast(x, vector(I32, lanes)) for half in halves for x in half]


def quads(dtype: str, lanes: int, ko: int, ki: int, columns: SharedColumns, multiplier: int, emulated: bool) -> Any:
    """Make the intrinsic (addresses, weights, sums, channels, target, step): the sums of output pixels, dense s32.

    Addresses are as `column_locator` stores them, `weights` and `sums` as `depthwise.pack` does; a pixel's sums lie
    `step` bytes after those of the one before.
    """
    size, blocks = QUAD * lanes, -(-ko // QUAD)
    kind, line = vector(I32, lanes), 4 * lanes
    # Unpacking leaves to vector q the dwords 4 * part + q of each 128-bit part: these are made its channels.
    order = [q * (lanes // 4) + part for part in range(lanes // 4) for q in range(QUAD)]
    last = {p: n for n, (_, uses) in enumerate(columns) for p, _ in uses}

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        addresses, weights, sums, channels, target, step = args

        def loaded(a: int, n: int, c: Any) -> Any:
            if a >= ko:
                return filled(kind, 0)
            column = load(b, at(b, addresses, 8 * (a * len(columns) + n)), I64, 8)
            x = load(b, at(b, column, b.udiv(c, c64(multiplier))), vec(I8, size // multiplier))
            x = b.bitcast(repeated(b, x, multiplier, size), kind)
            x = shuffle(b, x, x, order)
            return b.xor(x, filled(kind, FLIP)) if dtype == "s8" else x

        def begin(c: Any) -> list[Any]:
            if dtype == "u8":
                return [filled(kind, 0)] * QUAD
            have = [load(b, at(b, sums, b.mul(c, c64(4)), q * line), kind) for q in range(QUAD)]
            return [b.sub(filled(kind, 0), b.shl(x, filled(kind, 7))) for x in have]

        with Loop(b, b.sdiv(at(b, channels, size - 1), c64(size))) as chunk:
            c = smaller(b, b.mul(chunk.k, c64(size)), b.sub(channels, c64(size)))
            w = at(b, weights, b.mul(chunk.k, c64(ki * blocks * QUAD * line)))
            into, first = at(b, target, b.mul(c, c64(4))), begin(c)
            acc = {p: first for p in last}
            for n, (_, uses) in enumerate(columns):
                for block in range(blocks):
                    x = _interleaved(b, [loaded(QUAD * block + a, n, c) for a in range(QUAD)], lanes)
                    for p, k in uses:
                        factors = [load(b, at(b, w, ((k * blocks + block) * QUAD + q) * line), kind)
                                   for q in range(QUAD)]
                        acc[p] = [dot_u8s8(b, *each, emulated) for each in zip(acc[p], x, factors, strict=True)]
                for p in (p for p, _ in uses if last[p] == n):
                    for q in range(QUAD):
                        store(b, acc[p][q], at(b, into, b.mul(step, c64(p)), q * line))
        return context.get_dummy_value()

    @intrinsic
    def multiply(_typing: Any, addresses: Any, weights: Any, sums: Any, channels: Any, target: Any, step: Any) -> Any:
        return types.void(*[types.intp] * 6), codegen

    return multiply


def quad_tiles(dtype: str, layout: Layout, multiplier: int, emulated: bool) -> Functions:
    """Make the module of tiles of `layout.pixels` pixels of a line, or, at its end, of one."""
    pixels = layout.pixels
    shared, own = (shared_columns(n, layout.ki, layout.stride, layout.dilation) for n in (pixels, 1))
    locate_many, locate_one = (column_locator(layout.ko, layout.ki, x) for x in (shared, own))
    many, one = (quads(dtype, layout.lanes, layout.ko, layout.ki, x, multiplier, emulated) for x in (shared, own))

    @njit
    def fill(frame: int, windows: int, image: int, outer: int, inner: int, left: int, addresses: int,
             target: int) -> int:
        f = view_frame(frame)
        channels, sums, step = f.channels, f.weights, f.stride
        weights = sums + (channels + 15) // 16 * 64
        if left >= pixels and inner + pixels <= view_windows(windows).width:
            locate_many(windows, image, outer, inner, addresses)
            many(addresses, weights, sums, channels, target, step)
            return pixels
        locate_one(windows, image, outer, inner, addresses)
        one(addresses, weights, sums, channels, target, step)
        return 1

    return tile_functions(ADDRESSES, fill)
