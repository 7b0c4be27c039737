"""Planning of depthwise convolutions of u8 and s8."""
from __future__ import annotations

from graphq.kernels.depthwise.packing import Layout
from graphq.kernels.depthwise.pairs import pair_tiles
from graphq.kernels.depthwise.quads import quad_tiles
from graphq.kernels.jit import modules
from graphq.kernels.jit.isa import is_emulated, lowest
from graphq.kernels.lanes.stores import Store
from graphq.kernels.pixels.blocks import unrolled
from graphq.kernels.pixels.plan import PixelKernel, Pixels, plan_pixels
from graphq.plan.step import Step, Target


def plan_depthwise(store: Store, x: Pixels, layout: Layout, target: Target) -> Step:
    """Plan an integer depthwise convolution for which `packing.fits` holds.

    The caller fills in fields of `blocks.PIXELS`: the images, the windows, and the weights as `packing.pack` makes
    them. If outputs near rounding ties are computed a second time, the caller also fills in `Layout.offsets`.
    """
    name, size, cache = f"depthwise_{x.dtype}", layout.size, target.cache
    chunks = -(-x.channels // size)
    if layout.pixels:
        emulated = is_emulated(lowest(target.level.lanes, "vnni").name)
        tile = modules.load(name, quad_tiles, x.dtype, layout, x.multiplier, emulated, level=target.level,
                            cache=cache)
        cycles = 30 + chunks * (20 + 6 * len(layout.taps))
    else:
        few = x.channels if x.channels < size else 0
        emulated = layout.lanes > 1 and is_emulated(lowest(layout.lanes).name)
        tile = modules.load(name, pair_tiles, x.dtype, layout.lanes, *unrolled(layout.ko, layout.ki), few, emulated,
                            x.multiplier, level=target.level, cache=cache)
        cycles = 30 + chunks * (6 + 4 * x.windows.taps)
    return plan_pixels(store, x, PixelKernel(name, tile, cycles, whole=True, macs=x.products), target)
