"""The operations dynamic_quantize and dynamic_dequantize, whose scales and zero points are operands.

`qtype` is per_tensor (one scale and zero point, [] or [1]), per_channel (one for each index along `axis`) or per_group
(one for each block of `group_shape` elements; only for dynamic_dequantize).
"""
from typing import Literal

import numpy as np

from graphq.dtypes import DType, as_dtype, f8_e4m3, f8_e5m2, f32, s2, s4, s8, s32, u2, u4, u8
from graphq.errors import GraphError
from graphq.ir import TensorType, register_op, shapes_agree
from graphq.ops.quant import NARROW, SCALES, along
from graphq.ops.rules import FLOATS, ONE, Array, Shape, expect_dtype, normal_axis, one_of, rounded, show

# oneDNN's tables: for each quantized dtype, the possible dtypes of zero points. oneDNN 3.13 also accepts 8-bit zero
# points for 4-bit data, although its documentation does not say so. Floats and 2 bits are not in the tables.
ZERO_POINTS: dict[DType, tuple[DType, ...]] = {
    **dict.fromkeys((s8, u8), (s8, u8, s32)), **dict.fromkeys((s4, u4), (s4, u4, s8, u8, s32)),
    **dict.fromkeys((s2, u2), (s2, u2, s4, u4, s8, u8, s32)), **dict.fromkeys(NARROW, ())}


def _check_zps(dtype: DType, scales: TensorType, zps: TensorType | None) -> None:
    if zps is None:
        return
    allowed = ZERO_POINTS[dtype]
    if not allowed:
        raise GraphError(f"'zps' must be absent for {dtype}, got {zps}")
    expect_dtype("zps", zps, allowed)
    if not shapes_agree(scales.shape, zps.shape):
        raise GraphError(f"'zps' must have the shape of 'scales', got {zps} and {scales}")


def _check_scales(src: TensorType, scales: TensorType, qtype: str, axis: int, group_shape: tuple[int, ...]) -> None:
    got = scales.shape
    if qtype == "per_group":
        return _check_groups(src.shape, got, group_shape)
    if group_shape:
        raise GraphError(f"group_shape needs qtype per_group, got {list(group_shape)} with {qtype}")
    if qtype == "per_tensor":
        if got not in ONE:
            raise GraphError(f"qtype per_tensor takes 'scales' [] or [1], got {scales}")
        return None
    if got is not None and len(got) != 1:
        raise GraphError(f"qtype per_channel takes one-dimensional 'scales', got {scales}")
    if src.shape is None:
        return None
    channels = src.shape[normal_axis(axis, src.shape)]
    if got is not None and channels is not None and got[0] not in (channels, None):
        raise GraphError(f"qtype per_channel takes {channels} 'scales' at axis {axis} of {src}, got {scales}")
    return None


def _check_groups(src: Shape, scales: Shape, group_shape: tuple[int, ...]) -> None:
    if not group_shape or any(g < 1 for g in group_shape):
        raise GraphError(f"qtype per_group needs a group_shape of positive sizes, got {list(group_shape)}")
    for name, shape in (("src", src), ("scales", scales)):
        if shape is not None and len(shape) != len(group_shape):
            raise GraphError(f"group_shape must have one size per axis of '{name}' {show(shape)}, "
                             f"got {list(group_shape)}")
    for k, g in enumerate(group_shape):
        d, n = None if src is None else src[k], None if scales is None else scales[k]
        if d is not None and (d % g != 0 or n not in (d // g, None)):
            raise GraphError(f"groups of {list(group_shape)} must divide 'src' {show(src)} into as many as 'scales' "
                             f"has, got {show(scales)}")


def infer_dynamic_quantize(src: TensorType, scales: TensorType, zps: TensorType | None = None, *, dtype: DType,
                           qtype: str, axis: int) -> TensorType:
    """`src` is f32, and `dtype` is s8, u8 or f8."""
    expect_dtype("src", src, (f32,))
    expect_dtype("scales", scales, (f32,))
    one_of("dtype", dtype, (s8, u8, f8_e4m3, f8_e5m2))
    _check_zps(dtype, scales, zps)
    _check_scales(src, scales, qtype, axis, ())
    return TensorType(dtype, src.shape)


@register_op(infer=infer_dynamic_quantize, layout="scaled")
def dynamic_quantize(src: Array, scales: Array, zps: Array | None = None, *, dtype: DType,
                     qtype: Literal["per_tensor", "per_channel"] = "per_tensor", axis: int = 1) -> Array:
    """`saturate(rint(src / scales) + zps)`, ties to even, as in quantize (oneDNN DynamicQuantize).

    Scales may be 0 or negative. NaN becomes the zero point, saturated. oneDNN's operation has no f8 results;
    graphq computes f8 as in quantize.
    """
    q = src / along(scales, qtype, axis, src.ndim)
    if dtype.kind == "float":
        return np.asarray(np.clip(q, np.float32(dtype.min), np.float32(dtype.max)).astype(dtype.numpy))
    zp = np.zeros(()) if zps is None else along(zps.astype(np.float64), qtype, axis, src.ndim)
    y = np.where(np.isnan(q), zp, np.rint(q) + zp)
    return np.asarray(np.clip(y, dtype.min, dtype.max).astype(dtype.numpy))


def infer_dynamic_dequantize(src: TensorType, scales: TensorType, zps: TensorType | None = None, *, qtype: str,
                             axis: int, group_shape: tuple[int, ...], dtype: DType | None) -> TensorType:
    """`src` has a quantized dtype. The result has the float dtype `dtype`, or the dtype of the scales."""
    expect_dtype("src", src, tuple(ZERO_POINTS))
    expect_dtype("scales", scales, SCALES if dtype is not None else FLOATS)
    if dtype is not None:
        one_of("dtype", dtype, FLOATS)
    _check_zps(src.dtype, scales, zps)
    _check_scales(src, scales, qtype, axis, group_shape)
    return TensorType(scales.dtype if dtype is None else dtype, src.shape)


@register_op(infer=infer_dynamic_dequantize, layout="scaled")
def dynamic_dequantize(src: Array, scales: Array, zps: Array | None = None, *,
                       qtype: Literal["per_tensor", "per_channel", "per_group"] = "per_tensor", axis: int = 1,
                       group_shape: tuple[int, ...] = (), dtype: DType | None = None) -> Array:
    """`(src - zps) * scales` in f32, with an exact difference, rounded to `dtype` (oneDNN DynamicDequantize).

    For per_group, `group_shape` is the size of a block along each axis, and scales and zps have one value for each
    block. A `dtype` of None means the dtype of the scales.
    """
    blocks = src.shape
    if group_shape:  # each axis is split in two: the number of blocks, and the size of a block
        blocks = tuple(n for d, g in zip(src.shape, group_shape, strict=True) for n in (d // g, g))
    scale = along(scales.astype(np.float32), qtype, axis, src.ndim)
    if as_dtype(src.dtype).kind == "float":
        x = src.astype(np.float32).reshape(blocks)
    else:
        zp = np.zeros((), np.int64) if zps is None else along(zps.astype(np.int64), qtype, axis, src.ndim)
        x = (src.astype(np.int64).reshape(blocks) - zp).astype(np.float32)
    return rounded(x * scale, scales.dtype if dtype is None else dtype.numpy).reshape(src.shape)
