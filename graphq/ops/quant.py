"""The operations quantize and dequantize.

With `qtype` per_tensor there are one scale and one zero point, and `axis` is ignored; with per_channel there is one of
each for every index along `axis`. Scales are f32: the operations round the given numbers to f32. Absent zero points
count as zeros.

Weights of a transposed convolution with groups may have separate scales in every group. With `group_axis`, dequantize
per_channel therefore splits this axis into groups, and takes scales for the channels of each group in turn: the scale
of channel c of group k is number k * channels + c.
"""
from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from graphq.dtypes import DType, f8_e4m3, f8_e5m2, f32, s8, s16, s32, u8, u16
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ops.compute import Array, quiet
from graphq.ops.infer import Shape, expect_dtype, normal_axis, show

QType: TypeAlias = Literal["per_tensor", "per_channel"]

DEQUANTIZES = ("dequantize", "dynamic_dequantize")
"""Operations that convert quantized integers to floats: one with constant scales, one whose scales are tensors."""
QUANTIZED = (s8, u8, f8_e4m3, f8_e5m2, s16, u16)
"""The dtypes of quantized tensors: oneDNN's, and ONNX's of 16 bits."""

_ROUNDS_TO_0, _ROUNDS_TO_INFINITY = 2.0**-150, 2.0**128 - 2.0**103
"""In f32 numbers up to the first threshold round to 0, and numbers from the second on to infinity (ties to even)."""


def check_parameters(shape: Shape, dtype: DType, qtype: str, axis: int, scales: tuple[float, ...],
                     zps: tuple[int, ...] | None) -> None:
    """Raise GraphError unless scales and zero points fit the tensor's shape and its quantized dtype."""
    _check_counts(shape, qtype, axis, len(scales), None if zps is None else len(zps))
    for scale in scales:
        if not _ROUNDS_TO_0 < scale < _ROUNDS_TO_INFINITY:
            raise GraphError(f"scales must be finite and positive as f32, got {scale}")
    if zps is not None:
        _check_zero_points(dtype, zps)


def _check_counts(shape: Shape, qtype: str, axis: int, scales: int, zps: int | None) -> None:
    if zps is not None and zps != scales:
        raise GraphError(f"zps must be as many as scales, got {zps} and {scales}")
    if qtype == "per_tensor":
        if scales != 1:
            raise GraphError(f"qtype per_tensor takes 1 scale, got {scales}")
        return
    if shape is None:
        return
    channels = shape[normal_axis(axis, shape)]
    if channels not in (scales, None):
        raise GraphError(f"qtype per_channel takes {channels} scales at axis {axis} of shape {show(shape)}, "
                         f"got {scales}")


def _check_zero_points(dtype: DType, zps: tuple[int, ...]) -> None:
    if dtype.kind == "float":
        raise GraphError(f"zps must be absent for {dtype}, got {list(zps[:8])}")
    low, high = (0, 0) if dtype == s32 else (dtype.min, dtype.max)
    for zp in zps:
        if not low <= zp <= high:
            raise GraphError(f"a zero point of {dtype} must be in [{low}, {high}], got {zp}")


def _along(values: tuple[float, ...], dtype: type, qtype: str, axis: int, ndim: int) -> Array:
    """The parameters as an array that broadcasts with a tensor of rank `ndim`."""
    array: Array = np.asarray(values, dtype)
    if qtype == "per_tensor":
        return array.reshape(())
    return array.reshape([-1 if k == axis % ndim else 1 for k in range(ndim)])


def infer_dequantize(src: TensorType, *, qtype: str, axis: int, scales: tuple[float, ...],
                     zps: tuple[int, ...] | None, group_axis: int | None) -> TensorType:
    """The source has a quantized dtype, or is s32 as a quantized bias; the result is f32."""
    expect_dtype("src", src, (*QUANTIZED, s32))
    shape = src.shape if group_axis is None else _with_groups(src.shape, qtype, axis, group_axis, len(scales))
    check_parameters(shape, src.dtype, qtype, axis, scales, zps)
    return TensorType(f32, src.shape)


def _with_groups(shape: Shape, qtype: str, axis: int, group_axis: int, scales: int) -> Shape:
    """A tensor's shape with the channels of all groups along `axis`; raises GraphError if groups do not fit."""
    if qtype != "per_channel":
        raise GraphError(f"group_axis needs qtype per_channel, got {group_axis} with {qtype}")
    if shape is None:
        return None
    at, split = normal_axis(axis, shape), normal_axis(group_axis, shape, "group_axis")
    if at == split:
        raise GraphError(f"group_axis must not be axis, got {group_axis} and {axis} for shape {show(shape)}")
    channels, size = shape[at], shape[split]
    if channels is None:
        return shape
    groups, rest = divmod(scales, max(1, channels))
    if not channels or not groups or rest or size is not None and size % groups != 0:
        raise GraphError(f"scales must be a multiple of {channels}, one for each of as many groups as divide axis "
                         f"{group_axis} of shape {show(shape)}, got {scales}")
    return (*shape[:at], scales, *shape[at + 1:])


@register_op(infer=infer_dequantize, elementwise=True, layout="scaled")
@quiet
def dequantize(src: Array, *, qtype: QType = "per_tensor", axis: int = 1, scales: list[float],
               zps: list[int] | None = None, group_axis: int | None = None) -> Array:
    """`(src - zps) * scales` as f32, with an exact s32 difference (oneDNN Dequantize; s32 as in ONNX, zero point 0).

    per_channel takes one scale and zero point for each index along `axis`. `group_axis` is for the weights of a
    transposed convolution with groups: `src` is split along this axis into (number of scales / number of channels)
    groups, and channel c of group k has scale `k * channels + c`.
    """
    if group_axis is not None:
        groups = len(scales) // src.shape[axis]
        parts = zip(np.split(src, groups, group_axis), np.split(np.asarray(scales), groups),
                    np.split(np.asarray(zps or [0] * len(scales)), groups), strict=True)
        return np.concatenate([dequantize.reference(x, qtype=qtype, axis=axis, scales=s.tolist(), zps=z.tolist())
                               for x, s, z in parts], group_axis)
    scale = _along(tuple(scales), np.float32, qtype, axis, src.ndim)
    if src.dtype.kind not in "iu" or src.dtype == np.int32:
        return np.asarray(src.astype(np.float32) * scale)
    zp = _along(tuple(zps or [0] * len(scales)), np.int32, qtype, axis, src.ndim)
    return np.asarray((src.astype(np.int32) - zp).astype(np.float32) * scale)


def infer_quantize(src: TensorType, *, dtype: DType, qtype: str, axis: int, scales: tuple[float, ...],
                   zps: tuple[int, ...] | None) -> TensorType:
    """The source is f32, the result has a quantized dtype."""
    expect_dtype("src", src, (f32,))
    if dtype not in QUANTIZED:
        raise GraphError(f"dtype must be {listing(QUANTIZED)}, got {dtype}")
    check_parameters(src.shape, dtype, qtype, axis, scales, zps)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_quantize, elementwise=True, layout="scaled")
@quiet
def quantize(src: Array, *, dtype: DType, qtype: QType = "per_tensor", axis: int = 1, scales: list[float],
             zps: list[int] | None = None) -> Array:
    """`saturate(rint(src / scales) + zps)` as integers, ties to even; NaN gives the zero point (oneDNN Quantize).

    For f8 the result is `src / scales` rounded to nearest even. Quotients beyond the range, infinities included, become
    the greatest finite value, and NaN stays (ONNX Cast, saturate=1).
    """
    q = src / _along(tuple(scales), np.float32, qtype, axis, src.ndim)
    low, high = np.float32(dtype.min), np.float32(dtype.max)
    if dtype.kind == "float":
        return np.asarray(np.clip(q, low, high).astype(dtype.numpy))
    zp = _along(tuple(zps or [0] * len(scales)), np.float32, qtype, axis, src.ndim)
    q = np.where(np.isnan(q), zp, np.rint(q) + zp)
    return np.asarray(np.clip(q, low, high).astype(dtype.numpy))
