"""The operations interpolate, which resizes images, and grid_sample, which reads an image at given coordinates."""
from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np

from graphq.base.budget import expect
from graphq.base.sizes import number, recorded
from graphq.dtypes import s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, register_op
from graphq.ops.rules import FLOATS, Array, expect_dtype, expect_same_dtype, in_f32, rounded
from graphq.ops.window import DataFormat, channels_first, from_channels_first, in_format, to_channels_first


def infer_interpolate(src: TensorType, sizes_tensor: TensorType | None = None, *, mode: str,
                      coordinate_transformation_mode: str, sizes: tuple[int, ...], scales: tuple[float, ...],
                      data_format: str) -> TensorType:
    """The new sizes are `sizes`, or the sizes of `src` times `scales`, rounded down; unknown with `sizes_tensor`."""
    expect_dtype("src", src, FLOATS)
    given = [name for name, x in (("sizes", sizes), ("scales", scales), ("sizes_tensor", sizes_tensor)) if x]
    if len(given) != 1:
        raise GraphError(f"exactly one of sizes, scales and the operand 'sizes_tensor' must be given, "
                         f"got {' and '.join(given) or 'none'}")
    count = _spatial_axes(src, sizes_tensor, given[0], sizes or scales)
    if count is None:
        return TensorType(src.dtype, None)
    n, c, *old = channels_first(src.shape, count, data_format)
    new: tuple[Dim, ...] = (None,) * count
    if sizes_tensor is None:
        new = sizes or tuple(None if d is None else number(scaled, d, s) for d, s in zip(old, scales, strict=True))
    if any(d is not None and d < 1 for d in new) or 0 in old:
        raise GraphError(f"spatial sizes must be positive, got {list(new)} for {src}")
    return TensorType(src.dtype, in_format((n, c, *new), data_format))


def _spatial_axes(src: TensorType, tensor: TensorType | None, name: str, values: Sequence[float]) -> int | None:
    count = None if src.shape is None else len(src.shape) - 2
    given: Dim = len(values)
    if tensor is not None:
        expect_dtype(name, tensor, (s32,))
        if tensor.shape is not None and len(tensor.shape) != 1:
            raise GraphError(f"'{name}' must be one-dimensional, got {tensor}")
        given = count if tensor.shape is None or tensor.shape[0] is None else tensor.shape[0]
    if given == 0 or count is not None and (count < 1 or given != count):
        raise GraphError(f"{name} must have one value per spatial axis of {src}, got {tensor or list(values)}")
    return given


@recorded("scaled")
def scaled(size: int, scale: float) -> int:
    """`size * scale` in f32 as in oneDNN, rounded down. Raises GraphError if the scale is not finite and positive."""
    with np.errstate(over="ignore"):
        product = np.float32(size) * np.float32(scale)
    if not 0 < np.float32(scale) < np.inf or not product < 2**31:
        raise GraphError(f"scales must be finite and positive, and sizes below 2**31, got {scale} for size {size}")
    return int(product)


@register_op(infer=infer_interpolate, layout="anchor", rows="images")
def interpolate(src: Array, sizes_tensor: Array | None = None, *,
                mode: Literal["nearest", "linear", "bilinear", "trilinear"],
                coordinate_transformation_mode: Literal["half_pixel", "align_corners", "asymmetric"] = "half_pixel",
                sizes: tuple[int, ...] = (), scales: tuple[float, ...] = (),
                data_format: DataFormat = "NXC") -> Array:
    """Resize the spatial axes (oneDNN Interpolate).

    Element o of an output axis lies at position `(o + 1/2) * old / new - 1/2` of `src` (half_pixel), at `o * (old
    - 1) / (new - 1)` (align_corners), or at `o * old / new` (asymmetric; not in oneDNN). As in oneDNN, `scales` only
    determine the new sizes. Positions outside of `src` move to its first or last element.

    Mode nearest reads the nearest element; of two equally near elements, it reads the one of higher index. The modes
    linear, bilinear and trilinear are the same: the weighted mean of the two neighbors along every axis. Positions and
    means are computed as in ONNX Runtime's CPU kernel, step by step in f32.
    """
    x = to_channels_first(src, data_format).astype(np.float32)
    old = x.shape[2:]
    if sizes_tensor is not None:
        new = [int(d) for d in sizes_tensor]
        if min(new) < 1:
            raise GraphError(f"spatial sizes must be positive, got {new}")
    else:
        new = list(sizes) or [scaled(d, s) for d, s in zip(old, scales, strict=True)]
    axes = [elements(*sizes, mode, coordinate_transformation_mode) for sizes in zip(old, new, strict=True)]
    return rounded(from_channels_first(_nearest(x, axes) if mode == "nearest" else _blended(x, axes), data_format),
                   src.dtype)


def _nearest(x: Array, axes: Sequence[tuple[Array, Array, Array]]) -> Array:
    for k, (low, _, _) in enumerate(axes):
        x = np.take(x, low, axis=k + 2)
    return x


def _blended(x: Array, axes: Sequence[tuple[Array, Array, Array]]) -> Array:
    """Sum the products of each element and its n weights over the 2**n neighbors along n axes, in order, in f32."""
    total: Array | None = None
    for tap in product(*[(0, 1)] * len(axes)):
        weight, value = np.ones(1, np.float32), x
        for k, (high, (low, up, part)) in enumerate(zip(tap, axes, strict=True)):
            each = (part if high else 1 - part).reshape(-1, *[1] * (len(axes) - k - 1))
            weight = weight * each
            value = np.where(each > 0, np.take(value, up if high else low, axis=k + 2), 0)
        total = value * weight if total is None else total + value * weight
    assert total is not None
    return total


def elements(old: int, new: int, mode: str, transformation: str) -> tuple[Array, Array, Array]:
    """Return for each of `new` elements two neighbors among `old` elements, and the f32 weight of the second.

    If both neighbors are the last element, the weight is 1/2.
    """
    expect(64 * new, f"the places of {new} elements among {old}")
    if mode == "nearest":
        o = np.arange(new, dtype=np.int64)
        up, down = (2 * o + 1) * old - new, 2 * new  # element o lies exactly at position up / down
        if transformation == "align_corners":
            up, down = o * (old - 1), max(new - 1, 1)
        elif transformation == "asymmetric":
            up, down = o * old, new
        nearest = np.clip((2 * up + down) // (2 * down), 0, old - 1)  # floor(up / down + 1/2)
        return nearest, nearest, np.zeros(new, np.float32)
    at = np.arange(new, dtype=np.float32)
    if transformation == "align_corners":
        at = at * np.float32(old - 1) / np.float32(max(new - 1, 1))
    elif transformation == "asymmetric":
        at = at / (np.float32(new) / np.float32(old))
    else:
        at = (at + np.float32(0.5)) / (np.float32(new) / np.float32(old)) - np.float32(0.5)
    at = np.clip(at, 0, np.float32(old - 1))
    low = at.astype(np.int64)
    high = np.minimum(low + 1, old - 1)
    return low, high, np.where(high > low, at - low.astype(np.float32), np.float32(0.5))


CUBIC = np.float32(-0.75)
"""The parameter `a` of Keys' cubic convolution (`_cubic`)."""


def infer_grid_sample(src: TensorType, grid: TensorType, *, mode: str, padding_mode: str,
                      align_corners: bool) -> TensorType:
    """`src` is [N, C, sizes], and `grid` is [N, sizes of the result, number of spatial axes]."""
    expect_same_dtype(*FLOATS, src=src, grid=grid)
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
