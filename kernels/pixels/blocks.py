"""Kernels that loop over the output pixels of channels-last images: block function, loops of tiles, and plan.

A tile is the output pixels and channels that are computed at once. A tile function computes their 4-byte accumulators,
on the stack. A function of the epilogue (`outputs`) computes the outputs from the accumulators. The block function
calls both. If the epilogue does nothing, the tile function can write the outputs itself.

Row i of batch element b is output pixel b * m + i, counted over all images.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from graphq.base.sizes import is_open, numbers, recorded
from graphq.kernels.jit import Functions, Loop, Module, Operand, emits, modules
from graphq.kernels.jit.intrinsics import SLOT, SLOTS, Record, call_block, load_s64, stack, stack_memory
from graphq.kernels.jit.values import I64, Builder, Value, c64
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.outputs import HEAD, finish, load_outputs, load_second_look
from graphq.kernels.operands.windows import MOST_TAPS, WINDOWS, Windows, store_addresses
from graphq.plan.plan import Step, Target, pieces, threads_for

PIXELS = Record(*HEAD.fields, "images", "windows", "image_bytes", "pixels", "batch", "m", "channels", "each", "width",
                "step", "tile", "weights", "offsets")
"""The argument block. The caller fills in the addresses of images, a WINDOWS block, weights, `terms` and offsets.

    image_bytes, pixels      the bytes and the output pixels of an image
    each, width, step        the rows of a block, the channels of a block, the rows of a tile
    offsets                  the offset of each tap's weights in a chunk, to recompute outputs near rounding ties
"""
FRAME = Record("image", "windows", "image_bytes", "outer", "inner", "rows", "first", "channels", "target", "stride",
               "weights")
"""The argument of a tile function: `rows` pixels from (outer, inner) of the image, `channels` channels from `first`.

The results of a pixel are one row; rows of the target are `stride` bytes apart.
"""
FRAME_BYTES = FRAME.nbytes
SCRATCH = 16384
"""The most bytes of accumulators of a tile."""
CHANNELS = SCRATCH // 4
SLACK = 128
"""The bytes after the accumulators that a tile may overwrite."""
STACK = SCRATCH + SLACK
MOST_ROWS = 512
"""The most rows of a tile."""
UNROLLED = 32
"""The most taps of a window for which specialized code without loops over taps is compiled."""

ADDRESSES = 8 * (MOST_TAPS + 1)
"""The bytes of a list with an address for each tap of an output pixel."""
ENTRIES_BYTES = 8 * (CHANNELS + MOST_ROWS + 1)
"""The bytes of the list of outputs near rounding ties: an entry per vector of a tile, and a spare entry."""


def store_taps(b: Builder, windows: Value, image: Value, outer: Value, inner: Value, addresses: Value, ko: int,
               ki: int) -> None:
    """Emit `store_addresses` without loops, for ko x ki taps; with (0, 0), emit `store_addresses` itself."""
    if not ko:
        return store_addresses(b, windows, image, outer, inner, addresses)

    def entries(table: str, index: Value, taps: int) -> list[Value]:
        line = windows + WINDOWS.load(windows, table) + index * (8 * taps)
        return [(line + 8 * k).load(I64, 8) for k in range(taps)]

    pad, address = windows + WINDOWS.load(windows, "pad_row"), image
    outers, inners = entries("outer_table", outer, ko), entries("inner_table", inner, ki)
    for k, (down, across) in enumerate(product(outers, inners)):
        offset = down + across
        address = (offset >= 0).select(image + offset, pad)
        address.store(addresses + 8 * k, 8)
    address.store(addresses + 8 * ko * ki, 8)


def over_channels(b: Builder, channels: Value, lanes: int, emit: Callable[[int, Any], None], widest: int = 4) -> None:
    """Emit code for all channels: call `emit(width, c)` for each vector of `width` channels from channel c on.

    Vectors of `widest` registers come first; narrower vectors take the remaining channels.
    """
    done: Any = c64(0)
    for width in (1,) if lanes == 1 else dict.fromkeys((widest * lanes, lanes, lanes // 4, 1)):
        begin, turns = done, (channels - done) // width
        with Loop(b, turns) as turn:
            emit(width, begin + turn.k * width)
        done = begin + turns * width


def unrolled(ko: int, ki: int) -> tuple[int, int]:
    """The window size to compile special code for: (ko, ki), or (0, 0) if it is open or has over UNROLLED taps."""
    return (ko, ki) if not is_open((ko, ki)) and ko * ki <= UNROLLED else (0, 0)


def block_functions(direct: int) -> Functions:
    """Make the block function. Unless `direct` is 0, tiles write the outputs, of `direct` bytes each."""
    writes = direct == 0

    def block(args: int, index: int) -> None:
        x = PIXELS(args)
        images, windows, image_bytes, pixels, tile = x.images, x.windows, x.image_bytes, x.pixels, x.tile
        m, channels, each, width, step = x.m, x.channels, x.each, x.width, x.step
        across, down = (channels + width - 1) // width, (m + each - 1) // each
        batch, first, left = index // (across * down), index // across % down * each, index % across * width
        last, columns = min(first + each, m), min(width, channels - left)
        frame, sums = stack(FRAME_BYTES), stack(STACK)
        f, ow = FRAME(frame), WINDOWS(windows).width
        f.windows = windows
        f.image_bytes = image_bytes
        f.first = left
        f.channels = columns
        f.weights = x.weights
        target, stride = sums, 4 * columns
        if writes:
            entries = stack(ENTRIES_BYTES)
        else:
            out = SLOT(args + SLOTS)
            target, stride = out.address + left * direct, out.stride
            if out.table:
                target += load_s64(out.table + 8 * batch)
        f.target = target
        f.stride = stride
        for i in range(first, last, step):
            rows, pixel = min(step, last - i), batch * m + i
            f.image = images + pixel // pixels * image_bytes
            f.outer = pixel % pixels // ow
            f.inner = pixel % pixels % ow
            f.rows = rows
            if not writes:
                f.target = target + i * stride
            call_block(tile, frame, 0)
            if writes:
                finish(args, batch, i, left, rows, columns, sums, stride, entries, -1, frame)

    return Functions(speed=3, block=block)


class Spot(NamedTuple):
    """The position of a tile: pixel (outer, inner) of the image at `image`, with `left` pixels from there on.

    The accumulators go to `target`. `addresses` is memory for the addresses of a pixel's taps.
    """

    frame: Value
    windows: Value
    image: Value
    outer: Value
    inner: Value
    left: Value
    addresses: Value
    target: Value

    def fields(self, *names: str) -> list[Value]:
        """Emit the loads of fields of the frame."""
        return [FRAME.load(self.frame, name) for name in names]


Fill: TypeAlias = Callable[[Builder, Spot], Operand]
"""A function that emits the accumulators of some pixels of a line, and returns the number of pixels."""


def tile_functions(room: int, fill: Fill) -> Functions:
    """Make the module of a tile function; `fill` may use the `room` bytes at `Spot.addresses`."""

    @emits
    def tile(b: Builder, frame: Value, index: Value) -> None:
        windows, image, outer, inner, image_bytes, target, step, rows = (FRAME.load(frame, x) for x in (
            "windows", "image", "outer", "inner", "image_bytes", "target", "stride", "rows"))
        width, height = WINDOWS.load(windows, "width"), WINDOWS.load(windows, "height")
        addresses = stack_memory(b, room)
        with Loop(b, rows, [image, outer, inner]) as loop:
            image, outer, inner = loop.values
            loop.step = fill(b, Spot(frame, windows, image, outer, inner, rows - loop.k, addresses,
                                     target + loop.k * step))
            inner = inner + loop.step
            ends = inner.eq(width)  # the next pixel starts a line, and perhaps an image
            outer = outer + ends.zext(I64)
            done = outer.eq(height)
            loop.update([image + done.select(image_bytes, 0), done.select(0, outer), ends.select(0, inner)])

    return Functions(speed=3, tile=tile)


class Pixels(NamedTuple):
    """The outputs of a kernel over pixels: `channels` for each of batch * m output pixels.

    `windows` locates the input pixels of an output pixel; `dtype` is the dtype of the images. `multiplier` output
    channels read the same image channel.
    """

    dtype: str
    windows: Windows
    channels: int
    batch: int
    m: int
    multiplier: int = 1

    @property
    def products(self) -> int:
        """The number of products: one per tap of each output."""
        return self.batch * self.m * self.channels * self.windows.taps


@recorded("pixels.split")
def split(batch: int, m: int, channels: int, threads: int, whole: bool) -> tuple[int, int, int]:
    """Choose the rows and channels of a block (all channels if `whole`), and the rows of a tile."""
    parts = 4 * threads if threads > 1 else 1
    each = max(1, -(-m // -(-parts // max(1, batch))))
    share = -(-channels // (max(1, parts // max(1, batch * m)) * 64)) * 64
    width = max(1, channels if whole else min(CHANNELS, share, channels))
    return each, width, max(1, min(MOST_ROWS, CHANNELS // width))


def plan_pixels(epilogue: Epilogue, x: Pixels, target: Target, name: str, module: Module, cycles: float, *,
                direct: int = 0, whole: bool = False, macs: int = 0) -> Step:
    """Plan a kernel over all pixels and channels, with an epilogue; the caller fills in addresses of PIXELS.

    `module` has the tile function, and `cycles` estimates the work for a pixel. Unless `direct` is 0, tiles write the
    outputs, of `direct` bytes each. If `whole`, a block has all channels (at most CHANNELS).
    """
    cache, batch, m, channels = target.cache, x.batch, x.m, x.channels
    table = 0 if direct else load_outputs(epilogue, target.level, cache)
    threads = threads_for(target.threads, cycles * (batch * m))
    each, width, step = numbers(3, split, batch, m, channels, threads, whole)
    blocks = batch * -(-m // each) * -(-channels // width)
    words = PIXELS.named({
        "image_bytes": x.windows.image_bytes, "pixels": x.windows.pixels, "batch": batch, "m": m, "channels": channels,
        "each": each, "width": width, "step": step, "tile": module.tile, "functions": table,
        "second_look": load_second_look(epilogue, target.level, cache, of_pixels=True)})
    block = modules.load("pixels", block_functions, direct, level=target.level.base, cache=cache).block
    return Step(f"{name}_{target.level.name}", block, words, blocks, pieces(blocks, threads, target.threads), macs=macs)
