"""The operation conv_transpose."""
from __future__ import annotations

from math import prod
from typing import Literal

import numpy as np

from graphq.base.budget import expect
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops import window
from graphq.ops.compute import Array, quiet, rounded
from graphq.ops.conv import check_operands, known_channels, weight_axes, weight_dims, with_bias
from graphq.ops.infer import SUMS, output_dtype, show


def transposed_padding(auto_pad: str, span: int, stride: int, begin: int, end: int) -> tuple[int, int]:
    """How many elements are cut off at the beginning and at the end of an output axis.

    `same_*` leaves size * stride elements if a window spans at least a stride. If the number to cut off is odd, one
    more is cut off at the end (same_upper) or at the beginning (same_lower), as measured on oneDNN 3.13.
    """
    if auto_pad == "none":
        return begin, end
    total = 0 if auto_pad == "valid" else max(span - stride, 0)
    return (total - total // 2, total // 2) if auto_pad == "same_lower" else (total // 2, total - total // 2)


def _output_size(size: Dim, span: Dim, stride: int, pads: tuple[int, int], auto_pad: str, more: int) -> Dim:
    if size is None or span is None:
        return None
    begin, end = transposed_padding(auto_pad, span, stride, *pads)
    out = (size - 1) * stride + span - begin - end + more
    if size == 0 or out < 1:
        raise GraphError(f"an output axis would have {out} elements: {size} at stride {stride}, a window of {span}, "
                         f"{begin} and {end} cut off, {more} added")
    return out


def more_at_end(output_padding: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    """The `output_padding` of each spatial axis; oneDNN's files have 12 values, which are 0 beyond the last axis."""
    if output_padding is None:
        return (0,) * count
    values, rest = output_padding[:count], output_padding[count:]
    if len(values) < count or any(v < 0 for v in values) or any(rest):
        raise GraphError(f"output_padding must be {count} values >= 0, one a spatial axis, got {list(output_padding)}")
    return values


def infer_conv_transpose(src: TensorType, weights: TensorType, bias: TensorType | None = None, *,
                         strides: tuple[int, ...], pads_begin: tuple[int, ...], pads_end: tuple[int, ...],
                         dilations: tuple[int, ...], auto_pad: str, output_padding: tuple[int, ...] | None,
                         groups: int, data_format: str, weights_format: str, dtype: DType | None) -> TensorType:
    """Weights have I = channels and O = output channels / groups.

    An axis of the output has (size - 1) * stride + span - pads + output_padding elements.
    """
    check_operands(src, weights, bias, groups)
    count = window.check_lists(src, {"strides": strides, "dilations": dilations},
                               {"pads_begin": pads_begin, "pads_end": pads_end})
    n, c, *sizes = window.channels_first(src.shape, count, data_format)
    o, i, *taps = weight_dims(weights.shape, weights_format, count)
    window.check_channels("channels of 'src'", c, i, src.shape, f"as I of weights {weights} in {weights_format}")
    channels = i if c is None else c
    if channels is not None and channels % groups != 0:
        raise GraphError(f"channels of 'src' must be a multiple of groups, got {channels} in {show(src.shape)} "
                         f"and {groups}")
    out = tuple(_output_size(size, window.span(k, d), s, (b, e), auto_pad, m) for size, k, d, s, b, e, m
                in zip(sizes, taps, dilations, strides, pads_begin, pads_end, more_at_end(output_padding, count),
                       strict=True))
    o = known_channels(None if o is None else o * groups, bias)
    return TensorType(output_dtype(src.dtype, dtype, SUMS), window.in_format((n, o, *out), data_format))


@register_op(infer=infer_conv_transpose, layout="anchor", rows="images")
@quiet
def conv_transpose(src: Array, weights: Array, bias: Array | None = None, *, strides: list[int], pads_begin: list[int],
                   pads_end: list[int], dilations: list[int], auto_pad: window.AutoPad = "none",
                   output_padding: list[int] | None = None, groups: int = 1, data_format: window.DataFormat = "NXC",
                   weights_format: Literal["OIX", "XIO", "IOX", "XOI"] = "XOI", dtype: DType | None = None) -> Array:
    """The transpose of a convolution: the sum of the kernel times each source element (oneDNN ConvTranspose).

    In all weights formats I is the source's channels and O the output's, divided by `groups`. oneDNN 3.13 implements
    IOX and XOI, its default; its documentation says OIX and XIO. The pads are cut off the full result; `output_padding`
    zeros are added at its end. Sums are in f64 and rounded to f32 once; the bias is added in f32; then the result is
    rounded to `dtype` (None: that of `src`).
    """
    count = src.ndim - 2
    x = window.to_channels_first(src, data_format).astype(np.float64)
    w = weights.transpose(weight_axes(weights_format, count)).astype(np.float64)
    n, c, *sizes = x.shape
    o, _, *taps = w.shape
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    cuts = [transposed_padding(auto_pad, k, s, b, e) for k, s, b, e
            in zip(spans, strides, pads_begin, pads_end, strict=True)]
    more = more_at_end(None if output_padding is None else tuple(output_padding), count)
    full = [(size - 1) * s + k + m for size, s, k, m in zip(sizes, strides, spans, more, strict=True)]
    expect(8 * n * o * groups * prod(full), f"the full result of {list(src.shape)} at strides {list(strides)}")
    y = np.zeros((n, o * groups, *full))
    x = x.reshape(n, groups, c // groups, int(np.prod(sizes)))
    by_group = w.reshape(o, groups, c // groups, *taps).swapaxes(0, 1)
    for tap in np.ndindex(*taps):
        part = (by_group[(..., *tap)] @ x).reshape(n, o * groups, *sizes)
        place = [slice(t * d, t * d + (size - 1) * s + 1, s) for t, d, size, s
                 in zip(tap, dilations, sizes, strides, strict=True)]
        y[(slice(None), slice(None), *place)] += part
    kept = [slice(b, size - e) for (b, e), size in zip(cuts, full, strict=True)]
    y = with_bias(y[(slice(None), slice(None), *kept)].astype(np.float32), bias)
    return rounded(window.from_channels_first(y, data_format), src.dtype if dtype is None else dtype.numpy)
