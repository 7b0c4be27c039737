"""The operation interpolate."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np

from graphq.base.budget import expect
from graphq.base.sizes import number
from graphq.dtypes import s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import FLOATS, Array, expect_dtype, quiet, rounded
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


def scaled(size: int, scale: float) -> int:
    """`size * scale` in f32 as in oneDNN, rounded down. Raises GraphError if the scale is not finite and positive."""
    with np.errstate(over="ignore"):
        product = np.float32(size) * np.float32(scale)
    if not 0 < np.float32(scale) < np.inf or not product < 2**31:
        raise GraphError(f"scales must be finite and positive, and sizes below 2**31, got {scale} for size {size}")
    return int(product)


@register_op(infer=infer_interpolate, layout="anchor", rows="images")
@quiet
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
