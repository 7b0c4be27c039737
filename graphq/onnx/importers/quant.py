"""Importers of quantized operators: each becomes a float operation between dequantize and quantize.

All these operators therefore share one set of fusions. Constant scales become attributes of quantize and dequantize.
Other scales become operands of dynamic_quantize and dynamic_dequantize. Nodes that these operations cannot express
become quantize_linear or dequantize_linear.
"""
from typing import Any, NamedTuple

import numpy as np

from graphq import dtypes as t
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.conv import spatial, windows
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports, imports_each
from graphq.onnx.protos.tensors import dtype_of
from graphq.ops.dynamic_quant import ZERO_POINTS
from graphq.ops.quant import QUANTIZED, SCALES, check_granularity
from graphq.ops.rules import FLOATS, normal_axis


class QuantizationOperands(NamedTuple):
    """The scale and zero point of a tensor, and the axis along which they vary."""

    scale: Value
    zero_point: Value | None
    axis: int
    block_size: int = 0

    @property
    def per_tensor(self) -> bool:
        """Whether the tensor has one scale."""
        return self.scale.shape in ((), (1,))

    @property
    def constant(self) -> bool:
        """Whether scale and zero point are constants."""
        return self.scale.data is not None and (self.zero_point is None or self.zero_point.data is not None)

    @property
    def usual(self) -> bool:
        """Whether scale and zero point are constants, and all scales are finite."""
        return self.constant and bool(np.isfinite(np.asarray(self.scale.data, np.float64)).all())

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes `qtype` and `axis` of a quantize or dequantize with these parameters."""
        return {"qtype": "per_tensor", "axis": 1} if self.per_tensor else {"qtype": "per_channel", "axis": self.axis}


@imports("QuantizeLinear")
def quantize_linear(c: Call) -> Outputs:
    """Import QuantizeLinear, versions 10 to 25. x / scale is in the scale's dtype; before version 23, in x's dtype."""
    x, zp = c.input(0), c.optional(2)
    dtype = _output_dtype(c, zp)
    p = parameters(c, x, c.input(1), zp, c.attr("axis", 1), c.attr("block_size", 0))
    precision = dtype_of(c.attr("precision"), "attribute 'precision'") if c.attr("precision") else \
        p.scale.dtype if c.version >= 23 and p.scale.dtype in FLOATS else x.dtype
    return quantized(c, x, p, dtype, saturate=bool(c.attr("saturate", 1)),
                     precision=precision if precision in FLOATS else t.f32)


@imports("DequantizeLinear")
def dequantize_linear(c: Call) -> Outputs:
    """Import DequantizeLinear, versions 10 to 25. The result has the scale's dtype, or `output_dtype`."""
    p = parameters(c, c.input(0), c.input(1), c.optional(2), c.attr("axis", 1), c.attr("block_size", 0))
    dtype = dtype_of(c.attr("output_dtype"), "attribute 'output_dtype'") if c.attr("output_dtype") else None
    return dequantized(c, c.input(0), p, dtype)


def _microsoft(c: Call) -> QuantizationOperands:
    """The operands of com.microsoft's operators, version 1: without an axis the scale must be per-tensor."""
    scale = c.input(1)
    if "axis" not in c.attrs and scale.shape not in ((), (1,), None):
        c.refuse(f"without an axis the scale must be one number, got {scale.type}")
    return parameters(c, c.input(0), scale, c.optional(2), c.attr("axis", 0), c.attr("block_size", 0))


imports_each({
    "DequantizeLinear": lambda c: dequantized(c, c.input(0), _microsoft(c), None),
    "QuantizeLinear": lambda c: quantized(c, c.input(0), _microsoft(c), c.input(2).dtype if c.has(2) else t.u8),
}, domain=MICROSOFT)


@imports("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Call) -> Outputs:
    """Import DynamicQuantizeLinear, version 11: derive scale and zero point from the range, then quantize."""
    x = c.input(0)
    scale, zp = c.graph.dynamic_range(x)
    return c.graph.dynamic_quantize(x, scale, zp, dtype=t.u8), scale, zp


imports_each({"ConvInteger": lambda c: c.graph.conv_integer(
    c.input(0), c.input(1), c.optional(2), c.optional(3), groups=c.attr("group", 1),
    **{name: x for name, x in windows(c, spatial(c.input(0))).items() if name != "data_format"})})


@imports("QLinearMatMul")
def qlinear_matmul(c: Call) -> Outputs:
    """Import QLinearMatMul. Scales are per-tensor, per row of a, or per column of b, the same for all matrices."""
    a, b = c.input(0), c.input(3)
    if any(len(c.input(k).shape or ()) > 1 for k in (1, 4)):
        raise GraphError("scales per batch element are left to ONNX's reference")
    pa, pb = parameters(c, a, c.input(1), c.optional(2), -2), parameters(c, b, c.input(4), c.optional(5), -1)
    factor = _factor(c, pa, pb)
    if factor is not None:
        return _scaled(c, c.graph.matmul(_units(c, a, pa), _units(c, b, pb)), factor)
    return result(c, c.graph.matmul(dequantized(c, a, pa), dequantized(c, b, pb)), 6, a.dtype)


@imports("QLinearConv")
@imports("QLinearConv", domain=MICROSOFT)
def qlinear_conv(c: Call) -> Outputs:
    """Import QLinearConv. The bias has the scale x_scale * w_scale. com.microsoft's operator has `channels_last`."""
    x, w, bias = c.input(0), c.input(3), c.optional(8)
    px = parameters(c, x, c.input(1), c.optional(2), 1)
    pw = parameters(c, w, c.input(4), c.optional(5), 0, mixed=True)
    last = bool(c.attr("channels_last", 0))
    attrs = {"groups": c.attr("group", 1), "weights_format": "OIX", **windows(c, spatial(x), last)}
    factor = _factor(c, px, pw)
    if factor is not None:
        sums = None if bias is None else c.graph.dequantize(bias, scales=[1.0])
        y = c.graph.convolution(_units(c, x, px), _units(c, w, pw), sums, **attrs)
        return _scaled(c, y, factor if pw.per_tensor else factor.reshape(-1, *[1] * (0 if last else spatial(x))))
    if bias is not None:
        bias = dequantized(c, bias, QuantizationOperands(scale_product(c, px.scale, pw.scale), None, 0))
    return result(c, c.graph.convolution(dequantized(c, x, px), dequantized(c, w, pw), bias, **attrs), 6, x.dtype)


def _factor(c: Call, p: QuantizationOperands, q: QuantizationOperands) -> np.ndarray | None:
    """The f32 factor of integer sums in ONNX Runtime and ONNX's reference: `p.scale * q.scale / y_scale`.

    Returns None unless all scales are f32 constants, p and y per-tensor, and the factors finite.
    """
    y = c.data(6)
    known = p.constant and q.constant and y is not None and (not c.has(7) or c.data(7) is not None)
    if not known or not p.per_tensor or y is None or y.size != 1 or q.scale.data is None or p.scale.data is None \
            or q.scale.data.ndim > 1 or {x.dtype for x in (p.scale.data, q.scale.data, y)} != {np.dtype(np.float32)}:
        return None
    with np.errstate(all="ignore"):
        scales = q.scale.data.reshape(() if q.per_tensor else -1)
        factor = np.asarray(p.scale.data.reshape(()) * scales / y.reshape(()))
    return factor if np.isfinite(factor).all() else None


def _units(c: Call, x: Value, p: QuantizationOperands) -> Value:
    """`x` minus its zero point in f32, without the scale."""
    ones = c.graph.constant(np.ones(p.scale.type.dims, np.float32))
    return dequantized(c, x, QuantizationOperands(ones, p.zero_point, p.axis))


def _scaled(c: Call, y: Value, factor: np.ndarray) -> Value:
    """Requantize integer sums: multiply by the factor, round, and add the zero point in input 7."""
    zp = c.optional(7)
    p = parameters(c, y, c.graph.constant(np.ones(c.input(6).type.dims, np.float32)), zp, 1)
    return quantized(c, c.graph.multiply(y, factor), p, c.input(0).dtype if zp is None else zp.dtype)


def result(c: Call, y: Value, k: int, default: DType) -> Value:
    """Quantize `y` with the scale and zero point in inputs `k` and `k + 1`."""
    zp = c.optional(k + 1)
    return quantized(c, y, parameters(c, y, c.input(k), zp, 1), default if zp is None else zp.dtype)


def quantized(c: Call, x: Value, p: QuantizationOperands, dtype: DType, *, saturate: bool = True,
              precision: DType = t.f32) -> Value:
    """Quantize `x` to `dtype` by the simplest operation that can express the parameters."""
    plain = x.dtype == t.f32 and precision == t.f32 and not p.block_size and (saturate or dtype.kind == "int")
    if plain and p.usual and dtype in QUANTIZED and p.scale.dtype in FLOATS:
        _check_constant(c, p, zeros=False)
        return c.graph.quantize(x, dtype=dtype, scales=_scales(p), zps=_zero_points(c, p, dtype), **p.attrs)
    if plain and not p.constant and dtype in (t.s8, t.u8) and p.scale.dtype == t.f32:
        return c.graph.dynamic_quantize(x, p.scale, p.zero_point, dtype=dtype, **p.attrs)
    _check_constant(c, p, zeros=False)
    zp = None if dtype.kind == "float" and dtype.bits == 8 else p.zero_point
    return c.graph.quantize_linear(x, p.scale, zp, dtype=dtype, axis=p.axis, block_size=p.block_size,
                                   saturate=saturate, precision=precision)


def dequantized(c: Call, x: Value, p: QuantizationOperands, dtype: DType | None = t.f32) -> Value:
    """Dequantize `x` to `dtype`, or to the scale's dtype if `dtype` is None."""
    dtype = dtype or (p.scale.dtype if p.scale.dtype in FLOATS else t.f32)
    if p.usual and dtype == t.f32 and not p.block_size and x.dtype in (*QUANTIZED, t.s32):
        return c.graph.dequantize(x, scales=_scales(p), zps=_zero_points(c, p, x.dtype), **p.attrs)
    _check_constant(c, p)
    zp = None if x.dtype.kind == "float" or x.dtype == t.s32 else p.zero_point
    group = _group(x, p)
    if x.dtype in ZERO_POINTS and p.scale.dtype in SCALES and group is not None and p.usual is p.constant:
        attrs = {"qtype": "per_group", "group_shape": group} if p.block_size else p.attrs
        return c.graph.dynamic_dequantize(x, p.scale, zp, dtype=dtype, **attrs)
    return c.graph.dequantize_linear(x, p.scale, zp, dtype=dtype, axis=p.axis, block_size=p.block_size)


def _group(x: Value, p: QuantizationOperands) -> list[int] | None:
    """The group_shape of a dynamic_dequantize: empty without blocks, None if blocks do not divide the axis."""
    if not p.block_size:
        return []
    dims = x.type.dims
    k = p.axis % len(dims)
    size = min(p.block_size, dims[k] or p.block_size)
    return [size if d == k else 1 for d in range(len(dims))] if dims[k] % size == 0 else None


def parameters(c: Call, x: Value, scale: Value, zp: Value | None, axis: int, block_size: int = 0, *,
               mixed: bool = False) -> QuantizationOperands:
    """Check the scale and zero point of `x`; returns them with the axis counted from the front.

    If `mixed`, one of the two may be per-tensor and the other not. Raises Refused if they do not fit `x`.
    """
    if mixed and zp is not None and zp.type.known and scale.type.known and 1 in (zp.type.size, scale.type.size):
        many = max(scale, zp, key=lambda v: v.type.size).type.dims
        scale, zp = (_repeated(c, v, many) for v in (scale, zp))
    rank = None if x.shape is None else len(x.shape)
    if rank == 1 and scale.shape not in ((), (1,)):
        axis = 0
    try:
        if x.shape is not None and scale.shape not in ((), (1,)):
            axis = normal_axis(axis, x.shape)
        check_granularity(x.shape, scale.shape, axis, block_size)
    except GraphError as e:
        c.refuse(str(e))
    if zp is not None and zp.type.known and scale.type.known and zp.type.size != scale.type.size:
        c.refuse(f"scale and zero point must have the same shape, got {scale.type} and {zp.type}")
    if zp is not None and zp.type.known and zp.shape != scale.shape:  # one shape is [], the other [1]
        zp = c.graph.static_reshape(zp, shape=scale.type.dims) if zp.data is None else \
            c.graph.constant(zp.data.reshape(scale.type.dims))
    return QuantizationOperands(scale, zp, axis, block_size)


def _repeated(c: Call, x: Value, dims: tuple[int, ...]) -> Value:
    if x.type.dims == dims:
        return x
    if x.data is not None:
        return c.graph.constant(np.broadcast_to(x.data.reshape(()) if x.data.size == 1 else x.data, dims))
    return c.graph.expand(c.graph.static_reshape(x, shape=[1] * len(dims)), shape=dims)


def _check_constant(c: Call, p: QuantizationOperands, *, zeros: bool = True) -> None:
    """Refuse constant scales that are NaN or -inf and, if `zeros` is False, scales of 0.

    Scales of +inf are allowed: quantizers write them after calibration with masks of -inf. Negative scales are allowed:
    symmetric quantizers of blocks use them to exploit the whole range of -8 to 7.
    """
    data = p.scale.data
    if data is None:
        return
    wide = data.astype(np.float64)
    bad = wide[~(wide > -np.inf) | (False if zeros else wide == 0)]
    if bad.size:
        c.refuse(f"scales must not be NaN{' or -inf' if zeros else ', -inf or 0'}, got {bad[0]}")


def _scales(p: QuantizationOperands) -> list[float]:
    scales: list[float] = p.scale.array.astype(np.float64).ravel().tolist()
    return scales


def _zero_points(c: Call, p: QuantizationOperands, dtype: DType) -> list[int] | None:
    """The zero points as an attribute; None for floats and s32, whose zero points must be 0."""
    if p.zero_point is None:
        return None
    data = p.zero_point.array
    if p.zero_point.dtype != dtype:
        c.refuse(f"the zero point must be {dtype}, got {p.zero_point.type}")
    if dtype.kind == "float" or dtype == t.s32:
        if np.any(data.astype(np.float64) != 0):
            c.refuse(f"the zero point of {dtype} must be 0")
        return None
    zps: list[int] = data.ravel().astype(np.int64).tolist()
    return zps


def _output_dtype(c: Call, zp: Value | None) -> DType:
    given = dtype_of(c.attr("output_dtype"), "attribute 'output_dtype'") if c.attr("output_dtype") else None
    if zp is not None and given not in (None, zp.dtype):
        c.refuse(f"output_dtype {given} and a zero point of {zp.dtype} contradict each other")
    return given or (t.u8 if zp is None else zp.dtype)


def scale_product(c: Call, a: Value, b: Value) -> Value:
    """The product of two scales in f32."""
    if a.data is not None and b.data is not None:
        return c.graph.constant(np.multiply(a.data, b.data, dtype=np.float32))
    return c.graph.multiply(*(x if x.dtype == t.f32 else c.graph.type_cast(x, dtype=t.f32) for x in (a, b)))
