"""Importers of quantized operators of PT2E (`quantized_decomposed`) and torchao.

PyTorch quantizes by `x * (1 / scale)`, rounded to f32, and graphq by `x / scale`. The graph therefore multiplies first
and quantizes with the scale 1, except that a reciprocal which is a power of two has an exact scale.
"""
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphq import dtypes as t
from graphq.ir import Value
from graphq.ops.quant import QUANTIZED
from graphq.torch.operators.decompositions import decomposes
from graphq.torch.operators.importer import AtenCall, Result, dtype_of, imports

NARROW = {(-8, 7): t.s4, (0, 15): t.u4}
"""The 4-bit types that constants with these limits become."""


def parameters(c: AtenCall) -> list[Any]:
    """The scales and the zero points; some operators call them `scales` and some `scale`."""
    return [c[f"{name}s"] if f"{name}s" in c.args else c[name] for name in ("scale", "zero_point")]


def numbers(c: AtenCall, x: Any) -> np.ndarray | None:
    """The numbers in an argument, in a shape that broadcasts along the axis; None if the program computes them."""
    found, rank = x.data if isinstance(x, Value) else np.asarray(0 if x is None else x), len(c.dims(c.x))
    axis = c["axis"]
    if found is None or found.size == 1:
        return None if found is None else found.reshape(())
    return found.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


def quantize(c: AtenCall) -> Result:
    """Import `clamp(round(x * (1 / scale)) + zero_point, low, high)`, with scales that are known or computed."""
    low, high, dtype, x = c["quant_min"], c["quant_max"], dtype_of(c["dtype"]), c.value(c.x, t.f32)
    given, zero_points = parameters(c)
    scales, zp = numbers(c, given), numbers(c, zero_points)
    with np.errstate(all="ignore"):
        # a per-tensor scale is a double of Python; a tensor of scales is inverted in its own dtype
        inverse = c.Reciprocal(c.value(given, t.f32)) if scales is None else (
            1.0 / (scales if "channel" in c.op else scales.astype(np.float64))).astype(np.float32)
    if scales is None or zp is None or x.data is not None or dtype not in QUANTIZED:  # a constant is quantized at once
        y = c.Add(c.Round(c.Mul(x, inverse)), c.value(zero_points, t.f32) if zp is None else zp.astype(np.float32))
        return c.value(c.graph.clamp(y, min=low, max=high), dtype)
    if (low, high) == (dtype.min, dtype.max):
        if inverse.ndim == 0 and math.frexp(inverse)[0] == 0.5 and math.isfinite(np.float32(1) / inverse):
            return c.graph.quantize(x, dtype=dtype, scales=[1 / float(inverse)], zps=[int(zp)])
        y = c.graph.multiply(x, inverse)
    else:  # rounding does not move a number over an integer
        y = c.Min(c.Max(c.graph.multiply(x, inverse), np.float32(low - zp)), np.float32(high - zp))
    if len({*zp.reshape(-1).tolist()}) == 1:
        return c.graph.quantize(y, dtype=dtype, scales=[1.0], zps=[int(zp.reshape(-1)[0])])
    return c.graph.quantize(y, dtype=dtype, qtype="per_channel", axis=c["axis"], scales=[1.0] * zp.size,
                            zps=zp.reshape(-1).tolist())


def dequantize(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale`, with scales that are known or computed."""
    c.read |= {"quant_min", "quant_max"}
    x, (given, zero_points) = c.x, parameters(c)
    scales, zp = numbers(c, given), numbers(c, zero_points)
    if scales is None or zp is None:
        return c.value(c.graph.dynamic_dequantize(x, c.value(given, t.f32), c.value(zero_points, t.s32)))
    how: dict[str, Any] = {"qtype": "per_channel", "axis": c["axis"]} if "channel" in c.op else {}
    return c.value(c.graph.dequantize(x, scales=scales.reshape(-1).astype(np.float64).tolist(),
                                      zps=zp.reshape(-1).tolist() if zp.any() else None, **how))


def choose_qparams(symmetric: bool, x: Tensor, low: int, high: int, epsilon: float,
                   dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scale [1] and zero point [1] of a tensor's range, or if `symmetric` of a range around 0.

    The zero point of a range around 0 is the middle of the integers. Scales are f32 here, and f64 in the program.
    """
    least, most = x.float().amin().clamp(max=0), x.float().amax().clamp(min=0)
    scale = torch.maximum(-least, most) / ((high - low) / 2) if symmetric else (most - least) / (high - low)
    scale = scale.clamp(min=epsilon).reshape(1)
    middle = torch.full((1,), 128 if dtype == torch.uint8 else 0)
    zero_point = middle if symmetric else (low - (least / scale).round()).clamp(low, high)
    return scale, zero_point.to(torch.int32)


def choose_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A scale for each row; zero points are 0."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return scale, scale * 0


def choose_per_token_asymmetric(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A scale and a zero point for each row; scales are f64, and quantize in f64, as in PyTorch."""
    least, most = x.float().amin(-1, True).clamp(max=0), x.float().amax(-1, True).clamp(min=0)
    scale = ((most - least) / 255).clamp(min=torch.finfo(torch.float32).eps)
    low, high = least / scale, most / scale
    zero_point = torch.where((low + -128) + (high + 127) > 0, -128 - low, 127 - high)
    return scale.double(), zero_point.clamp(-128, 127).round().to(torch.int32)


def quantize_per_token(x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int,
                       dtype: torch.dtype) -> Tensor:
    """`clamp(round(x * (1 / scale) + zero_point), low, high)` in the dtype of the scales."""
    return (x.to(scales.dtype) * scales.reciprocal() + zero_points.to(scales.dtype)).round().clamp(low, high).to(dtype)


def dequantize_blocks(c: AtenCall) -> Result:
    """Import `(x - zero_point) * scale` with a scale for each row, or for each of torchao's blocks.

    Constants with the limits of 4 bits become 4-bit constants.
    """
    x, dims, (scale, zp) = c.x, c.dims(c.x), parameters(c)
    block = c["block_size"] or [*[1] * (len(dims) - 1), dims[-1]]
    counts = [1 if d == b else 0 if d is None else d // b for d, b in zip(dims, block, strict=True)]
    if zp is not None and (zp.data is not None and not zp.data.any() or zp.type.known and not zp.type.size):
        zp = None
    # a count of 0 is that of an open axis
    scale = c.graph.static_reshape(c.value(scale, t.f32), shape=counts, special_zero=True)
    zp = None if zp is None else c.value(c.graph.static_reshape(zp, shape=counts, special_zero=True), t.s32)
    narrow = NARROW.get((c["quant_min"], c["quant_max"]))
    if x.data is not None and narrow is not None:
        x = c.graph.add_constant(x.data.astype(narrow.numpy))
    return c.value(c.graph.dynamic_dequantize(x, scale, zp, qtype="per_group", group_shape=[
        d if n == 1 and d is not None else b for d, n, b in zip(dims, counts, block, strict=True)]))


imports({
    "quantized_decomposed.quantize_per_tensor quantized_decomposed.quantize_per_channel": quantize,
    "quantized_decomposed.dequantize_per_tensor quantized_decomposed.dequantize_per_channel": dequantize,
    "quantized_decomposed.dequantize_per_token torchao.dequantize_affine": dequantize_blocks,
})
decomposes({
    "quantized_decomposed.choose_qparams.tensor": partial(choose_qparams, False),
    "quantized_decomposed.choose_qparams_symmetric.tensor": partial(choose_qparams, True),
    "quantized_decomposed.choose_qparams_per_token.default": choose_per_token,
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default "
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": choose_per_token_asymmetric,
    "quantized_decomposed.quantize_per_token.default": quantize_per_token,
})
