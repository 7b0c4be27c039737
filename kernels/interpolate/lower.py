"""Lower interpolations, and define their NumPy formula.

Mode nearest reads one pixel: it becomes a pool of one tap and is exact. The modes linear, bilinear and trilinear read
two elements along every axis. They differ only in the number of axes. If x is the dequantized operand in f32, and w[t]
the product of the weights along the axes,

    y = sum_t w[t] * x[t]        tap by tap, weights, products and sums in f32
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphq.base.sizes import later
from graphq.ir import Graph, Node
from graphq.kernels.family.lower import Arrays, Lowered
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.windows import INVALID, Windows, merged
from graphq.kernels.pool.lower import Pool, lower_pixels, scales_of, source_of
from graphq.kernels.pool.means import Scales, dequantized
from graphq.ops.interpolate import elements


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
    scales: Scales | None

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The weighted means of the windows' pixels, in f32."""
        weights = self.outer[:, None, :, None] * self.inner[None, :, None, :]
        weights = weights.reshape(self.windows.pixels, self.windows.taps, 1)
        total: Any = None
        with np.errstate(all="ignore"):
            tap = self.windows.tap_of(inputs[self.source], self.pad)
            for k in range(self.windows.taps):
                product = dequantized(tap(k), self.dtype, self.scales) * weights[:, k]
                total = product if total is None else total + product
            return np.asarray(total).reshape(self.out)


def lower_interpolate(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of an interpolate, a dequantize of its input, and an epilogue. Raises Unsupported."""
    return lower_pixels(body, ("interpolate",), _anchor)


def _anchor(body: Graph, node: Node, dequantize: Node | None) -> Pool | Blend:
    value = source_of(body, node, dequantize)
    source, dtype, shape = body.inputs.index(value), value.dtype.name, value.type.dims
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


def _table(axis: tuple[int, int, str, str], step: int) -> np.ndarray:
    """The byte offsets [outputs, taps] along `axis`: (size, new size, mode, coordinate transformation)."""
    low, high, part = elements(*axis)
    if axis[2] == "nearest":
        return np.asarray((low * step)[:, None])
    return np.stack([low * step, np.where(part > 0, high * step, INVALID)], axis=1)


def _weights(axis: tuple[int, int, str, str]) -> np.ndarray:
    _, _, part = elements(*axis)
    return np.stack([1 - part, part], axis=1)


def _products(weights: Sequence[np.ndarray]) -> np.ndarray:
    outer = np.ones((1, 1), np.float32)
    for x in weights:
        outer = np.multiply.outer(outer, x).transpose(0, 2, 1, 3).reshape(len(outer) * len(x), -1)
    return outer
