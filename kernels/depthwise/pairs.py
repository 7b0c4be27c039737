"""Depthwise convolutions of u8 and s8 by vpmaddwd, which adds two taps to a 32-bit lane.

The bytes of two taps are interleaved and widened to 16 bits; so activations of both types are taken as they are.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.kernels.depthwise.packing import Layout
from graphq.kernels.family.pixels import ADDRESSES, tap_locator, tile_functions, view_frame, view_windows
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import I8, I16, I32, I64, c64, intrinsic
from graphq.kernels.jit.shuffles import repeated
from graphq.kernels.jit.x86 import Loop, at, filled, load, load_bytes, madd16, shuffle, smaller, store, vector
from graphq.kernels.lanes.vector import constant, vec


def pair_sums(dtype: str, lanes: int, taps: int, few: int, emulated: bool, multiplier: int) -> Any:
    """Make the intrinsic (addresses, pairs, weights, channels, target): the sums of one output pixel, dense s32.

    `taps` is their number, 0 for any; the channels are `few` where that is not 0, fewer than a chunk. At the end it may
    write up to a chunk beyond the channels.
    """
    layout, pairs = Layout(lanes, 1, taps), -(-taps // 2)
    size, order = layout.size, layout.order
    halves = len(order)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        addresses, count, weights, channels, target = args
        half_bytes = 4 * lanes
        chunk_bytes = b.mul(c64(pairs) if pairs else count, c64(halves * half_bytes))

        def activations(tap: Any, c: Any) -> Any:
            address = at(b, load(b, at(b, addresses, b.mul(tap, c64(8))), I64, 8), b.udiv(c, c64(multiplier)))
            n = max(1, size // multiplier)
            x = load_bytes(b, address, c64(few // multiplier), n) if few else load(b, address, vec(I8, n))
            return repeated(b, x, multiplier, size)

        def widened(x: Any, kind: Any) -> Any:
            return b.zext(x, kind) if dtype == "u8" else b.sext(x, kind)

        def pair(k: Any, c: Any, w: Any, sums: list[Any], single: bool = False) -> list[Any]:
            x = activations(b.mul(k, c64(2)), c)
            y = constant(I8, 0, size) if single else activations(at(b, b.mul(k, c64(2)), 1), c)
            address = at(b, w, b.mul(k, c64(halves * half_bytes)))
            if lanes == 1:
                products = [b.mul(widened(v, I32), b.sext(load(b, at(b, address, 2 * tap), I16), I32))
                            for tap, v in enumerate((x, y))]
                return [b.add(sums[0], b.add(*products))]
            out = []
            for half in range(2):
                both = shuffle(b, x, y, [int(n) for channel in order[half] for n in (channel, channel + size)])
                part = load(b, at(b, address, half * half_bytes), vector(I16, size))
                out.append(b.add(sums[half], madd16(b, widened(both, vector(I16, size)), part, emulated)))
            return out

        chunks = c64(1) if few else b.sdiv(at(b, channels, size - 1), c64(size))
        with Loop(b, chunks) as chunk:
            c = c64(0) if few else smaller(b, b.mul(chunk.k, c64(size)), b.sub(channels, c64(size)))
            w = at(b, weights, b.mul(chunk.k, chunk_bytes))
            sums = [I32(0)] if lanes == 1 else [filled(vector(I32, lanes), 0)] * 2
            for k in range(pairs):
                sums = pair(c64(k), c, w, sums, single=2 * k + 1 == taps)
            if not pairs:
                with Loop(b, count, sums) as loop:
                    loop.update(pair(loop.k, c, w, loop.values))
                sums = loop.values
            into = at(b, target, b.mul(c, c64(4)))
            if lanes == 1:
                store(b, sums[0], into)
            else:  # from the order of the halves back to that of the channels
                lane_of = np.argsort(order.ravel()).reshape(2, lanes).tolist()
                for half in range(2):
                    store(b, shuffle(b, sums[0], sums[1], lane_of[half]), at(b, into, half * half_bytes))
        return context.get_dummy_value()

    @intrinsic
    def multiply(_typing: Any, addresses: Any, pairs: Any, weights: Any, channels: Any, target: Any) -> Any:
        return types.void(*[types.intp] * 5), codegen

    return multiply


def pair_tiles(dtype: str, lanes: int, ko: int, ki: int, few: int, emulated: bool, multiplier: int) -> Functions:
    """Make the module of tiles of one pixel, in pairs of taps of a ko x ki window (`pixels.unrolled`)."""
    locate, multiply = tap_locator(ko, ki), pair_sums(dtype, lanes, ko * ki, few, emulated, multiplier)

    @njit
    def fill(frame: int, windows: int, image: int, outer: int, inner: int, left: int, addresses: int,
             target: int) -> int:
        f, x = view_frame(frame), view_windows(windows)
        taps, channels, weights = x.ko * x.ki, f.channels, f.weights
        locate(windows, image, outer, inner, 0, taps, addresses)
        multiply(addresses, (taps + 1) // 2, weights + (channels + 15) // 16 * 64, channels, target)
        return 1

    return tile_functions(ADDRESSES, fill)
