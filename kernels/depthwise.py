"""Depthwise convolutions of u8 and s8: every output channel sums products over the taps of one input channel.

    R[i, c] = sum over taps t of x[window(i, t), c // m] * w[t, c]   exact, s32; padding reads the pad row
    out[i, c] = Store(R[i, c], operands)

m, the multiplier, is how many output channels read an input channel; a vector of c repeats each of the c // m it loads.

Pairs of taps are interleaved as bytes, widened to 16 bits, and vpmaddwd sums two taps a lane: w is s16 (s8 or u8 less a
zero point), and nothing needs a shift. Weights are packed as the vectors meet them:

    column sums   s32 [channels padded to 16]
    chunks        s16 [chunk][pair of taps][half][lane][2]

A chunk is two vectors of channels. The last one overlaps the one before where channels do not fill it; channels fewer
than a chunk are read masked. At the scalar level a chunk is one channel, and loops are plain.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.kernels.intrinsics import I8, I16, I32, I64, c64, intrinsic, splat, store_s64, word
from graphq.kernels.isa import Level, is_emulated
from graphq.kernels.jit import njit, types
from graphq.kernels.pack import aligned_empty
from graphq.kernels.pixels import CHANNELS, load_tile, plan_pixels, unrolled
from graphq.kernels.registry import Step
from graphq.kernels.stores import Store
from graphq.kernels.vector import constant, vec
from graphq.kernels.windows import KI, KO, MOST_TAPS, Windows, tap_addresses
from graphq.kernels.x86 import Loop, at, filled, load, load_bytes, madd16, shuffle, smaller, store, vector

MULTIPLIERS = (1, 2, 4, 8)
"""What divides every chunk and vector of channels."""
ADDRESSES = 8 * (MOST_TAPS + 1)

_IMPORTS = "from graphq.kernels.depthwise import ADDRESSES, depthwise"
_BODY = """place(windows, image, outer, inner, 0, taps, addresses)
        multiply(addresses, (taps + 1) // 2, word(frame, 10) + {skip}, channels, target)"""


def fits(taps: int, channels: int, multiplier: int) -> bool:
    """Whether the kernel takes so many taps and output channels."""
    return 0 < taps <= MOST_TAPS and channels <= CHANNELS and multiplier in MULTIPLIERS


def chunk_channels(lanes: int) -> int:
    """Channels of a chunk."""
    return 2 * lanes if lanes > 1 else 1


def _starts(channels: int, lanes: int) -> list[int]:
    """The first channel of every chunk."""
    size = chunk_channels(lanes)
    return [max(0, min(k, channels - size)) for k in range(0, channels, size)]


def _order(lanes: int) -> np.ndarray:
    """The channel that lane l of half h of a chunk holds, [half, lane]: vpunpcklbw's order within 128 bits."""
    if lanes == 1:
        return np.zeros((1, 1), np.int64)
    lane = np.arange(lanes)
    return np.stack([lane // 8 * 16 + lane % 8 + 8 * half for half in range(2)])


def header_bytes(channels: int) -> int:
    """Bytes of the column sums, a multiple of 64."""
    return -(-channels // 16) * 64


def packed_bytes(taps: int, channels: int, lanes: int) -> int:
    """Bytes of packed weights."""
    return header_bytes(channels) + len(_starts(channels, lanes)) * -(-taps // 2) * chunk_channels(lanes) * 4


def pack(w: np.ndarray, lanes: int) -> np.ndarray:
    """Pack weights [taps, channels] of at most 16 bits for vectors of `lanes` s32; u8 [packed_bytes]."""
    taps, channels = w.shape
    if not w.size:
        return aligned_empty(0)
    size, order = chunk_channels(lanes), _order(lanes)
    padded = np.zeros((-(-taps // 2) * 2, max(channels, size)), np.int16)
    padded[:taps, :channels] = w
    chunks = np.stack([padded[:, start:start + size] for start in _starts(channels, lanes)])
    out = aligned_empty(packed_bytes(taps, channels, lanes))
    head = header_bytes(channels)
    sums = np.zeros(head // 4, np.int32)
    sums[:channels] = w.sum(axis=0, dtype=np.int64)
    out[:head] = sums.view(np.uint8)
    pairs = chunks[:, :, order].reshape(len(chunks), -1, 2, *order.shape)  # [chunk, pair, 2, half, lane]
    out[head:] = np.ascontiguousarray(pairs.transpose(0, 1, 3, 4, 2)).reshape(-1).view(np.uint8)
    return out


def repeated(b: Any, x: Any, multiplier: int, lanes: int) -> Any:
    """Emit each lane `multiplier` times, `lanes` in all."""
    if lanes <= multiplier:
        return splat(b, x, lanes)
    return x if multiplier == 1 else shuffle(b, x, x, [k // multiplier for k in range(lanes)])


def depthwise(dtype: str, lanes: int, taps: int, few: int, emulated: bool, multiplier: int) -> Any:
    """Make the intrinsic (addresses, pairs, weights, channels, target): the sums of one output pixel, dense s32.

    `taps` is their number, 0 for any; the channels are `few` where that is not 0, fewer than a chunk. At the end it may
    write up to a chunk beyond the channels.
    """
    size, order, pairs = chunk_channels(lanes), _order(lanes), -(-taps // 2)
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
            place = at(b, w, b.mul(k, c64(halves * half_bytes)))
            if lanes == 1:
                products = [b.mul(widened(v, I32), b.sext(load(b, at(b, place, 2 * tap), I16), I32))
                            for tap, v in enumerate((x, y))]
                return [b.add(sums[0], b.add(*products))]
            out = []
            for half in range(2):
                both = shuffle(b, x, y, [int(n) for channel in order[half] for n in (channel, channel + size)])
                part = load(b, at(b, place, half * half_bytes), vector(I16, size))
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


def settler(lanes: int) -> Any:
    """Make the function that prepares the literal sum of a channel: the words of `settle.pixels_sum`."""
    size = chunk_channels(lanes)

    @njit
    def settle(args: int, windows: int, image: int, outer: int, inner: int, addresses: int, words: int, channel: int,
               scale: int) -> None:
        channels, taps = word(args, 6), word(windows, KO) * word(windows, KI)
        tap_addresses(windows, image, outer, inner, 0, taps, addresses)
        chunk = channel // size
        place = channel - max(0, min(chunk * size, channels - size))
        half, lane = (0, 0) if lanes == 1 else (place % 16 // 8, place // 16 * 8 + place % 8)
        store_s64(words + 8, taps)
        store_s64(words + 24, word(args, 11) + (channels + 15) // 16 * 64 + chunk * word(args, 12)
                  + (half * lanes + lane) * 4)
        store_s64(words + 40, scale)
        store_s64(words + 48, word(args, 13))
        store_s64(words + 56, 0)

    return settle


def plan_depthwise(store: Store, dtype: str, windows: Windows, channels: int, batch: int, m: int, level: Level, *,
                   multiplier: int = 1, threads: int = 1, cache: bool = True) -> Step:
    """Plan the depthwise convolution of images of `dtype` to batch * m output pixels, for which `fits` holds.

    `channels` are those of the output. See `pixels` for the words to fill in; the weights are those of `pack` for the
    level's lanes.
    """
    lanes, taps = level.lanes, windows.taps
    ko, ki = unrolled(windows.outer.shape[1], windows.inner.shape[1])
    size = chunk_channels(lanes)
    few = channels if channels < size else 0
    emulated = lanes > 1 and is_emulated("avx512" if lanes == 16 else "avx2")
    setup = f"multiply = depthwise({dtype!r}, {lanes}, {ko * ki}, {few}, {emulated}, {multiplier})"
    tile = load_tile(f"depthwise_{dtype}", (ko, ki), imports=_IMPORTS, setup=setup, room="ADDRESSES",
                     body=_BODY.format(skip=header_bytes(channels)), cache=cache)
    cycles = 30 + -(-channels // size) * (6 + 4 * taps)
    return plan_pixels(f"depthwise_{dtype}_{level.name}", store, tile, windows.image_bytes, windows.pixels, channels,
                       batch, m, level, cycles=cycles, whole=True, macs=batch * m * channels * taps,
                       settle=f"from graphq.kernels.depthwise import settler\nsettle = settler({lanes})\n",
                       chunk=(-(-taps // 2) * 4 * size, 4 * size), threads=threads, cache=cache)
