"""The operation grid_sample: an image read at given coordinates."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import FLOATS, Array, expect_dtype, expect_same_dtype, in_f32

CUBIC = np.float32(-0.75)
"""The parameter `a` of Keys' cubic convolution (`_cubic`)."""


def infer_grid_sample(src: TensorType, grid: TensorType, *, mode: str, padding_mode: str,
                      align_corners: bool) -> TensorType:
    """`src` is [N, C, sizes], and `grid` is [N, sizes of the result, number of spatial axes]."""
    expect_dtype("src", src, FLOATS)
    expect_same_dtype(src=src, grid=grid)
    if grid.shape is None:
        return TensorType(src.dtype, None)
    rank = len(grid.shape)
    if src.shape is not None:
        count, last = len(src.shape) - 2, grid.shape[-1] if grid.shape else None
        batches = {d for d in (*src.shape[:1], *grid.shape[:1]) if d is not None}
        if count < 1 or rank != count + 2 or last not in (count, None) or len(batches) > 1:
            raise GraphError(f"grid must be [N, sizes, coordinates] for an input [N, C, sizes], got {grid} for {src}")
        if 0 in src.shape[2:]:
            raise GraphError(f"spatial sizes must be positive, got {src}")
    batch, channels = (None, None) if src.shape is None else src.shape[:2]
    return TensorType(src.dtype, (grid.shape[0] if batch is None else batch, channels, *grid.shape[1:-1]))


@register_op(infer=infer_grid_sample, onnx="GridSample")
@in_f32
def grid_sample(src: Array, grid: Array, *, mode: Literal["linear", "nearest", "cubic"] = "linear",
                padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
                align_corners: bool = False) -> Array:
    """Sample `src` [N, C, ...] at the points `grid` [N, ..., k] (ONNX GridSample, as ONNX Runtime computes it).

    A point's k coordinates go from the last spatial axis to the first. With `align_corners`, the coordinates -1 and 1
    are the centers of the first and last element of an axis; otherwise they are the outer edges of these elements.
    Outside of the image, `padding_mode` zeros gives 0, border gives the nearest element, and reflection mirrors the
    image at its edges.
    """
    batch, channels, *sizes = src.shape
    points = [_placed(grid[..., ~d].reshape(batch, -1), size, align_corners) for d, size in enumerate(sizes)]
    taps = [_taps(x, size, mode, padding_mode, align_corners) for x, size in zip(points, sizes, strict=True)]
    flat = src.reshape(batch, channels, -1)
    first = np.zeros_like(points[0], np.int64)
    return _sum(flat, sizes, taps, first, np.ones_like(first, bool)).reshape(batch, channels, *grid.shape[1:-1])


def _placed(n: Array, size: int, align_corners: bool) -> Array:
    one, two = np.float32(1), np.float32(2)
    if align_corners:
        return (n + one) / two * np.float32(size - 1)
    return ((n + one) * np.float32(size) - one) / two


def _taps(x: Array, size: int, mode: str, padding: str, align_corners: bool) -> list[tuple[Array, Array, Array]]:
    """For each element that a position reads along an axis: its index, whether it exists, and its weight."""
    if mode == "nearest":
        steps, weights, first = [0], [np.ones_like(x)], np.rint(x)
    else:
        first = np.floor(x)
        part = x - first
        steps, weights = ([0, 1], [1 - part, part]) if mode == "linear" else ([-1, 0, 1, 2], _cubic(part))
    return [(*_inside(first + np.float32(k), size, padding, align_corners), w)
            for k, w in zip(steps, weights, strict=True)]


def _cubic(x: Array) -> list[Array]:
    """The weights of four neighbors by Keys' cubic convolution; `x` is the distance from the second neighbor."""
    a, one, two, three, four, five, eight = CUBIC, *map(np.float32, (1, 2, 3, 4, 5, 8))

    def outer(d: Array) -> Array:
        return ((a * d - five * a) * d + eight * a) * d - four * a

    def inner(d: Array) -> Array:
        return ((a + two) * d - (a + three)) * d * d + one

    return [outer(x + one), inner(x), inner(one - x), outer(two - x)]


def _inside(place: Array, size: int, padding: str, align_corners: bool) -> tuple[Array, Array]:
    """For each position: the index of the element to read, and False if 0 replaces the element."""
    there = (place >= 0) & (place < size)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = np.where(place < low, _mirrored(low - place, low, high), place)
        place = np.where(place > high, high + low - _mirrored(place - high, low, high), place)
    index = np.clip(np.nan_to_num(place), 0, size - 1).astype(np.int64)
    return index, there if padding == "zeros" else np.ones_like(there)


def _mirrored(beyond: Array, low: float, high: float) -> Array:
    """Mirror the position `low - beyond` at the edges `low` and `high` until it lies between them."""
    span = np.float32(high - low)
    turns = np.trunc(beyond / span)
    rest = beyond - turns * span
    return np.where(turns % 2 == 0, np.float32(low) + rest, np.float32(high) - rest)


def _sum(src: Array, sizes: list[int], taps: list[list[tuple[Array, Array, Array]]], index: Array,
         there: Array) -> Array:
    if not taps:
        return np.where(there[:, None], np.take_along_axis(src, index[:, None], axis=2), np.float32(0))
    terms = [weight[:, None] * _sum(src, sizes[1:], taps[1:], index * sizes[0] + k, there & known)
             for k, known, weight in taps[0]]
    return sum(terms[1:], terms[0])
