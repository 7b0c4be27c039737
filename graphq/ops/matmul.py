"""The operations matmul and bias_add."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import (
    FLOATS,
    SUMS,
    Array,
    Shape,
    broadcast,
    channel_axis,
    expect_dtype,
    expect_same_dtype,
    in_f32,
    output_dtype,
    quiet,
    rounded,
    show,
)


def infer_matmul(src: TensorType, weights: TensorType, bias: TensorType | None = None, *, transpose_a: bool,
                 transpose_b: bool, accumulation_mode: str, dtype: DType | None) -> TensorType:
    """Shapes are as in numpy.matmul: equal k, batches broadcast, and a 1-D operand adds no dimension to the result."""
    for name, t in (("src", src), ("weights", weights)):
        expect_dtype(name, t, FLOATS)
        if t.shape == ():
            raise GraphError(f"'{name}' must have at least one dimension, got {t}")
    expect_same_dtype(src=src, weights=weights, bias=bias)
    a, b = _transposed(src.shape, transpose_a), _transposed(weights.shape, transpose_b)
    shape = _product(a, b)
    if bias is not None:
        _check_bias(bias, b, shape)
    return TensorType(output_dtype(src.dtype, dtype, SUMS), shape)


def _transposed(shape: Shape, transpose: bool) -> Shape:
    if shape is None or not transpose or len(shape) < 2:
        return shape
    return (*shape[:-2], shape[-1], shape[-2])


def _product(a: Shape, b: Shape) -> Shape:
    if a is None or b is None:
        return None
    ka, kb = a[-1], b[0] if len(b) == 1 else b[-2]
    if ka is not None and kb is not None and ka != kb:
        raise GraphError(f"k must agree, got {ka} and {kb} in {show(a)} times {show(b)} (after transposition)")
    try:
        batch = broadcast(a[:-2], b[:-2])
    except GraphError as e:
        raise GraphError(f"batch dimensions of {show(a)} times {show(b)}: {e}") from None
    assert batch is not None
    rows: tuple[Dim, ...] = a[-2:-1]
    columns: tuple[Dim, ...] = b[-1:] if len(b) > 1 else ()
    return batch + rows + columns


def _check_bias(bias: TensorType, weights: Shape, out: Shape) -> None:
    if weights is not None and len(weights) == 1:
        raise GraphError(f"'bias' needs weights with columns, got weights {show(weights)}")
    shape = bias.shape
    if shape == ():
        raise GraphError(f"'bias' must have at least one dimension, got {bias}")
    if shape is None or weights is None:
        return
    places = zip(shape[::-1], (weights[-1:] if out is None else out)[::-1], strict=False)
    too_long = out is not None and len(shape) > len(out)
    if too_long or any(d not in (1, None) and n not in (d, None) for d, n in places):
        raise GraphError(f"'bias' must broadcast to the output {show(out)}, as {show(weights[-1:])} does, got {bias}")


@register_op(infer=infer_matmul, rows="product", onnx="MatMul")
@quiet
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
    y = rounded(a @ b, np.dtype(np.float32))
    return rounded(y if bias is None else y + bias.astype(np.float32), out_dtype)


def infer_bias_add(src: TensorType, bias: TensorType, *, data_format: str) -> TensorType:
    """Both operands have the same float dtype. The bias has one element for each channel."""
    expect_dtype("src", src, FLOATS)
    expect_same_dtype(src=src, bias=bias)
    if bias.shape is not None and len(bias.shape) != 1:
        raise GraphError(f"'bias' must be one-dimensional, got {bias}")
    if src.shape is None:
        return src
    axis = channel_axis(data_format, src.shape)
    channels, elements = src.shape[axis], None if bias.shape is None else bias.shape[0]
    if None not in (channels, elements) and channels != elements:
        raise GraphError(f"'bias' must be [{channels}], the channels at axis {axis} of {src} in {data_format}, "
                         f"got {bias}")
    known = channels if channels is not None else elements
    return TensorType(src.dtype, (*src.shape[:axis], known, *src.shape[axis + 1:]))


@register_op(infer=infer_bias_add, elementwise=True, lanes=lambda src, bias: src + bias, bound="sum", layout="anchor")
@in_f32
def bias_add(src: Array, bias: Array, *, data_format: Literal["NCX", "NXC"] = "NXC") -> Array:
    """`src + bias`, with one element of `bias` for each channel: axis 1 in NCX, the last in NXC (oneDNN BiasAdd)."""
    if data_format == "NCX":
        bias = bias.reshape(-1, *[1] * (src.ndim - 2))
    return src + bias
