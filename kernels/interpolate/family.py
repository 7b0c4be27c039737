"""The kernel family of interpolations: the lowering, the NumPy formula, the kernel of the linear modes, and the record.

Mode nearest reads one pixel: it becomes a pool of one tap and is exact. The modes linear, bilinear and trilinear read
two elements along every axis. They differ only in the number of axes:

    acc[i, c] = sum over taps t of w[i, t] * d(x[window(i, t), c])     in f32, tap by tap: a product, then a sum

d dequantizes (see `pool.means`). Two tables of weights lie one after the other in memory. For output pixel (outer,
inner), the weight of tap (ko, ki) is the f32 product of entry [outer, ko] of the first and entry [inner, ki] of the
second. Taps of weight 0 read the padding, whose elements are 0, because 0 times an infinity would be NaN.
"""
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from graphq import ir
from graphq.base.sizes import later, recorded
from graphq.kernels.family.lower import Arrays, Lowered
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.jit import Functions, modules
from graphq.kernels.jit.values import F32, F64, I64, Builder, Value
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.windows import INVALID, WINDOWS, Windows, merged
from graphq.kernels.pixels import blocks
from graphq.kernels.pixels.blocks import Pixels, Spot
from graphq.kernels.pool import means
from graphq.kernels.pool.family import Pool, lower_pixels, pixel_steps, scales_of
from graphq.ops.interpolate import elements
from graphq.plan.plan import Step, Target

ADDRESSES = 8 * (16 + 1)
"""Bytes for the addresses of a pixel's taps. Interpolation along four spatial axes has 16 taps."""


class Blend(NamedTuple):
    """Weighted means of the pixels of input `source`, whose shape is [images, spatial..., channels].

    `outer` [height, ko] and `inner` [width, ki] are f32 weights, in the order of the window's tables. `pad` is a
    padding pixel. Only integer inputs have `scales`.
    """

    source: int
    dtype: str
    shape: tuple[int, ...]
    windows: Windows
    pad: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    out: tuple[int, ...]
    scales: means.Scales | None

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The weighted means of the windows' pixels, in f32."""
        weights = self.outer[:, None, :, None] * self.inner[None, :, None, :]
        weights = weights.reshape(self.windows.pixels, self.windows.taps, 1)
        total: Any = None
        with np.errstate(all="ignore"):
            tap = self.windows.tap_of(inputs[self.source], self.pad)
            for k in range(self.windows.taps):
                product = means.dequantized(tap(k), self.dtype, self.scales) * weights[:, k]
                total = product if total is None else total + product
            return np.asarray(total).reshape(self.out)

    def plan(self, epilogue: Epilogue, x: Pixels, target: Target) -> Step:
        """Plan the step."""
        name, lanes, taps = f"blend_{x.dtype}", target.level.lanes, x.windows.taps
        tile = modules.load(name, blend_tiles, x.dtype, lanes, prod(x.windows.kernel[:-1]), x.windows.kernel[-1],
                            level=target.level.base, cache=target.cache)
        return blocks.plan_pixels(epilogue, x, target, name, tile, 20 + taps * (3 + x.channels / lanes))

    @property
    def weights(self) -> np.ndarray:
        """The tables that the kernel reads: the taps' weights along both axes."""
        return later(_tables, self.scales, self.outer, self.inner)


@recorded("interpolate.tables")
def _tables(scales: means.Scales | None, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return means.tables(scales, np.concatenate([outer.ravel(), inner.ravel()]))


def lower_interpolate(body: ir.Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of an interpolate, a dequantize of its input, and an epilogue. Raises Unsupported."""
    return lower_pixels(body, ("interpolate",), _anchor)


def _anchor(node: ir.Node, dequantize: ir.Node | None, value: ir.Value, source: int) -> Pool | Blend:
    dtype, shape = value.dtype.name, value.type.dims
    if node.attrs["data_format"] != "NXC":
        raise Unsupported("kernels take channels last, data_format NXC")
    out, mode = node.output.type.dims, node.attrs["mode"]
    tables: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    pixel = step = shape[-1] * STORAGE[dtype].itemsize
    for k in reversed(range(1, len(shape) - 1)):
        axis = shape[k], out[k], mode, node.attrs["coordinate_transformation_mode"]
        tables.insert(0, later(_table, axis, step))
        weights.insert(0, later(_weights, axis))
        step *= shape[k]
    taps = (1 if mode == "nearest" else 2,) * len(tables)
    w = Windows(out[1:-1], taps, later(merged, tables[:-1]), tables[-1], pixel, step)
    zps = 0 if dequantize is None else dequantize.attrs["zps"] or 0
    pad = np.broadcast_to(np.asarray(zps, STORAGE[dtype]), shape[-1:])
    if mode == "nearest":
        return Pool("max", source, dtype, shape, w, pad, out)
    if w.taps > 16:
        raise Unsupported(f"linear interpolation over {len(tables)} axes, kernels take up to 4",
                          "interpolate along fewer axes at a time")
    return Blend(source, dtype, shape, w, pad, later(_products, weights[:-1]), weights[-1], out,
                 scales_of(dequantize, shape[-1]))


@recorded("interpolate.table")
def _table(axis: tuple[int, int, str, str], step: int) -> np.ndarray:
    """The byte offsets [outputs, taps] along `axis`: (size, new size, mode, coordinate transformation)."""
    low, high, part = elements(*axis)
    if axis[2] == "nearest":
        return np.asarray((low * step)[:, None])
    return np.stack([low * step, np.where(part > 0, high * step, INVALID)], axis=1)


@recorded("interpolate.weights")
def _weights(axis: tuple[int, int, str, str]) -> np.ndarray:
    _, _, part = elements(*axis)
    return np.stack([1 - part, part], axis=1)


@recorded("interpolate.products")
def _products(weights: Sequence[np.ndarray]) -> np.ndarray:
    outer = np.ones((1, 1), np.float32)
    for x in weights:
        outer = np.multiply.outer(outer, x).transpose(0, 2, 1, 3).reshape(len(outer) * len(x), -1)
    return outer


def blend_tiles(dtype: str, lanes: int, ko: int, ki: int) -> Functions:
    """Make the module of tiles of one pixel: weighted means of a ko x ki window.

    The field `weights` of the frame is the address of `Blend.weights`.
    """
    itemsize = STORAGE[dtype].itemsize

    def blend(b: Builder, spot: Spot) -> int:
        tables, left, channels = spot.fields("weights", "first", "channels")
        outer = means.numbers_of(tables)
        inner = outer + WINDOWS.load(spot.windows, "height") * (8 * ko)
        down, across = ([(base + 8 * k).load(F64).to_float(F32) for k in range(n)]
                        for base, n in ((outer + spot.outer * (8 * ko), ko), (inner + spot.inner * (8 * ki), ki)))
        blocks.store_taps(b, spot.windows, spot.image, spot.outer, spot.inner, spot.addresses, ko, ki)
        weights = [y * x for y in down for x in across]
        lines = [(spot.addresses + 8 * t).load(I64, 8) for t in range(ko * ki)]

        def vectors(width: int, c: Value) -> None:
            channel = left + c
            total: Value | None = None
            taps, skip = means.Taps(b, dtype, width, tables, channel), channel * itemsize
            for address, weight in zip(lines, weights, strict=True):
                product = taps.load(address + skip) * weight.splat(width)
                total = product if total is None else total + product
            assert total is not None
            total.store(spot.target + c * 4)

        blocks.over_channels(b, channels, lanes, vectors)
        return 1

    return blocks.tile_functions(ADDRESSES, blend)


INTERPOLATE = Family("interpolate", ("interpolate",), lower_interpolate, pixel_steps,
                     any_operands("interpolate"), channels_last=("interpolate",))
