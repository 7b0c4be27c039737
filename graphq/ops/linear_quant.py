"""The operations quantize_linear and dequantize_linear: forms of ONNX that quantize and dequantize do not have.

Scales and zero points are tensors: one number for all elements, one for each index of `axis`, or (if `block_size` > 0)
one for each block of `block_size` elements along `axis`. The last block may be smaller.
"""
from __future__ import annotations

import numpy as np

from graphq import dtypes as t
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ir.tensor_type import shapes_agree
from graphq.ops.compute import Array, quiet
from graphq.ops.infer import FLOATS, Shape, expect_dtype, normal_axis, show

INTEGERS = (t.s8, t.u8, t.s16, t.u16, t.s4, t.u4, t.s2, t.u2)
NARROW = (t.f8_e4m3, t.f8_e4m3fnuz, t.f8_e5m2, t.f8_e5m2fnuz, t.f4_e2m1)
SCALES = (*FLOATS, t.f8_e8m0)


def check_granularity(src: Shape, scale: Shape, axis: int, block_size: int) -> None:
    """Raise GraphError unless the scale's shape fits the source's."""
    if src is None or scale is None or scale in ((), (1,)) and not block_size:
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
    """Reshape or repeat scales or zero points so that they broadcast with a tensor of `shape`."""
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
    """The source is a float or s32, the result has a quantized dtype."""
    expect_dtype("src", src, (*FLOATS, t.s32))
    expect_dtype("scale", scale, (*SCALES, t.s32))
    if dtype not in (*INTEGERS, *NARROW):
        raise GraphError(f"dtype must be {listing((*INTEGERS, *NARROW))}, got {dtype}")
    if precision not in (*FLOATS, t.f64):
        raise GraphError(f"precision must be {listing((*FLOATS, t.f64))}, got {precision}")
    _check_zero_point(dtype, scale, zero_point)
    check_granularity(src.shape, scale.shape, axis, block_size)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_quantize_linear)
@quiet
def quantize_linear(src: Array, scale: Array, zero_point: Array | None = None, *, dtype: DType, axis: int = 1,
                    block_size: int = 0, saturate: bool = True, precision: DType = t.f32) -> Array:
    """`saturate(rint(src / scale) + zero_point)`, ties to even (ONNX QuantizeLinear). NaN gives the zero point.

    The quotient is rounded to `precision`. If the result has a float dtype, the quotient, plus the zero point if there
    is one, is rounded to nearest even. Numbers beyond the range of that dtype, infinities included, then become its
    greatest finite value; without `saturate` they become an infinity, or NaN in a dtype without infinities.
    """
    s = spread(scale.astype(np.float64), src.shape, axis, block_size)
    # A quotient in f64, rounded to f32, bf16 or f16, equals that of a division in this dtype: 53 >= 2 * 24 + 2 bits.
    q = (src.astype(precision.numpy).astype(np.float64) / s).astype(precision.numpy).astype(np.float64)
    if dtype.kind == "float":
        if zero_point is not None:
            q = q + spread(zero_point.astype(np.float64), src.shape, axis, block_size)
        top = np.float64(dtype.max)
        return np.asarray((np.clip(q, -top, top) if saturate or dtype == t.f4_e2m1 else q).astype(dtype.numpy))
    zp = np.float64(0) if zero_point is None else spread(zero_point.astype(np.float64), src.shape, axis, block_size)
    y = np.where(np.isnan(q), zp, np.rint(q) + zp)
    return np.asarray(np.clip(y, dtype.min, dtype.max).astype(np.int32).astype(dtype.numpy))


def infer_dequantize_linear(src: TensorType, scale: TensorType, zero_point: TensorType | None = None, *, dtype: DType,
                            axis: int, block_size: int) -> TensorType:
    """The source has a quantized dtype or is s32, the result is a float."""
    expect_dtype("src", src, (*INTEGERS, *NARROW, t.s32))
    expect_dtype("scale", scale, SCALES)
    if dtype not in FLOATS:
        raise GraphError(f"dtype must be {listing(FLOATS)}, got {dtype}")
    _check_zero_point(src.dtype, scale, zero_point)
    check_granularity(src.shape, scale.shape, axis, block_size)
    return TensorType(dtype, src.shape)


@register_op(infer=infer_dequantize_linear)
@quiet
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
