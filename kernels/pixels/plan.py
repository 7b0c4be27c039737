"""Planning of kernels over the output pixels of channels-last images."""
from __future__ import annotations

from typing import NamedTuple

from graphq.base.sizes import numbers
from graphq.kernels.jit import modules
from graphq.kernels.jit.modules import Module
from graphq.kernels.lanes.outputs import load_outputs
from graphq.kernels.lanes.second_look import load_second_look
from graphq.kernels.lanes.stores import Store
from graphq.kernels.operands.tile_frame import LAYOUTS
from graphq.kernels.operands.windows import Windows
from graphq.kernels.pixels.blocks import CHANNELS, MOST_ROWS, PIXELS, block_functions
from graphq.plan.step import Step, Target, pieces, threads_for


class Pixels(NamedTuple):
    """The outputs of kernels over pixels: `channels` for each of batch * m output pixels.

    `windows` says which pixels of channels-last images of `dtype` an output pixel reads. `multiplier` output channels
    read the same channel of an image.
    """

    dtype: str
    windows: Windows
    channels: int
    batch: int
    m: int
    multiplier: int = 1

    @property
    def products(self) -> int:
        """The number of products: one for each tap of each output."""
        return self.batch * self.m * self.channels * self.windows.taps


class PixelKernel(NamedTuple):
    """A module with the tile function that the block function of `block_functions` calls.

    `cycles` estimates the work for a pixel. If `direct` is not 0, tiles write the outputs themselves, with `direct`
    bytes for an element. With `whole` a block has all channels, at most CHANNELS. `macs` counts all
    multiply-accumulates of the step.
    """

    name: str
    module: Module
    cycles: float
    direct: int = 0
    whole: bool = False
    macs: int = 0


def split(batch: int, m: int, channels: int, threads: int, whole: bool) -> tuple[int, int, int]:
    """Choose the rows and channels of a block (all channels if `whole`), and the rows of a tile."""
    parts = 4 * threads if threads > 1 else 1
    each = max(1, -(-m // -(-parts // max(1, batch))))
    share = -(-channels // (max(1, parts // max(1, batch * m)) * 64)) * 64
    width = max(1, channels if whole else min(CHANNELS, share, channels))
    return each, width, max(1, min(MOST_ROWS, CHANNELS // width))


def plan_pixels(store: Store, x: Pixels, kernel: PixelKernel, target: Target) -> Step:
    """Plan a kernel over all pixels and channels, with epilogue `store`; the caller fills in PIXELS' addresses."""
    cache, batch, m, channels = target.cache, x.batch, x.m, x.channels
    again = load_second_look(store, target.level, cache)
    table = 0 if kernel.direct else load_outputs(store, target.level, cache)
    threads = threads_for(target.threads, kernel.cycles * (batch * m))
    each, width, step = numbers(3, split, batch, m, channels, threads, kernel.whole)
    blocks = batch * -(-m // each) * -(-channels // width)
    words = PIXELS.named({
        "image_bytes": x.windows.image_bytes, "pixels": x.windows.pixels, "batch": batch, "m": m, "channels": channels,
        "each": each, "width": width, "step": step, "tile": kernel.module.tile, "again": again, "functions": table,
        "layout": LAYOUTS.index("pixels")})
    block = modules.load("pixels", block_functions, kernel.direct, level=target.level.base, cache=cache).block
    return Step(f"{kernel.name}_{target.level.name}", block, words, blocks,
                pieces(blocks, threads, target.threads), macs=kernel.macs)
