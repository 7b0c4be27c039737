"""max_pool and avg_pool. Windows are products of intervals, so that both run along one axis after the other."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.ir import TensorType
from graphq.op import register_op
from graphq.ops.compute import Array, quiet, rounded
from graphq.ops.infer import FLOATS, expect_dtype
from graphq.ops.window import (
    AutoPad,
    DataFormat,
    channels_first,
    check_lists,
    from_channels_first,
    in_format,
    output_size,
    output_sizes,
    padding,
    span,
    to_channels_first,
)


def infer_max_pool(src: TensorType, *, strides: tuple[int, ...], pads_begin: tuple[int, ...],
                   pads_end: tuple[int, ...], kernel: tuple[int, ...], rounding_type: str, auto_pad: str,
                   dilations: tuple[int, ...] | None, data_format: str) -> TensorType:
    """An axis of the output has (size + pads - span) / stride + 1 elements, rounded down or up."""
    expect_dtype("src", src, FLOATS)
    dilations = (1,) * len(kernel) if dilations is None else dilations
    count = check_lists(src, {"kernel": kernel, "strides": strides, "dilations": dilations},
                        {"pads_begin": pads_begin, "pads_end": pads_end})
    n, c, *sizes = channels_first(src.shape, count, data_format)
    spans = [span(k, d) for k, d in zip(kernel, dilations, strict=True)]
    out = output_sizes(sizes, spans, strides, pads_begin, pads_end, auto_pad, ceil=rounding_type == "ceil")
    return TensorType(src.dtype, in_format((n, c, *out), data_format))


@register_op(infer=infer_max_pool)
@quiet
def max_pool(src: Array, *, strides: list[int], pads_begin: list[int], pads_end: list[int], kernel: list[int],
             rounding_type: Literal["floor", "ceil"] = "floor", auto_pad: AutoPad = "none",
             dilations: list[int] | None = None, data_format: DataFormat = "NXC") -> Array:
    """The greatest element of each window (oneDNN MaxPool). NaN where there is one.

    Padding never wins; a window of padding alone gives -inf. `auto_pad` is as in convolution.
    """
    x = to_channels_first(src, data_format).astype(np.float32, copy=False)
    for k, taps in enumerate(kernel):
        dilation = 1 if dilations is None else dilations[k]
        x, _, _ = _along(np.maximum, x, k + 2, taps, dilation, strides[k], (pads_begin[k], pads_end[k]), auto_pad,
                         rounding_type == "ceil", -np.inf)
    return rounded(from_channels_first(x, data_format), src.dtype)


def infer_avg_pool(src: TensorType, *, strides: tuple[int, ...], pads_begin: tuple[int, ...],
                   pads_end: tuple[int, ...], kernel: tuple[int, ...], exclude_pad: bool, rounding_type: str,
                   auto_pad: str, data_format: str) -> TensorType:
    """As max_pool, without dilations."""
    return infer_max_pool(src, strides=strides, pads_begin=pads_begin, pads_end=pads_end, kernel=kernel,
                          rounding_type=rounding_type, auto_pad=auto_pad, dilations=None, data_format=data_format)


@register_op(infer=infer_avg_pool)
@quiet
def avg_pool(src: Array, *, strides: list[int], pads_begin: list[int], pads_end: list[int], kernel: list[int],
             exclude_pad: bool, rounding_type: Literal["floor", "ceil"] = "floor", auto_pad: AutoPad = "none",
             data_format: DataFormat = "NXC") -> Array:
    """The mean of each window, in f64, rounded to f32 once (oneDNN AvgPool). `auto_pad` is as in convolution.

    Padding counts as zeros, or not at all with `exclude_pad` (a window of padding alone gives NaN then). What rounding
    up adds beyond the padding never counts, as in ONNX; oneDNN refuses that without `exclude_pad`.
    """
    x = to_channels_first(src, data_format).astype(np.float64)
    for k, taps in enumerate(kernel):
        x, inside, padded = _along(np.add, x, k + 2, taps, 1, strides[k], (pads_begin[k], pads_end[k]), auto_pad,
                                   rounding_type == "ceil", 0.0)
        count = inside if exclude_pad else padded
        x = x / count.reshape(-1, *[1] * (x.ndim - k - 3))
    return rounded(from_channels_first(x, data_format), src.dtype)


def _along(combine: np.ufunc, x: Array, axis: int, taps: int, dilation: int, stride: int, pads: tuple[int, int],
           auto_pad: str, ceil: bool, fill: float) -> tuple[Array, Array, Array]:
    """`combine` over the windows along one axis; how many taps of each lie in the source, and in the padded source."""
    size, width = x.shape[axis], (taps - 1) * dilation + 1
    begin, end = padding(auto_pad, size, width, stride, *pads)
    out = output_size(size, width, stride, pads, auto_pad, ceil=ceil)
    assert out is not None
    last = max((out - 1) * stride + width - begin - size, end)
    x = np.pad(x, [(begin, last) if k == axis else (0, 0) for k in range(x.ndim)], constant_values=fill)
    y = None
    for tap in range(0, taps * dilation, dilation):
        part = x[(*[slice(None)] * axis, slice(tap, tap + (out - 1) * stride + 1, stride))]
        y = part.copy() if y is None else combine(y, part, out=y)
    assert y is not None
    places = np.arange(out)[:, None] * stride + np.arange(taps) * dilation - begin
    inside, padded = (places >= 0) & (places < size), places < size + end
    return y, inside.sum(axis=1), padded.sum(axis=1)
