"""The tiles of depthwise convolutions of u8 and s8, in pairs or quads of taps (see `packing.py`).

Pairs use sums of two products: the bytes of two taps are interleaved and widened to 16 bits.

Quads use dot products of four: the bytes of four taps of a column are interleaved, so a 32-bit lane has the taps of one
channel. Neighboring output pixels of a line share columns, and each column is interleaved once. For 3 x 3 taps and
tiles of four pixels, a vector of one pixel's outputs takes 8 operations instead of the 20 of pairs. If the instruction
multiplies x + 128 or x - 128 (`products.shift`), sums start from -128 or 128 times the sum of w.
"""
from collections.abc import Sequence
from functools import partial

import numpy as np

from graphq.kernels.depthwise.packing import QUAD, Layout
from graphq.kernels.jit import Functions, Loop, Type, load_bytes
from graphq.kernels.jit.intrinsics import repeated
from graphq.kernels.jit.values import I8, I16, I32, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.operands.windows import WINDOWS, SharedColumns, shared_columns
from graphq.kernels.pixels.blocks import ADDRESSES, Spot, store_taps, tile_functions
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import FLIP, Multiply


def pair_sums(b: Builder, spot: Spot, *, dtype: str, lanes: int, ko: int, ki: int, few: int, how: Multiply,
              multiplier: int) -> int:
    """Emit the s32 sums of one output pixel, chunk by chunk; returns 1, the number of pixels.

    `how` multiplies pairs. If ko and ki are 0, the code handles any window. `few` is the number of channels if it is
    less than a chunk, otherwise 0. The code can write up to a chunk beyond the last channel.
    """
    taps = ko * ki
    layout, pairs = Layout(lanes, 1, taps), -(-taps // 2)
    size, order = layout.size, layout.order
    channels, weights = spot.fields("channels", "weights")
    weights, half_bytes = weights + (((channels + 15) >> 4) << 6), 4 * lanes
    count = (WINDOWS.load(spot.windows, "ko") * WINDOWS.load(spot.windows, "ki") + 1) >> 1
    store_taps(b, spot.windows, spot.image, spot.outer, spot.inner, spot.addresses, ko, ki)
    chunk_bytes = (b.value(I64, pairs) if pairs else count) * (2 * half_bytes)

    def activations(tap: Value, c: Value) -> Value:
        address = (spot.addresses + tap * 8).load(I64, 8) + c.udiv(multiplier)
        n = max(1, size // multiplier)
        x = load_bytes(address, b.value(I64, few // multiplier), n) if few else address.load(vector(I8, n))
        return repeated(x, multiplier, size)

    def widened(x: Value, kind: Type) -> Value:
        return x.zext(kind) if dtype == "u8" else x.sext(kind)

    def pair(k: Value, c: Value, w: Value, sums: list[Value], single: bool = False) -> list[Value]:
        x = activations(k * 2, c)
        y = b.value(vector(I8, size), 0) if single else activations(k * 2 + 1, c)
        address = w + k * (2 * half_bytes)
        out = []
        for half in range(2):
            both = x.shuffle(y, [int(n) for channel in order[half] for n in (channel, channel + size)])
            part = (address + half * half_bytes).load(vector(I16, size))
            out.append(how.dot(b, sums[half], (widened(both, vector(I16, size)),), (part,)))
        return out

    chunks = c64(1) if few else (channels + (size - 1)) // size
    with Loop(b, chunks) as chunk:
        c = b.value(I64, 0) if few else smaller(chunk.k * size, channels - size)
        w = weights + chunk.k * chunk_bytes
        sums = [constant(vector(I32, lanes), 0)] * 2
        for k in range(pairs):
            sums = pair(b.value(I64, k), c, w, sums, single=2 * k + 1 == taps)
        if not pairs:
            with Loop(b, count, sums) as loop:
                loop.update(pair(loop.k, c, w, loop.values))
            sums = loop.values
        into = spot.target + c * 4
        # channels are in `layout.order`; bring them into ascending order
        lane_of = np.argsort(order.ravel()).reshape(2, lanes).tolist()
        for half in range(2):
            sums[0].shuffle(sums[1], lane_of[half]).store(into + half * half_bytes)
    return 1


def pair_tiles(dtype: str, lanes: int, ko: int, ki: int, few: int, level: Level, multiplier: int) -> Functions:
    """Make the module of tiles of one pixel, for ko x ki taps packed in pairs (see `pixels.blocks.unrolled`)."""
    how = level.pairs(lanes, level.emulated, words=True)  # u8 minus a zero point has 9 bits
    return tile_functions(ADDRESSES, partial(pair_sums, dtype=dtype, lanes=lanes, ko=ko, ki=ki, few=few, how=how,
                                             multiplier=multiplier))


def store_columns(spot: Spot, ko: int, ki: int, columns: SharedColumns) -> None:
    """Emit code that stores the addresses of the image columns that a tile's pixels read, starting at `spot`."""
    def table(name: str, entry: Value) -> Value:
        return spot.windows + WINDOWS.load(spot.windows, name) + entry * 8

    pad = spot.windows + WINDOWS.load(spot.windows, "pad_row")
    down, across = table("outer_table", spot.outer * ko), table("inner_table", spot.inner * ki)
    inners = [(across + 8 * (p * ki + k)).load(I64, 8) for _, ((p, k), *_) in columns]
    for a in range(ko):
        line = (down + 8 * a).load(I64, 8)
        for n, column in enumerate(inners):
            offset = line + column
            address = (offset >= 0).select(spot.image + offset, pad)
            address.store(spot.addresses + 8 * (a * len(columns) + n), 8)


def _interleaved(taps: Sequence[Value], lanes: int) -> list[Value]:
    """Interleave the bytes of four taps, four per lane; returns four vectors of `lanes` channels."""
    def unpacked(x: Value, y: Value, bits: int) -> list[Value]:
        """Interleave the elements of `x` and `y` in each 128 bits; returns their low halves, then their high halves."""
        each = 128 // bits
        count = lanes * 32 // bits
        x, y = (v.as_type(vector(I8 if bits == 8 else I16, count)) for v in (x, y))
        lower, upper = ([n + of * count for part in range(0, count, each)
                         for n in range(part + half, part + half + each // 2) for of in (0, 1)]
                        for half in (0, each // 2))
        return [x.shuffle(y, lower), x.shuffle(y, upper)]

    pairs = [unpacked(x, y, 8) for x, y in (taps[:2], taps[2:])]
    halves = [unpacked(x, y, 16) for x, y in zip(*pairs, strict=True)]
    return [x.as_type(vector(I32, lanes)) for half in halves for x in half]


def quads(b: Builder, spot: Spot, *, dtype: str, layout: Layout, pixels: int, multiplier: int, how: Multiply) -> int:
    """Emit the s32 sums of `pixels` neighboring output pixels, chunk by chunk; returns `pixels`.

    Weights and sums are in the order of `packing.pack`. The frame's `stride` is the bytes between pixels' sums.
    """
    lanes, ko, ki = layout.lanes, layout.ko, layout.ki
    columns = shared_columns(pixels, ki, layout.stride, layout.dilation)
    size, blocks, shift = QUAD * lanes, -(-ko // QUAD), how.shift(dtype)
    kind, line = vector(I32, lanes), 4 * lanes
    # Interleaving moves the 32-bit element q of each 128 bits to vector q. Loaded bytes are first shuffled into
    # `order`, so that each vector gets neighboring channels.
    order = [q * (lanes // 4) + part for part in range(lanes // 4) for q in range(QUAD)]
    last = {p: n for n, (_, uses) in enumerate(columns) for p, _ in uses}
    channels, sums, step = spot.fields("channels", "weights", "stride")
    weights = sums + (((channels + 15) >> 4) << 6)
    store_columns(spot, ko, ki, columns)

    def loaded(a: int, n: int, c: Value) -> Value:
        if a >= ko:
            return b.value(kind, 0)
        column = (spot.addresses + 8 * (a * len(columns) + n)).load(I64, 8)
        x = (column + c.udiv(multiplier)).load(vector(I8, size // multiplier))
        x = repeated(x, multiplier, size).as_type(kind)
        x = x.shuffle(x, order)
        return x ^ FLIP if shift else x

    def begin(c: Value) -> list[Value]:
        if not shift:
            return [constant(kind, 0)] * QUAD
        moved = [(sums + c * 4 + q * line).load(kind) << 7 for q in range(QUAD)]
        return [0 - x if shift > 0 else x for x in moved]

    with Loop(b, (channels + (size - 1)) // size) as chunk:
        c = smaller(chunk.k * size, channels - size)
        w = weights + chunk.k * (ki * blocks * QUAD * line)
        into, first = spot.target + c * 4, begin(c)
        acc = {p: first for p in last}
        for n, (_, uses) in enumerate(columns):
            for block in range(blocks):
                x = _interleaved([loaded(QUAD * block + a, n, c) for a in range(QUAD)], lanes)
                for p, k in uses:
                    factors = [(w + ((k * blocks + block) * QUAD + q) * line).load(kind) for q in range(QUAD)]
                    acc[p] = [how.dot(b, acc, (u,), (s,)) for acc, u, s in zip(acc[p], x, factors, strict=True)]
            for p in (p for p, _ in uses if last[p] == n):
                for q in range(QUAD):
                    acc[p][q].store(into + step * p + q * line)
    return pixels


def quad_tiles(dtype: str, layout: Layout, multiplier: int, level: Level) -> Functions:
    """Make the module of tiles with `layout.pixels` neighboring pixels. Ends of lines are computed pixel by pixel."""
    pixels, dot4 = layout.pixels, level.dot4
    assert dot4 is not None
    how = dot4(layout.lanes, level.emulated)
    many, one = (partial(quads, dtype=dtype, layout=layout, pixels=n, multiplier=multiplier, how=how)
                 for n in (pixels, 1))

    def fill(b: Builder, spot: Spot) -> Value:
        fits = (spot.left >= pixels) & (spot.inner + pixels <= WINDOWS.load(spot.windows, "width"))
        with b.if_else(fits) as (then, otherwise):
            with then:
                many(b, spot)
            with otherwise:
                one(b, spot)
        return fits.select(c64(pixels), 1)

    return tile_functions(ADDRESSES, fill)
