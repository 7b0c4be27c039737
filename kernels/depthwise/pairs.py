"""Depthwise convolutions of u8 and s8 by vpmaddwd, which adds the products of two taps into a 32-bit lane.

The bytes of two taps are interleaved and widened to 16 bits, so u8 and s8 activations are both taken as they are.
"""
from __future__ import annotations

import numpy as np

from graphq.kernels.depthwise.packing import Layout
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, emits, njit
from graphq.kernels.jit.shuffles import repeated
from graphq.kernels.jit.values import I8, I16, I32, I64, Builder, Type, Value, c64, constant, smaller, vector
from graphq.kernels.jit.x86 import Loop, load_bytes, madd16
from graphq.kernels.pixels.blocks import ADDRESSES, tap_locator, tile_functions, view_frame, view_windows


def pair_sums(dtype: str, lanes: int, taps: int, few: int, emulated: bool, multiplier: int) -> Intrinsic:
    """Make the function that stores the s32 sums of one output pixel, one channel after another.

    `taps` is the number of taps, or 0 for a function that takes any number. If there are fewer channels than a chunk
    has, `few` is their number, otherwise 0. The function may write up to a chunk beyond the last channel.
    """
    layout, pairs = Layout(lanes, 1, taps), -(-taps // 2)
    size, order = layout.size, layout.order
    halves = len(order)

    @emits
    def multiply(b: Builder, addresses: Value, count: Value, weights: Value, channels: Value, target: Value) -> None:
        half_bytes = 4 * lanes
        chunk_bytes = (b.value(I64, pairs) if pairs else count) * (halves * half_bytes)

        def activations(tap: Value, c: Value) -> Value:
            address = (addresses + tap * 8).load(I64, 8) + c.udiv(multiplier)
            n = max(1, size // multiplier)
            x = load_bytes(address, b.value(I64, few // multiplier), n) if few else address.load(vector(I8, n))
            return repeated(x, multiplier, size)

        def widened(x: Value, kind: Type) -> Value:
            return x.zext(kind) if dtype == "u8" else x.sext(kind)

        def pair(k: Value, c: Value, w: Value, sums: list[Value], single: bool = False) -> list[Value]:
            x = activations(k * 2, c)
            y = b.value(vector(I8, size), 0) if single else activations(k * 2 + 1, c)
            address = w + k * (halves * half_bytes)
            if lanes == 1:
                products = [widened(v, I32) * (address + 2 * tap).load(I16).sext(I32)
                            for tap, v in enumerate((x, y))]
                return [sums[0] + b.add(*products)]
            out = []
            for half in range(2):
                both = x.shuffle(y, [int(n) for channel in order[half] for n in (channel, channel + size)])
                part = (address + half * half_bytes).load(vector(I16, size))
                out.append(sums[half] + madd16(b, widened(both, vector(I16, size)), part, emulated))
            return out

        chunks = c64(1) if few else (channels + (size - 1)) // size
        with Loop(b, chunks) as chunk:
            c = b.value(I64, 0) if few else smaller(chunk.k * size, channels - size)
            w = weights + chunk.k * chunk_bytes
            sums = [constant(vector(I32, lanes), 0)] * min(lanes, 2)
            for k in range(pairs):
                sums = pair(b.value(I64, k), c, w, sums, single=2 * k + 1 == taps)
            if not pairs:
                with Loop(b, count, sums) as loop:
                    loop.update(pair(loop.k, c, w, loop.values))
                sums = loop.values
            into = target + c * 4
            if lanes == 1:
                sums[0].store(into)
            else:  # the interleaved halves are put back into the order of the channels
                lane_of = np.argsort(order.ravel()).reshape(2, lanes).tolist()
                for half in range(2):
                    sums[0].shuffle(sums[1], lane_of[half]).store(into + half * half_bytes)

    return multiply


def pair_tiles(dtype: str, lanes: int, ko: int, ki: int, few: int, emulated: bool, multiplier: int) -> Functions:
    """Make the module of tiles of one pixel with a window of ko x ki taps, packed in pairs (see `pixels.unrolled`)."""
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
