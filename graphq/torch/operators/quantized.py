"""Importers of quantized operators of PT2E (`quantized_decomposed`) and torchao.

PyTorch quantizes by `x * (1 / scale)`, rounded to f32, and graphq by `x / scale`. The graph therefore multiplies first
and quantizes with the scale 1, except that a reciprocal which is a power of two has an exact scale.
"""
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from graphq import dtypes as t
from graphq.dtypes import DType
from graphq.ir import Value
from graphq.ops.quant import QUANTIZED
from graphq.torch.operators.importer import AtenCall, Result, dtype_of, imports, imports_each

NARROW = {(-8, 7): t.s4, (0, 15): t.u4}
"""The 4-bit types that constants with these limits become."""


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Numbers for each index along an axis, in a shape that broadcasts."""
    return values.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


@imports("quantized_decomposed.quantize_per_tensor", "quantized_decomposed.quantize_per_channel")
def quantize(c: AtenCall) -> Result:
    """Import `clamp(round(x * (1 / scale)) + zero_point, low, high)`, with scales that are known or computed."""
    per_channel = "channel" in c.op
    axis, (low, high, dtype) = c.args[3] if per_channel else 0, c.args[-3:]
    x, scale, zp = c.cast(c.input(0), t.f32), numbers(c.args[1]), numbers(c.args[2])
    if scale is None or zp is None:
        inverse = c.onnx("Reciprocal", c.cast(c.args[1], t.f32))
        return rounded(c, c.onnx("Mul", x, inverse), c.cast(c.args[2], t.f32), low, high, dtype_of(dtype))
    with np.errstate(all="ignore"):
        # a per-tensor scale is a double of Python; a tensor of scales is inverted in its own dtype
        inverse = (1.0 / (scale if per_channel else scale.astype(np.float64))).astype(np.float32)
    return by_inverse(c, x, inverse.reshape(-1), zp.reshape(-1), axis, (low, high), dtype_of(dtype))


def numbers(x: Any) -> np.ndarray | None:
    """The numbers in an argument, or None if they are not known before the program runs."""
    return x.data if isinstance(x, Value) else np.asarray(x)


def by_inverse(c: AtenCall, x: Value, inverse: np.ndarray, zp: np.ndarray, axis: int, limits: tuple[int, int],
               dtype: DType) -> Value:
    """Quantize by constant reciprocals of scales; a constant is quantized at once."""
    rank, (low, high) = len(c.dims(x)), limits
    one = len(inverse) == 1
    if x.data is not None or dtype not in QUANTIZED:
        y = c.onnx("Mul", x, np.asarray(along(inverse, axis, rank) if not one else inverse.reshape(())))
        return rounded(c, y, c.number(along(zp, axis, rank) if not one else zp.reshape(()), t.f32), low, high, dtype)
    whole = (low, high) == (dtype.min, dtype.max)
    if one and whole and math.frexp(float(inverse[0]))[0] == 0.5 and math.isfinite(np.float32(1) / inverse[0]):
        return c.graph.quantize(x, dtype=dtype, scales=[1 / float(inverse[0])], zps=[int(zp[0])])
    x = c.graph.multiply(x, inverse.reshape(()) if one else along(inverse, axis, rank))
    if not whole:  # rounding does not move a number over an integer
        ends = [np.float32(n - (along(zp, axis, rank) if len(zp) > 1 else zp.reshape(()))) for n in (low, high)]
        x = c.onnx("Min", c.onnx("Max", x, np.asarray(ends[0])), np.asarray(ends[1]))
    if len({*zp.tolist()}) == 1:
        return c.graph.quantize(x, dtype=dtype, scales=[1.0], zps=[int(zp[0])])
    return c.graph.quantize(x, dtype=dtype, qtype="per_channel", axis=axis, scales=[1.0] * len(zp), zps=zp.tolist())


def rounded(c: AtenCall, y: Value, zp: Value | None, low: float, high: float, dtype: DType) -> Value:
    """`clamp(round(y) + zp, low, high)` as integers."""
    units = c.onnx("Round", y)
    units = units if zp is None else c.onnx("Add", units, zp)
    limited = c.graph.clamp(units, min=low, max=high) if y.dtype == t.f32 else \
        c.onnx("Min", c.onnx("Max", units, c.number(low, y.dtype)), c.number(high, y.dtype))
    return c.cast(limited, dtype)


@imports("quantized_decomposed.dequantize_per_tensor", "quantized_decomposed.dequantize_per_channel")
def dequantize(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale`, with scales that are known or computed."""
    x, axis = c.input(0), c.args[3] if "channel" in c.op else 0
    scale, zp = numbers(c.args[1]), None if c.args[2] is None else numbers(c.args[2])
    if scale is None or zp is None and c.args[2] is not None:
        q = c.graph.dynamic_dequantize(x, c.cast(c.args[1], t.f32), c.cast(c.args[2], t.s32))
        return c.cast(q)
    scales, zps = scale.reshape(-1).astype(np.float64), None if zp is None else zp.reshape(-1).astype(np.int64)
    if x.dtype in (*QUANTIZED, t.s32) and c.dtype() == t.f32 and (x.dtype != t.s32 or zps is None or not zps.any()):
        zeros = None if zps is None or not zps.any() else zps.tolist()
        how: dict[str, Any] = {"qtype": "per_channel", "axis": axis} if "channel" in c.op else {}
        return c.graph.dequantize(x, scales=scales.tolist(), zps=zeros, **how)
    rank = len(c.dims(x))
    y = c.cast(x, t.f32) if "channel" in c.op else c.cast(x)
    if zps is not None:
        y = c.onnx("Sub", y, c.number(along(zps, axis, rank) if len(zps) > 1 else zps.reshape(()), y.dtype))
    return c.cast(c.onnx("Mul", y, c.number(along(scales, axis, rank) if len(scales) > 1 else scales.reshape(()),
                                            y.dtype)))


def ranges(c: AtenCall, x: Value, axes: Sequence[int] | None) -> tuple[Value, Value]:
    """The least and the greatest element over axes (None: all), at most and at least 0."""
    chosen = np.asarray(axes, np.int64) if axes is not None else None
    zero = np.float32(0)
    return (c.onnx("Min", c.onnx("ReduceMin", x, chosen, keepdims=int(axes is not None)), np.asarray(zero)),
            c.onnx("Max", c.onnx("ReduceMax", x, chosen, keepdims=int(axes is not None)), np.asarray(zero)))


def chosen(c: AtenCall, x: Value, axes: Sequence[int] | None, low: float, high: float, epsilon: float,
           symmetric: bool) -> tuple[Value, Value]:
    """The scale (f32) and zero point (f32) that a range needs; a symmetric range has the zero point in its middle."""
    least, most = ranges(c, x, axes)
    g, steps = c.graph, np.asarray(high - low, np.float32)
    if symmetric:
        most = c.onnx("Max", c.onnx("Neg", least), most)
        scale = c.onnx("Max", g.divide(most, np.asarray(steps / np.float32(2))), np.asarray(epsilon, np.float32))
        middle = np.asarray((high + low + 1) // 2, np.float32)
        return scale, c.onnx("Add", c.onnx("Mul", scale, np.asarray(0, np.float32)), middle)
    scale = c.onnx("Max", g.divide(c.onnx("Sub", most, least), steps), np.asarray(epsilon, np.float32))
    zp = c.onnx("Sub", np.asarray(low, np.float32), c.onnx("Round", g.divide(least, scale)))
    return scale, g.clamp(zp, min=low, max=high)


@imports("quantized_decomposed.choose_qparams", "quantized_decomposed.choose_qparams_symmetric")
def choose_qparams(c: AtenCall) -> Result:
    """Import the scale [1] and zero point [1] of a tensor's range; scales are f32 here, and f64 in the program."""
    x, low, high, epsilon, dtype = c.args
    symmetric = "symmetric" in c.op
    scale, zp = chosen(c, c.cast(x, t.f32), None, low, high, epsilon, symmetric)
    one = [c.graph.static_reshape(v, shape=[1]) for v in (scale, zp)]
    if symmetric:
        one[1] = c.number([128 if dtype == torch.uint8 else 0], t.f32)
    return [one[0], c.cast(one[1], t.s32)]


@imports("quantized_decomposed.choose_qparams_per_token", "quantized_decomposed.choose_qparams_per_token_asymmetric",
         "quantized_decomposed._choose_qparams_per_token_asymmetric_impl")
def choose_per_token(c: AtenCall) -> Result:
    """Import a scale and a zero point for each row. Asymmetric scales are f64, and quantize in f64, as in PyTorch."""
    x, last = c.cast(c.input(0), t.f32), [-1]
    if "asymmetric" not in c.op:
        most = c.onnx("ReduceMax", c.onnx("Abs", x), np.asarray(last, np.int64), keepdims=1)
        scale = c.graph.divide(c.onnx("Max", most, np.asarray(1e-5, np.float32)), np.asarray(127, np.float32))
        return [scale, c.onnx("Mul", scale, np.asarray(0, np.float32))]
    least, most = ranges(c, x, last)
    g = c.graph
    scale = c.onnx("Max", g.divide(c.onnx("Sub", most, least), np.asarray(255, np.float32)),
                   np.asarray(np.finfo(np.float32).eps))
    low, high = (g.divide(v, scale) for v in (least, most))
    errors = g.add(g.add(low, np.float32(-128)), g.add(high, np.float32(127)))
    zp = c.onnx("Where", g.greater(errors, np.float32(0)), g.subtract(np.float32(-128), low),
                g.subtract(np.float32(127), high))
    return [c.cast(scale, t.f64), c.cast(c.onnx("Round", g.clamp(zp, min=-128, max=127)), t.s32)]


@imports("quantized_decomposed.quantize_per_token")
def quantize_per_token(c: AtenCall) -> Result:
    """Import `clamp(round(x * (1 / scale) + zero_point), low, high)` in the dtype of the scales."""
    x, scale, zp, low, high, dtype = c.args
    wide = t.f64 if scale.dtype == t.f64 else t.f32
    units = c.onnx("Add", c.onnx("Mul", c.cast(x, wide), c.onnx("Reciprocal", scale)), c.cast(zp, wide))
    return rounded(c, units, None, low, high, dtype_of(dtype))


@imports("quantized_decomposed.dequantize_per_token")
def dequantize_per_token(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale` with a scale for each row."""
    x, scale, zp = c.args[:3]
    return blocks_dequantized(c, x, [1] * (len(c.dims(x)) - 1) + [c.dims(x)[-1]], scale, zp, None)


def blocks_dequantized(c: AtenCall, x: Value, block: Sequence[int], scale: Value, zp: Value | None,
                       limits: tuple[int, int] | None) -> Value:
    """Dequantize with a scale for each block; constants with the limits of 4 bits become 4-bit constants."""
    dims = c.dims(x)
    counts = [1 if d == b else -1 if d is None else d // b for d, b in zip(dims, block, strict=True)]
    scale = c.graph.static_reshape(c.cast(scale, t.f32), shape=counts)
    zp = None if zp is None or zp.type.known and not zp.type.size else c.graph.static_reshape(zp, shape=counts)
    if zp is not None and zp.data is not None and not zp.data.any():
        zp = None
    if x.data is not None and limits in NARROW:
        dtype = NARROW[limits]
        x = c.graph.add_constant(x.data.astype(dtype.numpy))
    zp = None if zp is None else c.cast(zp, t.s32)
    return c.cast(c.graph.dynamic_dequantize(x, scale, zp, qtype="per_group", group_shape=[
        d if n == 1 and d is not None else b for d, n, b in zip(dims, counts, block, strict=True)]))


@imports("torchao.dequantize_affine")
def dequantize_affine(c: AtenCall) -> Result:
    """Import torchao's dequantize with a scale for each block."""
    x, block, scale, zp = c.args[:4]
    low, high = c.arg(5, "quant_min"), c.arg(6, "quant_max")
    return blocks_dequantized(c, x, block, scale, zp, None if low is None else (int(low), int(high)))


def _axes(c: AtenCall, x: Value, block: Sequence[int]) -> list[int]:
    """The axes that a block covers. Raises GraphError for a block that covers an axis in part."""
    fake = c.fake(0).shape
    axes = [k for k, (d, b) in enumerate(zip(fake, block, strict=True)) if not (isinstance(b, int) and b == 1)]
    if any(isinstance(b, int) and isinstance(d, int) and 1 < b < d for d, b in zip(fake, block, strict=True)):
        c.refuse(f"activations with blocks {list(block)} of {x.type} are not supported")
    return axes


@imports("torchao.quantize_affine")
def quantize_affine(c: AtenCall) -> Result:
    """Import torchao's quantize with a scale per tensor or per row."""
    x, block, scale, zp, dtype, low, high = (c.arg(k) for k in range(7))
    axes, rank = _axes(c, x, block), len(c.dims(x))
    counts = [1 if k in axes else d if d is not None else -1 for k, d in enumerate(c.dims(x))] if rank else []
    inverse, zeros = (None if v is None else c.graph.static_reshape(v, shape=counts) for v in (
        c.onnx("Reciprocal", c.cast(scale, t.f32)), None if zp is None else c.cast(zp, t.f32)))
    kind = dtype_of(dtype)
    limits = (kind.min if low is None else low, kind.max if high is None else high)
    return rounded(c, c.onnx("Mul", c.cast(x, t.f32), inverse), zeros, *limits, kind)


@imports("torchao.choose_qparams_affine")
def choose_affine(c: AtenCall) -> Result:
    """Import torchao's scale and zero point of ranges per tensor or per row."""
    x, mapping, block, dtype, low, high, epsilon, scale_dtype, zp_dtype, keep = (c.arg(k) for k in range(10))
    if mapping not in ("SYMMETRIC", "ASYMMETRIC"):
        c.refuse(f"mapping type {mapping} is not supported")
    kind = dtype_of(dtype)
    low, high = kind.min if low is None else low, kind.max if high is None else high
    axes = _axes(c, x, block)
    epsilon = torch.finfo(c.fake(0).dtype).smallest_normal if epsilon is None else epsilon
    scale, zp = (v if keep else c.onnx("Squeeze", v, np.asarray(axes, np.int64)) for v in chosen(
        c, c.cast(x, t.f32), axes, low, high, epsilon, mapping == "SYMMETRIC"))
    return [c.cast(scale, dtype_of(scale_dtype) if scale_dtype else x.dtype),
            c.cast(zp, dtype_of(zp_dtype) if zp_dtype else t.s32)]


imports_each({"_int_mm": lambda c: c.graph.matmul_integer(c.input(0), c.input(1)),
              "export.access_subclass_inner_tensor": lambda c: c.refuse("a subclass of tensors must be taken apart")})
