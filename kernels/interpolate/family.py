"""The kernel family of interpolations: its record, the plan steps of all modes, and the kernel of the linear modes.

    acc[i, c] = sum over taps t of w[i, t] * d(x[window(i, t), c])     in f32, tap by tap: a product, then a sum

d dequantizes (see `pool.means`). Two tables of weights lie one after the other in memory. For output pixel (outer,
inner), the weight of tap (ko, ki) is the f32 product of entry [outer, ko] of the first and entry [inner, ki] of the
second. Taps of weight 0 read the padding, whose elements are 0, because 0 times an infinity would be NaN.
"""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.family.slots import store_slots
from graphq.kernels.interpolate.lower import Blend, lower_interpolate
from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.values import F32, F64, I64, Builder, Value
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.lanes.stores import Store
from graphq.kernels.operands.windows import WINDOWS
from graphq.kernels.pixels.blocks import (
    Fill,
    PixelKernel,
    Pixels,
    Spot,
    over_channels,
    plan_pixels,
    tap_locator,
    tile_functions,
)
from graphq.kernels.pool import means
from graphq.kernels.pool.family import pool_steps
from graphq.kernels.pool.means import Scales, Taps, numbers_of
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Step, Target

ADDRESSES = 8 * (16 + 1)
"""Bytes for the addresses of a pixel's taps. Interpolation along four spatial axes has 16 taps."""


def blending(dtype: str, lanes: int, ko: int, ki: int) -> Fill:
    """Make the function that emits the weighted means of one output pixel with a ko x ki window.

    The field `weights` of the frame is the address of the tables that `means.tables` packs.
    """
    locate, itemsize = tap_locator(ko, ki), STORAGE[dtype].itemsize

    def blend(b: Builder, spot: Spot) -> int:
        tables, left, channels = spot.fields("weights", "first", "channels")
        outer = numbers_of(tables)
        inner = outer + WINDOWS.load(spot.windows, "height") * (8 * ko)
        down, across = ([(base + 8 * k).load(F64).to_float(F32) for k in range(n)]
                        for base, n in ((outer + spot.outer * (8 * ko), ko), (inner + spot.inner * (8 * ki), ki)))
        locate(b, spot.windows, spot.image, spot.outer, spot.inner, spot.addresses)
        weights = [y * x for y in down for x in across]
        lines = [(spot.addresses + 8 * t).load(I64, 8) for t in range(ko * ki)]

        def vectors(width: int, c: Value) -> None:
            channel = left + c
            total: Value | None = None
            taps, skip = Taps(b, dtype, width, tables, channel), channel * itemsize
            for address, weight in zip(lines, weights, strict=True):
                product = taps.load(address + skip) * weight.splat(width)
                total = product if total is None else total + product
            assert total is not None
            total.store(spot.target + c * 4)

        over_channels(b, channels, lanes, vectors)
        return 1

    return blend


def blend_tiles(dtype: str, lanes: int, ko: int, ki: int) -> Functions:
    """Make the module of tiles of one pixel with a ko x ki window."""
    return tile_functions(ADDRESSES, blending(dtype, lanes, ko, ki))


def plan_blend(store: Store, x: Pixels, target: Target) -> Step:
    """Plan weighted means of at most 16 taps. The caller fills in the address fields of `pixels.blocks.PIXELS`.

    The field `weights` is the address of the tables that `means.tables` packs from the taps' weights along both axes.
    """
    name, lanes, taps = f"blend_{x.dtype}", target.level.lanes, x.windows.taps
    tile = modules.load(name, blend_tiles, x.dtype, lanes, prod(x.windows.kernel[:-1]), x.windows.kernel[-1],
                        level=target.level.base, cache=target.cache)
    return plan_pixels(store, x, PixelKernel(name, tile, 20 + taps * (3 + x.channels / lanes)), target)


def interpolate_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step. The tables of its windows and weights are constants."""
    p = lowered.anchor
    if not isinstance(p, Blend):
        return pool_steps(b, node, lowered)
    space, slots = store_slots(b, node, lowered, keep=1)
    pixels = Pixels(p.dtype, p.windows, space.n, space.batch, space.m)
    step = plan_blend(lowered.store, pixels, b.target)
    words = {"images": Ref(b.of[node.operand(p.source)]), "windows": Ref(b.constant(p.windows.block(p.pad))),
             "weights": Ref(b.constant(later(_weights, p.scales, p.outer, p.inner)))}
    b.run(step, words, slots)


def _weights(scales: Scales | None, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return means.tables(scales, np.concatenate([outer.ravel(), inner.ravel()]))


INTERPOLATE = Family("interpolate", ("interpolate",), lower_interpolate, interpolate_steps,
                     any_operands("interpolate"), channels_last=("interpolate",))
