"""The kernel of depthwise convolutions of f32, bf16 and f16. Every product is a fused multiply-add.

    acc[i, c] = sum over taps t, in order, of x[window(i, t), c // m] * w[t, c]    as in `float_sums`
    out[i, c] = epilogue(acc[i, c], operands)

m is the number of output channels per input channel. Taps outside of the image read a row of padding.

A tile is a few neighboring pixels of a line times a few vectors of channels. Accumulators stay in registers from the
first product to the epilogue. With sums in memory, as in the loops of `pixels`, 3 x 3 taps took twice as long (Zen 4).

Neighboring pixels read some of the same image columns. A tile therefore computes a run of taps at a time: all taps
along a line of the window, or a single tap (see `choose`). It loads each column and each weight of a run once. 8 pixels
with 3 x 3 taps and stride 1 take 39 loads for 72 products. The last tile of a line can overlap the tile before it; both
write the same bytes there.

Weights are widened to f32 and packed as [chunk][tap][channels of a chunk]. A chunk has the channels of a tile. The last
chunk can overlap the chunk before it. If there are fewer channels than in one chunk, masked instructions read and write
them.

An output row has all channels of one pixel. A batch element has `rows` output rows, a multiple of a line's length. Row
i of batch element b is pixel b * rows + i, counted over all images.
"""
from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from graphq.base.sizes import is_open, largest, later, recorded
from graphq.kernels.depthwise.packing import chunk_starts, pixels_within
from graphq.kernels.jit import Loop, block_module, lasting_empty, load_first
from graphq.kernels.jit.intrinsics import Record, repeated, stack_memory
from graphq.kernels.jit.values import F32, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.lanes.epilogue_code import emitter_of
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.lanes.vector import STORAGE_IR, widen
from graphq.kernels.numbers.float_sums import BLOCK
from graphq.kernels.operands.windows import INVALID, MOST_TAPS, WINDOWS, SharedColumns, Windows, shared_columns
from graphq.kernels.pixels.blocks import Pixels
from graphq.plan.plan import Step, Target, plan_rows

ACCUMULATORS = 8
"""The accumulator registers of a tile: enough to hide the latency of a multiply-add, but few enough for AVX2."""
LONGEST_RUN = 8
LINE = 8
"""The number of column addresses that are computed at once, as one vector."""
ROOMS = 4096, 8 * MOST_TAPS * LINE
"""Bytes of stack for the addresses of a tile's columns. The first size suffices for most windows, the other for all."""
TILES = Record("images", "windows", "weights", "image_bytes", "tiles", "across", "each", "m", "channels")
"""The argument block. The number of tiles is `tiles` in total, `across` per line, and `each` per block.

The caller fills in the addresses of the images, the weights, and a WINDOWS block that contains the result of `table`.
"""


@recorded("depthwise.Tile")
class Tile(NamedTuple):
    """The shape of a tile: `pixels` neighboring pixels of a line times `vectors` vectors of `width` channels.

    A run has `run` taps. `stride` and `dilation` are the windows' stride and dilation along a line.
    """

    pixels: int
    vectors: int
    width: int
    run: int
    stride: int
    dilation: int

    @property
    def chunk(self) -> int:
        """The number of channels of a tile."""
        return self.vectors * self.width

    @property
    def columns(self) -> SharedColumns:
        """The image columns that the tile's pixels read for one run. Shared columns are listed once."""
        return shared_columns(self.pixels, self.run, self.stride, self.dilation)

    @property
    def lines(self) -> int:
        """The number of vectors that the addresses of a run's columns fill; a vector holds LINE addresses."""
        return -(-len(self.columns) // LINE)


def choose(channels: int, windows: Windows, stride: int, dilation: int, lanes: int, *,
           transposed: bool = False) -> Tile:
    """Choose the tile for `channels` output channels. `stride` and `dilation` are the windows' values along a line.

    In `transposed` convolutions, neighboring pixels share no columns, so a run has one tap.
    """
    ow, taps = windows.outputs[-1], windows.kernel[-1]
    width = 8 if channels <= 8 <= lanes else lanes
    pixels = pixels_within(ow, ACCUMULATORS) if is_open(ow) else max(1, -(-ow // max(1, -(-ow // ACCUMULATORS))))
    run = taps if taps <= LONGEST_RUN and windows.taps <= BLOCK and not transposed else 1
    return Tile(pixels, max(1, min(ACCUMULATORS // pixels, channels // width)), width, run, stride, dilation)


def table(windows: Windows, tile: Tile) -> np.ndarray:
    """The byte offsets of the columns that tiles read, int64 [tiles in a line, runs, lines * LINE]."""
    return later(_table, windows.inner, tile)


@recorded("depthwise.table")
def _table(inner: np.ndarray, tile: Tile) -> np.ndarray:
    ow, taps = inner.shape
    starts = np.minimum(np.arange(0, ow, tile.pixels), ow - tile.pixels)
    out = np.full((len(starts), taps // tile.run, tile.lines * LINE), INVALID, np.int64)
    for n, (_, ((p, k), *_)) in enumerate(tile.columns):
        out[:, :, n] = inner[starts + p, k::tile.run] if len(starts) else 0
    return out


def packed_bytes(taps: int, channels: int, size: int) -> int:
    """The number of bytes of packed weights, in chunks of `size` channels."""
    return len(chunk_starts(channels, size)) * taps * size * 4


def pack(w: np.ndarray, size: int) -> np.ndarray:
    """Pack float weights [taps, channels] in chunks of `size` channels, as u8 [packed_bytes]."""
    taps, channels = w.shape
    padded = np.zeros((taps, max(channels, size)), np.float32)
    padded[:, :channels] = w
    out = lasting_empty(packed_bytes(taps, channels, size))
    chunks = [padded[:, start:start + size] for start in chunk_starts(channels, size)]
    out.view(np.float32)[:] = np.concatenate(chunks, axis=None) if chunks else ()
    return out


def locate(b: Builder, windows: Value, image: Value, outer: Value, tile: Value, nbytes: Value,
           addresses: Value) -> None:
    """Emit code that stores the addresses of the columns that a tile reads, run by run.

    Columns outside of the image get the address of the padding. `outer` is the index of the tile's line in the image,
    `tile` the tile's index in the line. The stored addresses take `nbytes` bytes.
    """
    ko, outers, pads, more = (WINDOWS.load(windows, x) for x in ("ko", "outer_table", "pad_row", "more"))
    size = nbytes // ko
    starts = windows + outers + outer * ko * 8
    columns = windows + more + tile * size
    pad, base = (windows + pads).splat(LINE), image.splat(LINE)
    with Loop(b, ko) as a:
        start = (starts + a.k * 8).load(I64, 8).splat(LINE)
        into = addresses + a.k * size
        with Loop(b, size // (8 * LINE)) as k:
            here = k.k * (8 * LINE)
            offset = start + (columns + here).load(vector(I64, LINE), 8)
            address = (offset >= 0).select(base + offset, pad)
            address.store(into + here, 8)


def _write_tile(b: Builder, args: Value, batch: Value, i: Value, addresses: Value, runs: Value, weights: Value,
                channels: Value, *, result: Epilogue, dtype: str, tile: Tile, few: int, multiplier: int) -> None:
    """Emit the outputs of the tile at row i, using the addresses stored by `locate`.

    `few` is the number of channels if it is less than a chunk, otherwise 0.
    """
    pixels, vectors, width, size = tile.pixels, tile.vectors, tile.width, tile.chunk
    item, kind, loaded = STORAGE[dtype].itemsize, vector(F32, width), max(1, width // multiplier)
    stored = vector(STORAGE_IR[dtype], loaded)
    zeros = [constant(kind, 0.0)] * (pixels * vectors)
    def activations(column: Value, c: Value) -> Value:
        address = column + c.udiv(multiplier) * item
        if few:
            bits = load_first(address, b.value(I64, few // multiplier), ir.VectorType(ir.IntType(8 * item), loaded))
            x = widen(b, bits.as_type(stored), dtype, loaded)
        else:
            x = widen(b, address.load(stored), dtype, loaded)
        return repeated(x, multiplier, width)

    def multiply(run: Value, c: Value, w: Value, sums: list[Value]) -> list[Value]:
        first = w + run * (4 * size * tile.run)
        factors = [(first + 4 * width * n).load(kind) for n in range(tile.run * vectors)]
        line, out = addresses + run * (8 * LINE * tile.lines), list(sums)
        for n, (_, uses) in enumerate(tile.columns):  # in ascending order, so each pixel adds its taps in order
            column = (line + 8 * n).load(I64, 8)
            for v in range(vectors):
                x = activations(column, c + v * width)
                for p, k in uses:
                    one = p * vectors + v
                    out[one] = x.math("fma", factors[k * vectors + v], out[one])
        return out

    def total(c: Value, w: Value) -> list[Value]:
        """Add up chains of at most BLOCK products each, from +0."""
        with Loop(b, (runs + (BLOCK // tile.run - 1)) // (BLOCK // tile.run), zeros) as blocks:
            first = blocks.k * (BLOCK // tile.run)
            with Loop(b, smaller(runs - first, BLOCK // tile.run), zeros) as chain:
                chain.update(multiply(first + chain.k, c, w, chain.values))
            blocks.update([x + y for x, y in zip(blocks.values, chain.values, strict=True)])
        return blocks.values

    left = b.value(I64, few) if few else None
    with Loop(b, c64(1) if few else (channels + (size - 1)) // size) as chunk:
        c = b.value(I64, 0) if few else smaller(chunk.k * size, channels - size)
        sums = total(c, weights + runs * (4 * size * tile.run) * chunk.k)
        rows = [sums[p * vectors:(p + 1) * vectors] for p in range(pixels)]
        emitter_of(b, result, width, (args, batch, i, c)).emit_registers(rows, left)


@partial(block_module, speed=3)
def depthwise_blocks(b: Builder, args: Value, index: Value, *, epilogue: Epilogue, dtype: str, tile: Tile, few: int,
                     multiplier: int, room: int) -> None:
    """Compute tiles. `room` bytes of stack are reserved for the addresses of a tile's columns."""
    images, windows, weights, image_bytes, tiles, across, each, m, channels = (TILES.load(args, x) for x in (
        "images", "windows", "weights", "image_bytes", "tiles", "across", "each", "m", "channels"))
    ow, outers, ko, ki = (WINDOWS.load(windows, x) for x in ("width", "height", "ko", "ki"))
    runs, addresses, begin = ko * ki.udiv(tile.run), stack_memory(b, room), index * each
    with Loop(b, smaller(begin + each, tiles) - begin) as loop:
        k = begin + loop.k
        line, column = k.udiv(across), k.urem(across)
        pixel = line * ow + smaller(column * tile.pixels, ow - tile.pixels)
        image = images + line.udiv(outers) * image_bytes
        locate(b, windows, image, line.urem(outers), column, runs * (tile.lines * LINE * 8), addresses)
        _write_tile(b, args, pixel.udiv(m), pixel.urem(m), addresses, runs, weights, channels, result=epilogue,
                    dtype=dtype, tile=tile, few=few, multiplier=multiplier)


def plan_depthwise(epilogue: Epilogue, x: Pixels, tile: Tile, target: Target) -> Step:
    """Plan a float depthwise convolution that `packing.fits` accepts. The caller fills in the addresses of TILES."""
    dtype, windows, channels = x.dtype, x.windows, x.channels
    ow, taps, line = windows.outputs[-1], windows.taps, tile.lines * LINE * 8
    room = next(x for x in ROOMS if x >= taps // tile.run * line)
    few = channels if channels < tile.chunk else 0
    across = -(-ow // tile.pixels)
    tiles = across * (x.batch * x.m // largest(1, ow))
    words = {"image_bytes": windows.image_bytes, "tiles": tiles, "across": across, "m": x.m, "channels": channels}
    step = plan_rows(depthwise_blocks, TILES, words, target, rows=tiles,
                     cycles=50 + tile.pixels * -(-channels // tile.width) * (taps + 8),
                     of=(epilogue, dtype, tile, few, x.multiplier, room), name=f"depthwise_{dtype}_{target.level.name}")
    return step._replace(macs=x.products)
