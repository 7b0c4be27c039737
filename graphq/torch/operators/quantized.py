"""Importers of quantized operators of PT2E (`quantized_decomposed`) and torchao.

PyTorch quantizes by `x * (1 / scale)`, rounded to f32, and graphq by `x / scale`. The graph therefore multiplies first
and quantizes with the scale 1, except that a reciprocal which is a power of two has an exact scale.
"""
import math
from typing import Any

import numpy as np
import torch

from graphq import dtypes as t
from graphq.dtypes import DType
from graphq.ir import Value
from graphq.ops.quant import QUANTIZED
from graphq.torch.operators.importer import AtenCall, Result, dtype_of, imports

NARROW = {(-8, 7): t.s4, (0, 15): t.u4}
"""The 4-bit types that constants with these limits become."""


def numbers(x: Any) -> np.ndarray | None:
    """The numbers in an argument, or None if they are not known before the program runs."""
    return x.data if isinstance(x, Value) else np.asarray(0 if x is None else x)


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Numbers for each index along an axis, in a shape that broadcasts; one number is a scalar."""
    return values.reshape(() if values.size == 1 else [-1 if k == axis % rank else 1 for k in range(rank)])


def parameters(c: AtenCall) -> tuple[Any, Any, int]:
    """The scales, the zero points and their axis, which some operators call `scales` and some `scale`."""
    end = "s" if "scales" in c.args else ""
    return c[f"scale{end}"], c[f"zero_point{end}"], c["axis"] or 0


def rounded(c: AtenCall, y: Value, zp: Value | np.ndarray | None, low: float, high: float, dtype: DType) -> Value:
    """`clamp(round(y) + zp, low, high)` as integers."""
    units = c.Round(y)
    units = units if zp is None else c.Add(units, zp)
    limited = c.graph.clamp(units, min=low, max=high) if y.dtype == t.f32 else c.Min(c.Max(units, low), high)
    return c.value(limited, dtype)


@imports("quantized_decomposed.quantize_per_tensor quantized_decomposed.quantize_per_channel")
def quantize(c: AtenCall) -> Result:
    """Import `clamp(round(x * (1 / scale)) + zero_point, low, high)`, with scales that are known or computed."""
    low, high, dtype, x = c["quant_min"], c["quant_max"], dtype_of(c["dtype"]), c.value(c.x, t.f32)
    given, zero_points, axis = parameters(c)
    scales, zp, rank = numbers(given), numbers(zero_points), len(c.dims(x))
    if scales is None or zp is None:
        inverse = c.Reciprocal(c.value(given, t.f32))
        return rounded(c, c.Mul(x, inverse), c.value(zero_points, t.f32), low, high, dtype)
    with np.errstate(all="ignore"):
        # a per-tensor scale is a double of Python; a tensor of scales is inverted in its own dtype
        inverse = (1.0 / (scales if "channel" in c.op else scales.astype(np.float64))).astype(np.float32)
    inverse, zp = along(inverse, axis, rank), along(zp, axis, rank)
    if x.data is not None or dtype not in QUANTIZED:  # a constant is quantized at once
        return rounded(c, c.Mul(x, inverse), zp.astype(np.float32), low, high, dtype)
    if (low, high) == (dtype.min, dtype.max):
        if inverse.ndim == 0 and math.frexp(inverse)[0] == 0.5 and math.isfinite(np.float32(1) / inverse):
            return c.graph.quantize(x, dtype=dtype, scales=[1 / float(inverse)], zps=[int(zp)])
        y = c.graph.multiply(x, inverse)
    else:  # rounding does not move a number over an integer
        y = c.Min(c.Max(c.graph.multiply(x, inverse), np.float32(low - zp)), np.float32(high - zp))
    if len({*zp.reshape(-1).tolist()}) == 1:
        return c.graph.quantize(y, dtype=dtype, scales=[1.0], zps=[int(zp.reshape(-1)[0])])
    return c.graph.quantize(y, dtype=dtype, qtype="per_channel", axis=axis, scales=[1.0] * zp.size,
                            zps=zp.reshape(-1).tolist())


@imports("quantized_decomposed.dequantize_per_tensor quantized_decomposed.dequantize_per_channel")
def dequantize(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale`, with scales that are known or computed."""
    x, (given, zero_points, axis) = c.x, parameters(c)
    scales, zp = numbers(given), numbers(zero_points)
    if scales is None or zp is None:
        return c.value(c.graph.dynamic_dequantize(x, c.value(given, t.f32), c.value(zero_points, t.s32)))
    if c.dtype() == t.f32 and (x.dtype in QUANTIZED or x.dtype == t.s32 and not zp.any()):
        how: dict[str, Any] = {"qtype": "per_channel", "axis": axis} if "channel" in c.op else {}
        return c.graph.dequantize(x, scales=scales.reshape(-1).astype(np.float64).tolist(),
                                  zps=zp.reshape(-1).tolist() if zp.any() else None, **how)
    y, rank = c.value(x, t.f32 if "channel" in c.op else None), len(c.dims(x))
    if zero_points is not None:
        y = c.Sub(y, c.value(along(zp, axis, rank), y.dtype))
    return c.value(c.Mul(y, c.value(along(scales, axis, rank), y.dtype)))


def ranges(c: AtenCall, x: Value, axes: list[int] | None) -> tuple[Value, Value]:
    """The least and the greatest element over axes (None: all), at most and at least 0."""
    keep = int(axes is not None)
    return c.Min(c.ReduceMin(x, axes, keepdims=keep), 0), c.Max(c.ReduceMax(x, axes, keepdims=keep), 0)


def chosen(c: AtenCall, x: Value, axes: list[int] | None, low: float, high: float, epsilon: float,
           symmetric: bool) -> tuple[Value, Value]:
    """The scale (f32) and zero point (f32) that a range needs; a symmetric range has the zero point in its middle."""
    least, most = ranges(c, x, axes)
    if symmetric:
        scale = c.Max(c.Div(c.Max(c.Neg(least), most), (high - low) / 2), epsilon)
        return scale, c.Add(c.Mul(scale, 0), (high + low + 1) // 2)
    scale = c.Max(c.Div(c.Sub(most, least), high - low), epsilon)
    return scale, c.graph.clamp(c.Sub(low, c.Round(c.Div(least, scale))), min=low, max=high)


@imports("quantized_decomposed.choose_qparams quantized_decomposed.choose_qparams_symmetric")
def choose_qparams(c: AtenCall) -> Result:
    """Import the scale [1] and zero point [1] of a tensor's range; scales are f32 here, and f64 in the program."""
    symmetric = "symmetric" in c.op
    one = [c.graph.static_reshape(v, shape=[1]) for v in chosen(
        c, c.value(c.x, t.f32), None, c["quant_min"], c["quant_max"], c["eps"], symmetric)]
    if symmetric:
        one[1] = c.value([128 if c["dtype"] == torch.uint8 else 0], t.f32)
    return [one[0], c.value(one[1], t.s32)]


@imports("quantized_decomposed.choose_qparams_per_token quantized_decomposed.choose_qparams_per_token_asymmetric "
         "quantized_decomposed._choose_qparams_per_token_asymmetric_impl")
def choose_per_token(c: AtenCall) -> Result:
    """Import a scale and a zero point for each row. Asymmetric scales are f64, and quantize in f64, as in PyTorch."""
    x = c.value(c.x, t.f32)
    if "asymmetric" not in c.op:
        scale = c.Div(c.Max(c.ReduceMax(c.Abs(x), [-1], keepdims=1), 1e-5), 127)
        return [scale, c.Mul(scale, 0)]
    least, most = ranges(c, x, [-1])
    scale = c.Max(c.Div(c.Sub(most, least), 255), np.finfo(np.float32).eps)
    low, high = c.Div(least, scale), c.Div(most, scale)
    errors = c.Add(c.Add(low, -128), c.Add(high, 127))
    zp = c.Where(c.Greater(errors, 0), c.Sub(-128, low), c.Sub(127, high))
    return [c.value(scale, t.f64), c.value(c.Round(c.graph.clamp(zp, min=-128, max=127)), t.s32)]


@imports("quantized_decomposed.quantize_per_token")
def quantize_per_token(c: AtenCall) -> Result:
    """Import `clamp(round(x * (1 / scale) + zero_point), low, high)` in the dtype of the scales."""
    wide = t.f64 if c["scales"].dtype == t.f64 else t.f32
    units = c.Add(c.Mul(c.value(c.x, wide), c.Reciprocal(c["scales"])), c.value(c["zero_points"], wide))
    return rounded(c, units, None, c["quant_min"], c["quant_max"], dtype_of(c["dtype"]))


@imports("quantized_decomposed.dequantize_per_token torchao.dequantize_affine")
def dequantize_blocks(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale` with a scale for each row, or for each of torchao's blocks.

    Constants with the limits of 4 bits become 4-bit constants.
    """
    x, dims, (scale, zp, _) = c.x, c.dims(c.x), parameters(c)
    block = c["block_size"] or [*[1] * (len(dims) - 1), dims[-1]]
    counts = [1 if d == b else -1 if d is None else d // b for d, b in zip(dims, block, strict=True)]
    if zp is not None and (zp.data is not None and not zp.data.any() or zp.type.known and not zp.type.size):
        zp = None
    scale = c.graph.static_reshape(c.value(scale, t.f32), shape=counts)
    zp = None if zp is None else c.value(c.graph.static_reshape(zp, shape=counts), t.s32)
    narrow = NARROW.get((c["quant_min"], c["quant_max"]))
    if x.data is not None and narrow is not None:
        x = c.graph.add_constant(x.data.astype(narrow.numpy))
    return c.value(c.graph.dynamic_dequantize(x, scale, zp, qtype="per_group", group_shape=[
        d if n == 1 and d is not None else b for d, n, b in zip(dims, counts, block, strict=True)]))


def affine(c: AtenCall, dtype: torch.dtype) -> tuple[list[int], DType, float, float]:
    """The axes that a block covers as a whole, the integers' type, and their least and greatest number."""
    block, sizes, kind = c["block_size"], c.fake("input").shape, dtype_of(dtype)
    axes = [k for k, b in enumerate(block) if b != 1]
    if any(isinstance(b, int) and isinstance(d, int) and 1 < b < d for d, b in zip(sizes, block, strict=True)):
        c.refuse(f"activations with blocks {list(block)} of {c.x.type} are not supported")
    low, high = c["quant_min"], c["quant_max"]
    return axes, kind, kind.min if low is None else low, kind.max if high is None else high


@imports("torchao.quantize_affine")
def quantize_affine(c: AtenCall) -> Result:
    """Import torchao's quantize with a scale per tensor or per row."""
    axes, kind, low, high = affine(c, c["output_dtype"])
    counts = [1 if k in axes else d if d is not None else -1 for k, d in enumerate(c.dims(c.x))]
    inverse, zp = (None if v is None else c.graph.static_reshape(c.value(v, t.f32), shape=counts) for v in (
        c.Reciprocal(c.value(c["scale"], t.f32)), c["zero_point"]))
    return rounded(c, c.Mul(c.value(c.x, t.f32), inverse), zp, low, high, kind)


@imports("torchao.choose_qparams_affine")
def choose_affine(c: AtenCall) -> Result:
    """Import torchao's scale and zero point of ranges per tensor or per row."""
    axes, _, low, high = affine(c, c["target_dtype"])
    mapping, epsilon = c["mapping_type"], c["eps"]
    if mapping not in ("SYMMETRIC", "ASYMMETRIC"):
        c.refuse(f"mapping type {mapping} is not supported")
    epsilon = torch.finfo(c.fake("input").dtype).smallest_normal if epsilon is None else epsilon
    scale, zp = (v if c["keepdim"] else c.Squeeze(v, axes) for v in chosen(
        c, c.value(c.x, t.f32), axes, low, high, epsilon, mapping == "SYMMETRIC"))
    return [c.value(scale, dtype_of(c["scale_dtype"]) if c["scale_dtype"] else c.x.dtype),
            c.value(zp, dtype_of(c["zero_point_dtype"]) if c["zero_point_dtype"] else t.s32)]
