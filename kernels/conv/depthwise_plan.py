"""How a depthwise convolution of u8 and s8 is planned."""
from __future__ import annotations

from graphq.kernels.conv.depthwise import VNNI, Layout
from graphq.kernels.conv.depthwise_pairs import pair_tiles
from graphq.kernels.conv.depthwise_vnni import quad_tiles
from graphq.kernels.family.pixels import (
    PixelKernel,
    Pixels,
    block_functions,
    plan_pixels,
    unrolled,
    view,
    view_sum,
    view_windows,
)
from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit
from graphq.kernels.jit.isa import is_emulated
from graphq.kernels.jit.registry import Step, Target
from graphq.kernels.lanes.outputs import w_scale
from graphq.kernels.lanes.stores import Store
from graphq.kernels.operands.windows import tap_addresses


def settling_blocks(size: int, item: int, half: int) -> Functions:
    """Make the module of the block function for Stores that have ties, which fills in the record of `pixels_sum`.

    Chunks have `size` channels and weights of `item` bytes; the lanes of a `half` where it has `Layout.order` of pairs,
    else 0.
    """

    @njit
    def prepare(args: int, batch: int, row: int, channel: int, r: int, words: int) -> None:
        x, of = view(args), view_sum(words)
        windows, pixels, channels = x.windows, x.pixels, x.channels
        w, pixel = view_windows(windows), batch * x.m + row
        taps, ow = w.ko * w.ki, w.width
        image, inside = x.images + pixel // pixels * x.image_bytes, pixel % pixels
        tap_addresses(windows, image, inside // ow, inside % ow, 0, taps, of.addresses)
        chunk = channel // size
        lane = channel - max(0, min(chunk * size, channels - size))
        if half:
            lane = lane % 16 // 8 * half + lane // 16 * 8 + lane % 8
        of.taps = taps
        of.weights = x.weights + (channels + 15) // 16 * 64 + chunk * x.chunk + lane * 4
        of.item = item
        of.scale = w_scale(args, batch, channel)
        of.offsets = x.offsets
        of.start = 0

    return block_functions(0, prepare)


def plan_depthwise(store: Store, x: Pixels, layout: Layout, target: Target) -> Step:
    """Plan an integer depthwise convolution, for which `depthwise.fits` holds.

    The caller fills in fields of `pixels.PIXELS`: images, windows, weights as `depthwise.pack` makes them, and, where
    the Store has ties, the offsets of the layout.
    """
    name, size, cache = f"depthwise_{x.dtype}", layout.size, target.cache
    chunks = -(-x.channels // size)
    if layout.pixels:
        emulated = is_emulated(VNNI[target.level.lanes])
        tile = modules.load(name, quad_tiles, x.dtype, layout, x.multiplier, emulated, cache=cache)
        cycles = 30 + chunks * (20 + 6 * len(layout.taps))
    else:
        few = x.channels if x.channels < size else 0
        emulated = layout.lanes > 1 and is_emulated("avx512" if layout.lanes == 16 else "avx2")
        tile = modules.load(name, pair_tiles, x.dtype, layout.lanes, *unrolled(layout.ko, layout.ki), few, emulated,
                            x.multiplier, cache=cache)
        cycles = 30 + chunks * (6 + 4 * x.windows.taps)
    if store.ties is None:
        block = modules.load("pixels", block_functions, 0, cache=cache)
    else:
        half = 0 if layout.pixels or layout.lanes == 1 else layout.lanes
        block = modules.load("pixels", settling_blocks, size, layout.item, half, cache=cache)
    kernel = PixelKernel(name, block, tile, cycles, whole=True, chunk=layout.chunk_bytes, macs=x.products)
    return plan_pixels(store, x, kernel, target)
