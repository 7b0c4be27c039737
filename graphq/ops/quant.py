"""The operations quantize, dequantize, quantize_linear and dequantize_linear.

quantize and dequantize have scales and zero points as attributes. If `qtype` is per_tensor, there is one scale and one
zero point; if it is per_channel, one of each for every index along `axis`. Scales are rounded to f32 and may have any
sign. quantize divides by the scales, so it refuses 0. Absent zero points count as zeros.

quantize_linear and dequantize_linear have scales and zero points as operands: one for all elements, one for each index
along `axis`, or (if `block_size` > 0) one for each block of `block_size` elements along `axis`. The last block may be
smaller.
"""
from typing import Literal, TypeAlias

import numpy as np

from graphq import dtypes as t
from graphq.dtypes import DType, as_dtype, f8_e4m3, f8_e5m2, f32, s8, s16, s32, u8, u16
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, register_op, shapes_agree
from graphq.ops.rules import FLOATS, ONE, Array, Shape, expect_dtype, normal_axis, one_of, show

QType: TypeAlias = Literal["per_tensor", "per_channel"]

DEQUANTIZES = ("dequantize", "dynamic_dequantize")
"""Operations that convert quantized integers to floats, with scales as attributes or as operands."""
QUANTIZED = (s8, u8, f8_e4m3, f8_e5m2, s16, u16)
"""The dtypes of quantized tensors: oneDNN's dtypes, and ONNX's 16-bit integers."""

_ROUNDS_TO_0, _ROUNDS_TO_INFINITY = 2.0**-150, 2.0**128 - 2.0**103
"""Magnitudes up to the first threshold round to 0 in f32; magnitudes from the second on round to infinity."""


def check_parameters(shape: Shape, dtype: DType, qtype: str, axis: int, scales: tuple[float, ...],
                     zps: tuple[int, ...] | None, *, zeros: bool) -> None:
    """Check that scales and zero points fit the tensor's shape and its quantized dtype.

    Scales may have any sign. Scales that are 0 as f32 are allowed only with `zeros`.
    """
    count = len(scales)
    if zps is not None and len(zps) != count:
        raise GraphError(f"zps and scales must have the same length, got {len(zps)} and {count}")
    if qtype == "per_tensor" and count != 1:
        raise GraphError(f"qtype per_tensor takes 1 scale, got {count}")
    if qtype != "per_tensor" and shape is not None and (
            channels := shape[normal_axis(axis, shape)]) not in (count, None):
        raise GraphError(f"qtype per_channel takes {channels} scales at axis {axis} of shape {show(shape)}, "
                         f"got {count}")
    for scale in scales:
        if not abs(scale) < _ROUNDS_TO_INFINITY or not zeros and abs(scale) <= _ROUNDS_TO_0:
            raise GraphError(f"scales must be finite {'' if zeros else 'and not 0 '}as f32, got {scale}")
    if zps is not None and dtype.kind == "float":
        raise GraphError(f"zps must be absent for {dtype}, got {list(zps[:8])}")
    low, high = (0, 0) if dtype == s32 else (dtype.min, dtype.max)
    for zp in zps or ():
        if not low <= zp <= high:
            raise GraphError(f"a zero point of {dtype} must be in [{low}, {high}], got {zp}")


def along(values: Array, qtype: str, axis: int, ndim: int) -> Array:
    """Reshape scales or zero points to broadcast with a tensor of `ndim` axes, or for per_group with its blocks."""
    if qtype == "per_tensor":
        return values.reshape(())
    if qtype == "per_channel":
        return values.reshape([-1 if k == axis % ndim else 1 for k in range(ndim)])
    return values.reshape([n for d in values.shape for n in (d, 1)])


def infer_dequantize(src: TensorType, *, qtype: str, axis: int, scales: tuple[float, ...],
                     zps: tuple[int, ...] | None, group_axis: int | None) -> TensorType:
    """`src` has a quantized dtype, or is s32 for a quantized bias. The result is f32."""
    expect_dtype("src", src, (*QUANTIZED, s32))
    shape = src.shape if group_axis is None else _with_groups(src.shape, qtype, axis, group_axis, len(scales))
    check_parameters(shape, src.dtype, qtype, axis, scales, zps, zeros=True)
    return TensorType(f32, src.shape)


def _with_groups(shape: Shape, qtype: str, axis: int, group_axis: int, scales: int) -> Shape:
    """The shape, except that `axis` has the channels of all groups. Raises GraphError if the groups do not fit."""
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
def dequantize(src: Array, *, qtype: QType = "per_tensor", axis: int = 1, scales: list[float],
               zps: list[int] | None = None, group_axis: int | None = None) -> Array:
    """`(src - zps) * scales` as f32, with an exact s32 difference (oneDNN Dequantize; s32 as in ONNX, zero point 0).

    per_channel has one scale and zero point for each index along `axis`. `group_axis` is for weights of transposed
    convolutions: `src` is split along this axis into (number of scales / number of channels) groups, and channel c of
    group k has scale `k * channels + c`.
    """
    if group_axis is not None:
        groups = len(scales) // src.shape[axis]
        parts = zip(np.split(src, groups, group_axis), np.split(np.asarray(scales), groups),
                    np.split(np.asarray(zps or [0] * len(scales)), groups), strict=True)
        return np.concatenate([dequantize.reference(x, qtype=qtype, axis=axis, scales=s.tolist(), zps=z.tolist())
                               for x, s, z in parts], group_axis)
    scale = along(np.asarray(scales, np.float32), qtype, axis, src.ndim)
    if src.dtype.kind not in "iu" or src.dtype == np.int32:
        return np.asarray(src.astype(np.float32) * scale)
    zp = along(np.asarray(zps or [0] * len(scales), np.int32), qtype, axis, src.ndim)
    return np.asarray((src.astype(np.int32) - zp).astype(np.float32) * scale)


def infer_quantize(src: TensorType, *, dtype: DType, qtype: str, axis: int, scales: tuple[float, ...],
                   zps: tuple[int, ...] | None) -> TensorType:
    """`src` is f32, and the result has a quantized dtype."""
    expect_dtype("src", src, (f32,))
    one_of("dtype", dtype, QUANTIZED)
    check_parameters(src.shape, dtype, qtype, axis, scales, zps, zeros=False)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_quantize, elementwise=True, layout="scaled")
def quantize(src: Array, *, dtype: DType, qtype: QType = "per_tensor", axis: int = 1, scales: list[float],
             zps: list[int] | None = None) -> Array:
    """`saturate(rint(src / scales) + zps)`, ties to even (oneDNN Quantize). NaN becomes the zero point.

    For f8 the result is `src / scales` rounded to nearest even. Quotients beyond the range, infinities included, become
    the greatest finite value with the same sign, and NaN stays NaN (ONNX Cast, saturate=1).
    """
    q = src / along(np.asarray(scales, np.float32), qtype, axis, src.ndim)
    low, high = np.float32(dtype.min), np.float32(dtype.max)
    if dtype.kind == "float":
        return np.asarray(np.clip(q, low, high).astype(dtype.numpy))
    zp = along(np.asarray(zps or [0] * len(scales), np.float32), qtype, axis, src.ndim)
    q = np.where(np.isnan(q), zp, np.rint(q) + zp)
    return np.asarray(np.clip(q, low, high).astype(dtype.numpy))


INTEGERS = (t.s8, t.u8, t.s16, t.u16, t.s4, t.u4, t.s2, t.u2)
NARROW = (t.f8_e4m3, t.f8_e4m3fnuz, t.f8_e5m2, t.f8_e5m2fnuz, t.f6_e2m3, t.f6_e3m2, t.f4_e2m1)
SCALES = (*FLOATS, t.f8_e8m0)


def check_granularity(src: Shape, scale: Shape, axis: int, block_size: int) -> None:
    """Check that the shape of the scale fits the shape of `src`."""
    if src is None or scale is None or scale in ONE and not block_size:
        return
    if block_size < 0:
        raise GraphError(f"block_size must not be negative, got {block_size}")
    k = normal_axis(axis, src)
    want: tuple[Dim, ...] = (src[k],)
    if block_size:
        size = src[k]
        want = (*src[:k], None if size is None else -(-size // block_size), *src[k + 1:])
    if not shapes_agree(want, scale):
        raise GraphError(f"scales must have shape [], [1] or {show(want)} for {show(src)} at axis {axis}"
                         f"{f' in blocks of {block_size}' if block_size else ''}, got {show(scale)}")


def spread(values: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Reshape or repeat scales or zero points to broadcast with a tensor of `shape`."""
    if values.size == 1 and not block_size:
        return values.reshape(())
    k = axis % len(shape)
    if block_size:
        return np.take(values, np.arange(shape[k]) // min(block_size, max(shape[k], 1)), axis=k)
    return values.reshape([-1 if d == k else 1 for d in range(len(shape))])


def _check_zero_point(dtype: DType, scale: TensorType, zero_point: TensorType | None) -> None:
    if zero_point is None:
        return
    if zero_point.dtype != dtype:
        raise GraphError(f"'zero_point' must be {dtype}, got {zero_point}")
    if not shapes_agree(scale.shape, zero_point.shape):
        raise GraphError(f"'zero_point' must have the scale's shape, got {zero_point} and {scale}")


def infer_quantize_linear(src: TensorType, scale: TensorType, zero_point: TensorType | None = None, *, dtype: DType,
                          axis: int, block_size: int, saturate: bool, precision: DType) -> TensorType:
    """`src` is a float tensor or s32, and the result has a quantized dtype."""
    expect_dtype("src", src, (*FLOATS, t.s32))
    expect_dtype("scale", scale, (*SCALES, t.s32))
    one_of("dtype", dtype, (*INTEGERS, *NARROW))
    one_of("precision", precision, (*FLOATS, t.f64))
    _check_zero_point(dtype, scale, zero_point)
    check_granularity(src.shape, scale.shape, axis, block_size)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_quantize_linear)
def quantize_linear(src: Array, scale: Array, zero_point: Array | None = None, *, dtype: DType, axis: int = 1,
                    block_size: int = 0, saturate: bool = True, precision: DType = t.f32) -> Array:
    """`saturate(rint(src / scale) + zero_point)`, ties to even (ONNX QuantizeLinear). NaN becomes the zero point.

    The quotient is rounded to `precision`. If `dtype` is a float, the quotient, plus the zero point if given, is
    then rounded to nearest even; NaN stays NaN, or becomes 0 in types without NaN. Results beyond the range, infinities
    included, become the greatest finite value with the same sign. Without `saturate` these become infinities, or NaN in
    a dtype without infinities.
    """
    s = spread(scale.astype(np.float64), src.shape, axis, block_size)
    # An f64 quotient has enough bits to be rounded again, to f32, bf16 or f16, without an error: 53 >= 2 * 24 + 2.
    q = (src.astype(precision.numpy).astype(np.float64) / s).astype(precision.numpy).astype(np.float64)
    if dtype.kind == "float":
        if zero_point is not None:
            q = q + spread(zero_point.astype(np.float64), src.shape, axis, block_size)
        if dtype.bits < 8:
            q = np.where(np.isnan(q), 0.0, q)  # the sign of a converted NaN depends on the CPU
        top = np.float64(dtype.max)
        return np.asarray((np.clip(q, -top, top) if saturate or dtype.bits < 8 else q).astype(dtype.numpy))
    zp = np.float64(0) if zero_point is None else spread(zero_point.astype(np.float64), src.shape, axis, block_size)
    y = np.where(np.isnan(q), zp, np.rint(q) + zp)
    return np.asarray(np.clip(y, dtype.min, dtype.max).astype(np.int32).astype(dtype.numpy))


def infer_dequantize_linear(src: TensorType, scale: TensorType, zero_point: TensorType | None = None, *, dtype: DType,
                            axis: int, block_size: int) -> TensorType:
    """`src` has a quantized dtype or is s32, and the result is a float tensor."""
    expect_dtype("src", src, (*INTEGERS, *NARROW, t.s32))
    expect_dtype("scale", scale, SCALES)
    one_of("dtype", dtype, FLOATS)
    _check_zero_point(src.dtype, scale, zero_point)
    check_granularity(src.shape, scale.shape, axis, block_size)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_dequantize_linear)
def dequantize_linear(src: Array, scale: Array, zero_point: Array | None = None, *, dtype: DType = t.f32,
                      axis: int = 1, block_size: int = 0) -> Array:
    """`(src - zero_point) * scale` in f32, with an exact difference, rounded to `dtype` (ONNX DequantizeLinear)."""
    s = spread(scale.astype(np.float32), src.shape, axis, block_size)
    if as_dtype(src.dtype).kind == "float":
        x = src.astype(np.float32)
    else:
        zp = 0 if zero_point is None else spread(zero_point.astype(np.int64), src.shape, axis, block_size)
        x = (src.astype(np.int64) - zp).astype(np.float32)
    return np.asarray((x * s).astype(dtype.numpy))
