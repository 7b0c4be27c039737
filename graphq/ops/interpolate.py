"""interpolate."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from graphq.dtypes import s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.op import register_op
from graphq.ops.compute import Array, quiet, rounded
from graphq.ops.infer import FLOATS, expect_dtype
from graphq.ops.window import DataFormat, channels_first, from_channels_first, in_format, to_channels_first


def infer_interpolate(src: TensorType, sizes_tensor: TensorType | None = None, *, mode: str,
                      coordinate_transformation_mode: str, sizes: tuple[int, ...], scales: tuple[float, ...],
                      data_format: str) -> TensorType:
    """The spatial sizes of `sizes`, or those of the source times `scales`, rounded down, or unknown by a tensor."""
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
        new = sizes or tuple(None if d is None else scaled(d, s) for d, s in zip(old, scales, strict=True))
    if any(d is not None and d < 1 for d in new) or 0 in old:
        raise GraphError(f"spatial sizes must be positive, got {list(new)} for {src}")
    return TensorType(src.dtype, in_format((n, c, *new), data_format))


def _spatial_axes(src: TensorType, tensor: TensorType | None, name: str, values: Sequence[float]) -> int | None:
    """The number of spatial axes, if known; raises GraphError unless there is one size or scale for each."""
    count = None if src.shape is None else len(src.shape) - 2
    given: Dim = len(values)
    if tensor is not None:
        expect_dtype(name, tensor, (s32,))
        if tensor.shape is not None and len(tensor.shape) != 1:
            raise GraphError(f"'{name}' must be one-dimensional, got {tensor}")
        given = count if tensor.shape is None or tensor.shape[0] is None else tensor.shape[0]
    if given == 0 or count is not None and (count < 1 or given != count):
        raise GraphError(f"{name} must have one value a spatial axis of {src}, got {tensor or list(values)}")
    return given


def scaled(size: int, scale: float) -> int:
    """`size * scale` in f32 as oneDNN computes it, rounded down; raises GraphError unless the scale is positive."""
    with np.errstate(over="ignore"):
        product = np.float32(size) * np.float32(scale)
    if not 0 < np.float32(scale) < np.inf or not product < 2**31:
        raise GraphError(f"scales must be finite and positive, and sizes below 2**31, got {scale} for size {size}")
    return int(product)


@register_op(infer=infer_interpolate)
@quiet
def interpolate(src: Array, sizes_tensor: Array | None = None, *,
                mode: Literal["nearest", "linear", "bilinear", "trilinear"],
                coordinate_transformation_mode: Literal["half_pixel", "align_corners"] = "half_pixel",
                sizes: list[int] = (), scales: list[float] = (),  # type: ignore[assignment]
                data_format: DataFormat = "NXC") -> Array:
    """Resize the spatial axes (oneDNN Interpolate). linear, bilinear and trilinear are the same over all axes.

    Element o of an axis lies at `(o + 1/2) * old / new - 1/2` of the source (half_pixel), or at
    `o * (old - 1) / (new - 1)` (align_corners); `scales` only give the new sizes, as in oneDNN. nearest takes the
    nearest element, the upper one of two; linear a mean in f64 of the two around; both keep to the source's ends.
    """
    x = to_channels_first(src, data_format).astype(np.float64)
    old = x.shape[2:]
    if sizes_tensor is not None:
        new = [int(d) for d in sizes_tensor]
        if min(new) < 1:
            raise GraphError(f"spatial sizes must be positive, got {new}")
    else:
        new = list(sizes) or [scaled(d, s) for d, s in zip(old, scales, strict=True)]
    for k, (before, after) in enumerate(zip(old, new, strict=True)):
        low, high, part = elements(before, after, mode, coordinate_transformation_mode)
        if mode == "nearest":
            x = np.take(x, low, axis=k + 2)
            continue
        part = part.reshape(-1, *[1] * (len(old) - k - 1))
        x = np.take(x, low, axis=k + 2) * (1 - part) + np.where(part > 0, np.take(x, high, axis=k + 2), 0) * part
    return rounded(from_channels_first(x, data_format), src.dtype)


def elements(old: int, new: int, mode: str, transformation: str) -> tuple[Array, Array, Array]:
    """For each element of an axis of `new` two elements of one of `old`, and the second one's part of the mean, f64."""
    o = np.arange(new, dtype=np.int64)
    up, down = (2 * o + 1) * old - new, 2 * new  # where they lie, as exact fractions
    if transformation == "align_corners":
        up, down = o * (old - 1), max(new - 1, 1)
    if mode == "nearest":
        nearest = np.clip((2 * up + down) // (2 * down), 0, old - 1)  # floor(up / down + 1/2)
        return nearest, nearest, np.zeros(new)
    place = np.clip(up / down, 0, old - 1)
    low = place.astype(np.int64)
    return low, np.minimum(low + 1, old - 1), place - low
