"""Depthwise convolutions of u8 and s8: every output channel sums products over the taps of one input channel.

    R[i, c] = sum over taps t of x[window(i, t), c // m] * w[t, c]   exact, s32; padding reads the pad row
    out[i, c] = Store(R[i, c], operands)

m, the multiplier, is how many output channels read an input channel; a vector of c repeats each of the c // m it loads.

Pairs of taps are interleaved as bytes, widened to 16 bits, and vpmaddwd sums two taps a lane: w is s16 (s8 or u8 less a
zero point), and nothing needs a shift. Where w is known to be s8 and the CPU has vpdpbusd, four taps of a column of the
window share a lane (`depthwise_vnni`). Weights are packed as the vectors meet them:

    column sums   s32 [channels padded to 16]
    chunks        s16 [chunk][pair of taps][half][lane][2], or s8 [chunk][four taps][quarter][lane][4]

A chunk is two vectors of channels, or four. The last one overlaps the one before where channels do not fill it;
channels fewer than a chunk are read masked. At the scalar level a chunk is one channel, and loops are plain.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from graphq.kernels.family.pixels import CHANNELS, UNROLLED, load_tile, plan_pixels, unrolled
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import I8, I16, I32, I64, c64, intrinsic, splat, store_s64, word
from graphq.kernels.jit.isa import Level, is_emulated
from graphq.kernels.jit.memory import aligned_empty
from graphq.kernels.jit.registry import Step
from graphq.kernels.jit.x86 import Loop, at, filled, load, load_bytes, madd16, shuffle, smaller, store, vector
from graphq.kernels.lanes.stores import Store
from graphq.kernels.lanes.vector import constant, vec
from graphq.kernels.operands.windows import KI, KO, MOST_TAPS, Windows, tap_addresses

MULTIPLIERS = (1, 2, 4, 8)
"""What divides every chunk and vector of channels."""
ADDRESSES = 8 * (MOST_TAPS + 1)

_IMPORTS = "from graphq.kernels.conv.depthwise import ADDRESSES, depthwise"
_BODY = """place(windows, image, outer, inner, 0, taps, addresses)
        multiply(addresses, (taps + 1) // 2, word(frame, 10) + (channels + 15) // 16 * 64, channels, target)"""

_QUADS = """from graphq.kernels.conv.depthwise import ADDRESSES
from graphq.kernels.conv.depthwise_vnni import column_placer, quads
from graphq.kernels.operands.windows import shared_columns"""
_QUADS_SETUP = """MANY = {layout.pixels}
shared, own = (shared_columns(n, {layout.ki}, {layout.stride}, {layout.dilation}) for n in (MANY, 1))
place_many, place_one = (column_placer({layout.ko}, {layout.ki}, x) for x in (shared, own))
many, one = (quads({dtype!r}, {layout.lanes}, {layout.ko}, {layout.ki}, x, {multiplier}, {emulated})
             for x in (shared, own))"""
_QUADS_BODY = """sums = word(frame, 10)
        weights = sums + (channels + 15) // 16 * 64
        if r + MANY <= rows and inner + MANY <= ow:
            count = MANY
            place_many(windows, image, outer, inner, addresses)
            many(addresses, weights, sums, channels, target, step)
        else:
            place_one(windows, image, outer, inner, addresses)
            one(addresses, weights, sums, channels, target, step)"""

PAIR, QUAD = 2, 4


class Layout(NamedTuple):
    """How weights of ko x ki taps are packed, for vectors of `lanes` s32: in pairs of taps, or fours of a column.

    Fours of taps are for tiles of so many output `pixels` of a line, whose windows move by `stride`; 0: pairs.
    """

    lanes: int
    ko: int
    ki: int
    pixels: int = 0
    stride: int = 1
    dilation: int = 1

    @property
    def group(self) -> int:
        """The taps of a lane."""
        return QUAD if self.pixels else PAIR

    @property
    def size(self) -> int:
        """The channels of a chunk."""
        return self.group * self.lanes if self.lanes > 1 else 1

    @property
    def item(self) -> int:
        """Bytes of a weight."""
        return 4 // self.group

    @property
    def order(self) -> np.ndarray:
        """The channel of a chunk that each lane holds, [vector, lane]: of pairs vpunpcklbw's order within 128 bits."""
        if self.pixels or self.lanes == 1:
            return np.arange(self.size).reshape(-1, self.lanes)
        lane = np.arange(self.lanes)
        return np.stack([lane // 8 * 16 + lane % 8 + 8 * half for half in range(2)])

    @property
    def taps(self) -> np.ndarray:
        """The numbers of taps, row-major, [groups, taps of a lane]; ko * ki where there is none."""
        numbers, none = np.arange(self.ko * self.ki), self.ko * self.ki
        if not self.pixels:
            return np.append(numbers, np.full(none % PAIR, none)).reshape(-1, PAIR)
        columns = np.full((self.ki, -(-self.ko // QUAD) * QUAD), none)
        columns[:, :self.ko] = numbers.reshape(self.ko, self.ki).T
        return columns.reshape(-1, QUAD)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's weights."""
        return len(self.taps) * 4 * self.size

    def offsets(self) -> np.ndarray:
        """Where in a chunk the weight of each tap lies that its first lane has, in bytes, int64."""
        out = np.zeros(self.ko * self.ki + 1, np.int64)
        groups, places = np.indices(self.taps.shape)
        out[self.taps] = groups * 4 * self.size + places * self.item
        return out[:-1]


PIXELS = {8: 2, 16: 4}
"""Output pixels of a tile by the level's lanes: the sums of 5 x 5 taps take 8 of 16 registers, or 16 of 32."""
VNNI = {8: "avx_vnni", 16: "avx512_vnni"}
"""The level that has vpdpbusd, by its lanes."""


def choose(channels: int, windows: Windows, weights: np.ndarray | None, level: Level, *, stride: int = 1,
           dilation: int = 1, transposed: bool = False) -> Layout:
    """Choose the layout for so many output channels; `weights` are the factors of the products, if they are known.

    `stride` and `dilation` are those along lines; pixels of `transposed` convolutions share no columns. Fours of taps
    take the widest vectors of which the channels fill four.
    """
    ko, ki = windows.outer.shape[1], windows.inner.shape[1]
    lanes = next((n for n in (16, 8, 4) if n <= level.lanes and QUAD * n <= channels), 0)
    small = weights is not None and weights.size and -128 <= weights.min() and weights.max() <= 127
    if not lanes or not small or windows.taps > UNROLLED or not level.includes(VNNI[level.lanes]):
        return Layout(level.lanes, ko, ki)
    pixels = 1 if transposed else min(PIXELS[level.lanes], len(windows.inner))
    return Layout(lanes, ko, ki, pixels, stride, dilation)


def fits(taps: int, channels: int, multiplier: int) -> bool:
    """Whether the kernel takes so many taps and output channels."""
    return 0 < taps <= MOST_TAPS and channels <= CHANNELS and multiplier in MULTIPLIERS


def _starts(channels: int, size: int) -> list[int]:
    """The first channel of every chunk."""
    return [max(0, min(k, channels - size)) for k in range(0, channels, size)]


def header_bytes(channels: int) -> int:
    """Bytes of the column sums, a multiple of 64."""
    return -(-channels // 16) * 64


def packed_bytes(layout: Layout, channels: int) -> int:
    """Bytes of packed weights."""
    return header_bytes(channels) + len(_starts(channels, layout.size)) * layout.chunk_bytes


def pack(w: np.ndarray, layout: Layout) -> np.ndarray:
    """Pack weights [taps, channels] of at most 16 bits, or 8; u8 [packed_bytes]."""
    taps, channels = w.shape
    if not w.size:
        return aligned_empty(0)
    padded = np.zeros((taps + 1, max(channels, layout.size)), np.int8 if layout.item == 1 else np.int16)
    padded[:taps, :channels] = w
    chunks = np.stack([padded[:, start:start + layout.size] for start in _starts(channels, layout.size)])
    out = aligned_empty(packed_bytes(layout, channels))
    head = header_bytes(channels)
    sums = np.zeros(head // 4, np.int32)
    sums[:channels] = w.sum(axis=0, dtype=np.int64)
    out[:head] = sums.view(np.uint8)
    groups = chunks[:, layout.taps][..., layout.order]  # [chunk, group, taps of a lane, vector, lane]
    out[head:] = np.ascontiguousarray(groups.transpose(0, 1, 3, 4, 2)).reshape(-1).view(np.uint8)
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


def settler(size: int, item: int, half: int) -> Any:
    """Make the function that prepares the literal sum of a channel: the words of `settle.pixels_sum`.

    Chunks have `size` channels and weights of `item` bytes; the lanes of a `half` where it has `Layout.order` of pairs,
    else 0.
    """

    @njit
    def settle(args: int, windows: int, image: int, outer: int, inner: int, addresses: int, words: int, channel: int,
               scale: int) -> None:
        channels, taps = word(args, 6), word(windows, KO) * word(windows, KI)
        tap_addresses(windows, image, outer, inner, 0, taps, addresses)
        chunk = channel // size
        lane = channel - max(0, min(chunk * size, channels - size))
        if half:
            lane = lane % 16 // 8 * half + lane // 16 * 8 + lane % 8
        store_s64(words + 8, taps)
        store_s64(words + 24, word(args, 11) + (channels + 15) // 16 * 64 + chunk * word(args, 12) + lane * 4)
        store_s64(words + 32, item)
        store_s64(words + 40, scale)
        store_s64(words + 48, word(args, 13))
        store_s64(words + 56, 0)

    return settle


def plan_depthwise(store: Store, dtype: str, windows: Windows, layout: Layout, channels: int, batch: int, m: int,
                   level: Level, *, multiplier: int = 1, threads: int = 1, cache: bool = True) -> Step:
    """Plan the depthwise convolution of images of `dtype` to batch * m output pixels, for which `fits` holds.

    `channels` are those of the output. The caller fills in words of `pixels`: IMAGES, WINDOWS, WEIGHTS as `pack` makes
    them, and, where the Store has ties, OFFSETS, those of the layout.
    """
    taps, size = windows.taps, layout.size
    chunks = -(-channels // size)
    if layout.pixels:
        tile = load_tile(f"depthwise_{dtype}", (0, 0), imports=_QUADS, room="ADDRESSES",
                         setup=_QUADS_SETUP.format(layout=layout, dtype=dtype, multiplier=multiplier,
                                                   emulated=is_emulated(VNNI[level.lanes])),
                         body=_QUADS_BODY, cache=cache)
        cycles = 30 + chunks * (20 + 6 * len(layout.taps))
    else:
        ko, ki = unrolled(layout.ko, layout.ki)
        few = channels if channels < size else 0
        emulated = layout.lanes > 1 and is_emulated("avx512" if layout.lanes == 16 else "avx2")
        setup = f"multiply = depthwise({dtype!r}, {layout.lanes}, {ko * ki}, {few}, {emulated}, {multiplier})"
        tile = load_tile(f"depthwise_{dtype}", (ko, ki), imports=_IMPORTS, setup=setup, room="ADDRESSES",
                         body=_BODY, cache=cache)
        cycles = 30 + chunks * (6 + 4 * taps)
    half = 0 if layout.pixels or layout.lanes == 1 else layout.lanes
    settle = f"from graphq.kernels.conv.depthwise import settler\nsettle = settler({size}, {layout.item}, {half})\n"
    return plan_pixels(f"depthwise_{dtype}_{level.name}", store, tile, windows.image_bytes, windows.pixels, channels,
                       batch, m, level, cycles=cycles, whole=True, macs=batch * m * channels * taps, settle=settle,
                       chunk=layout.chunk_bytes, threads=threads, cache=cache)
