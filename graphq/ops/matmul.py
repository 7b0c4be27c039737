"""The operations matmul and bias_add, ONNX's integer matmul and convolution, and the range for dynamic quantization."""
from typing import Any, Literal

import numpy as np

from graphq.dtypes import DType, f32, s8, s32, u8
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, register_op
from graphq.kernels.numbers.observed import u8_range
from graphq.ops import rules
from graphq.ops.conv import correlate, infer_convolution
from graphq.ops.rules import Array, Shape
from graphq.ops.window import AutoPad


def infer_matmul(src: TensorType, weights: TensorType, bias: TensorType | None = None, *, transpose_a: bool,
                 transpose_b: bool, accumulation_mode: str, dtype: DType | None) -> TensorType:
    """Shapes are as in numpy.matmul: equal k, batches broadcast, and a 1-D operand adds no dimension to the result."""
    for name, t in (("src", src), ("weights", weights)):
        rules.expect_dtype(name, t, rules.FLOATS)
        if t.shape == ():
            raise GraphError(f"'{name}' must have at least one dimension, got {t}")
    rules.expect_same_dtype(src=src, weights=weights, bias=bias)
    a, b = _transposed(src.shape, transpose_a), _transposed(weights.shape, transpose_b)
    shape = _product(a, b)
    if bias is not None:
        _check_bias(bias, b, shape)
    return TensorType(rules.output_dtype(src.dtype, dtype, rules.SUMS), shape)


def _transposed(shape: Shape, transpose: bool) -> Shape:
    if shape is None or not transpose or len(shape) < 2:
        return shape
    return (*shape[:-2], shape[-1], shape[-2])


def _product(a: Shape, b: Shape) -> Shape:
    if a is None or b is None:
        return None
    ka, kb = a[-1], b[0] if len(b) == 1 else b[-2]
    if ka is not None and kb is not None and ka != kb:
        raise GraphError(f"k must agree, got {ka} and {kb} in {rules.show(a)} times {rules.show(b)} "
                         "(after transposition)")
    try:
        batch = rules.broadcast(a[:-2], b[:-2])
    except GraphError as e:
        raise GraphError(f"batch dimensions of {rules.show(a)} times {rules.show(b)}: {e}") from None
    assert batch is not None
    rows: tuple[Dim, ...] = a[-2:-1]
    columns: tuple[Dim, ...] = b[-1:] if len(b) > 1 else ()
    return batch + rows + columns


def _check_bias(bias: TensorType, weights: Shape, out: Shape) -> None:
    if weights is not None and len(weights) == 1:
        raise GraphError(f"'bias' needs weights with columns, got weights {rules.show(weights)}")
    shape = bias.shape
    if shape == ():
        raise GraphError(f"'bias' must have at least one dimension, got {bias}")
    if shape is None or weights is None:
        return
    places = zip(shape[::-1], (weights[-1:] if out is None else out)[::-1], strict=False)
    too_long = out is not None and len(shape) > len(out)
    if too_long or any(d not in (1, None) and n not in (d, None) for d, n in places):
        raise GraphError(f"'bias' must broadcast to the output {rules.show(out)}, as {rules.show(weights[-1:])} does, "
                         f"got {bias}")


@register_op(infer=infer_matmul, rows="product", onnx="MatMul")
def matmul(src: Array, weights: Array, bias: Array | None = None, *, transpose_a: bool = False,
           transpose_b: bool = False,
           accumulation_mode: Literal["strict", "relaxed", "any", "f32", "s32", "f16"] = "strict",
           dtype: DType | None = None) -> Array:
    """`src @ weights + bias` (oneDNN MatMul). The optional bias is [n] or broadcasts to the result.

    Ranks are as in numpy.matmul. `transpose_a` and `transpose_b` swap the last two dimensions; they do not change a 1-D
    operand. Products are summed in f64 and rounded to f32 once for any `accumulation_mode`. The bias is added in f32.
    Then the result is rounded to `dtype` (None: the dtype of `src`).
    """
    out_dtype = src.dtype if dtype is None else dtype.numpy
    a, b = src.astype(np.float64), weights.astype(np.float64)
    if transpose_a and a.ndim > 1:
        a = a.swapaxes(-1, -2)
    if transpose_b and b.ndim > 1:
        b = b.swapaxes(-1, -2)
    y = rules.rounded(a @ b, np.dtype(np.float32))
    return rules.rounded(y if bias is None else y + bias.astype(np.float32), out_dtype)


def infer_bias_add(src: TensorType, bias: TensorType, *, data_format: str) -> TensorType:
    """Both operands have the same float dtype. The bias has one element for each channel."""
    rules.expect_same_dtype(*rules.FLOATS, src=src, bias=bias)
    if bias.shape is not None and len(bias.shape) != 1:
        raise GraphError(f"'bias' must be one-dimensional, got {bias}")
    if src.shape is None:
        return src
    axis = rules.channel_axis(data_format, src.shape)
    channels, elements = src.shape[axis], None if bias.shape is None else bias.shape[0]
    if None not in (channels, elements) and channels != elements:
        raise GraphError(f"'bias' must be [{channels}], the channels at axis {axis} of {src} in {data_format}, "
                         f"got {bias}")
    known = channels if channels is not None else elements
    return rules.with_axis(src, axis, known)


@register_op(infer=infer_bias_add, elementwise=True, lanes=lambda src, bias: src + bias, bound="sum", layout="anchor")
@rules.in_f32
def bias_add(src: Array, bias: Array, *, data_format: Literal["NCX", "NXC"] = "NXC") -> Array:
    """`src + bias`, with one element of `bias` for each channel: axis 1 in NCX, the last in NXC (oneDNN BiasAdd)."""
    if data_format == "NCX":
        bias = bias.reshape(-1, *[1] * (src.ndim - 2))
    return src + bias


def _as_f32(type: TensorType) -> TensorType:
    return TensorType(f32, type.shape)


def _check(name: str, src: TensorType, zero_point: TensorType | None) -> None:
    rules.expect_dtype(name, src, (s8, u8))
    if zero_point is not None and zero_point.dtype != src.dtype:
        raise GraphError(f"the zero point of '{name}' must be {src.dtype}, got {zero_point}")


def _less(x: Array, zero_point: Array | None, axis: int) -> Array:
    if zero_point is None:
        return x.astype(np.float64)
    z = zero_point.astype(np.float64)
    if z.ndim == 1 and z.size > 1:
        z = z.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])
    return x.astype(np.float64) - z


def _wrapped(y: Array) -> Array:
    return np.asarray(y.astype(np.int64).astype(np.int32))


def _fits(src: Shape, zero_point: TensorType | None, axis: int, name: str) -> None:
    if not src or zero_point is None or zero_point.shape is None:
        return
    z = zero_point.shape
    if len(z) == 1 and z != (1,):
        z = tuple(z[0] if k == axis % len(src) else 1 for k in range(len(src)))
    padded = (1,) * (len(src) - len(z)) + z
    if len(z) > len(src) or any(q not in (1, d, None) and d is not None for q, d in zip(padded, src, strict=True)):
        raise GraphError(f"the zero point of '{name}' must broadcast to {rules.show(src)}, got {zero_point}")


def infer_matmul_integer(a: TensorType, b: TensorType, a_zero_point: TensorType | None = None,
                         b_zero_point: TensorType | None = None) -> TensorType:
    """Shapes are as in numpy.matmul.

    A zero point is one number, a vector (a number for each row of `a` or column of `b`), or a tensor that broadcasts.
    """
    _check("a", a, a_zero_point)
    _check("b", b, b_zero_point)
    _fits(a.shape, a_zero_point, -2, "a")
    _fits(b.shape, b_zero_point, -1, "b")
    out = infer_matmul(_as_f32(a), _as_f32(b), transpose_a=False, transpose_b=False, accumulation_mode="strict",
                       dtype=None)
    return TensorType(s32, out.shape)


@register_op(infer=infer_matmul_integer, rows="product", onnx="MatMulInteger")
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """`(a - a_zero_point) @ (b - b_zero_point)` as s32 (ONNX MatMulInteger). s32 wraps."""
    # Sums of products of 9-bit integers are exact in f64 for k < 2**35.
    return _wrapped(_less(a, a_zero_point, -2) @ _less(b, b_zero_point, -1))


def infer_conv_integer(src: TensorType, weights: TensorType, src_zero_point: TensorType | None = None,
                       weights_zero_point: TensorType | None = None, **attrs: Any) -> TensorType:
    """Shapes are as in a channels-first convolution. Weights may have a zero point for each output channel."""
    _check("src", src, src_zero_point)
    _check("weights", weights, weights_zero_point)
    if src_zero_point is not None and src_zero_point.shape not in rules.ONE:
        raise GraphError(f"the zero point of 'src' must be one number, got {src_zero_point}")
    _fits(weights.shape, weights_zero_point, 0, "weights")
    out = infer_convolution(_as_f32(src), _as_f32(weights), **attrs, data_format="NCX", weights_format="OIX",
                            dtype=None)
    return TensorType(s32, out.shape)


@register_op(infer=infer_conv_integer, rows="images")
def conv_integer(src: Array, weights: Array, src_zero_point: Array | None = None,
                 weights_zero_point: Array | None = None, *, strides: list[int], pads_begin: list[int],
                 pads_end: list[int], dilations: list[int], auto_pad: AutoPad = "none", groups: int = 1) -> Array:
    """The convolution of `src - src_zero_point` with weights [o, c / groups, ...] as s32 (ONNX ConvInteger).

    `src` is [n, c, ...]. Padding has the value of the zero point.
    """
    x, w = _less(src, src_zero_point, 0), _less(weights, weights_zero_point, 0)
    return _wrapped(correlate(x, w, strides, dilations, pads_begin, pads_end, auto_pad, groups, np.float64))


def infer_dynamic_range(src: TensorType) -> tuple[TensorType, TensorType]:
    """`src` is f32. The results are one scale and one zero point."""
    rules.expect_dtype("src", src, (f32,))
    return TensorType(f32, ()), TensorType(u8, ())


@register_op(infer=infer_dynamic_range)
def dynamic_range(src: Array) -> tuple[Array, Array]:
    """The scale and zero point that make u8 cover all of `src` and 0 (ONNX DynamicQuantizeLinear).

    With top = max(src, 0) and low = min(src, 0): `scale = (top - low) / 255`, or 1 / 255 if both are 0; `zero_point =
    rint(clip(-low / scale, 0, 255))`, all in f32.
    """
    scale, zp = u8_range(src)
    return np.asarray(scale), np.asarray(zp)
