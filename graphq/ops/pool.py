"""The operations max_pool and avg_pool."""
import functools
from math import prod
from typing import Literal

import numpy as np

from graphq.ir import TensorType, register_op
from graphq.kernels.numbers.mean_sums import array_total, pool_order
from graphq.ops import window
from graphq.ops.rules import FLOATS, Array, expect_dtype, larger, rounded


def infer_pool(src: TensorType, *, strides: tuple[int, ...], pads_begin: tuple[int, ...], pads_end: tuple[int, ...],
               kernel: tuple[int, ...], rounding_type: str, auto_pad: str, data_format: str,
               dilations: tuple[int, ...] | None = None, **_: bool) -> TensorType:
    """An output axis has (size + pads - span) / stride + 1 elements, rounded down or up. pads_end may be negative."""
    expect_dtype("src", src, FLOATS)
    dilations = (1,) * len(kernel) if dilations is None else dilations
    count = window.check_lists(src, {"kernel": kernel, "strides": strides, "dilations": dilations},
                               {"pads_begin": pads_begin}, pads_end=pads_end)
    n, c, *sizes = window.channels_first(src.shape, count, data_format)
    spans = [window.span(k, d) for k, d in zip(kernel, dilations, strict=True)]
    out = window.output_sizes(sizes, spans, strides, pads_begin, pads_end, auto_pad, ceil=rounding_type == "ceil")
    return TensorType(src.dtype, window.in_format((n, c, *out), data_format))


@register_op(infer=infer_pool, layout="anchor", rows="images")
def max_pool(src: Array, *, strides: list[int], pads_begin: list[int], pads_end: list[int], kernel: list[int],
             rounding_type: Literal["floor", "ceil"] = "floor", auto_pad: window.AutoPad = "none",
             dilations: list[int] | None = None, data_format: window.DataFormat = "NXC") -> Array:
    """The greatest element of each window, NaN if one is NaN (oneDNN MaxPool). Padding counts as -inf."""
    x = window.to_channels_first(src, data_format).astype(np.float32, copy=False)
    for k, taps in enumerate(kernel):
        axis = _PoolAxis(x.shape[k + 2], taps, 1 if dilations is None else dilations[k], strides[k],
                     (pads_begin[k], pads_end[k]), auto_pad, rounding_type == "ceil")
        whole = axis.padded(x, k + 2, -np.inf)
        x = functools.reduce(larger, (axis.tap(whole, k + 2, tap) for tap in range(taps)))
    return rounded(window.from_channels_first(x, data_format), src.dtype)


@register_op(infer=infer_pool, layout="anchor", rows="images")
def avg_pool(src: Array, *, strides: list[int], pads_begin: list[int], pads_end: list[int], kernel: list[int],
             exclude_pad: bool, in_order: bool = False, rounding_type: Literal["floor", "ceil"] = "floor",
             auto_pad: window.AutoPad = "none", data_format: window.DataFormat = "NXC") -> Array:
    """The mean of each window in f32 (oneDNN AvgPool). `auto_pad` is as in convolution.

    Elements are added in the order of `pool_order` (graphq.kernels.numbers.mean_sums). With `in_order` (not in oneDNN)
    they are added from the first tap of the window to the last. Padding counts as zeros. With `exclude_pad` padding
    does not count, and a window of only padding becomes NaN. If the output size is rounded up, a window may reach
    beyond the padding. Elements there never count, as in ONNX; oneDNN refuses such windows without `exclude_pad`.
    """
    x = window.to_channels_first(src, data_format).astype(np.float32, copy=False)
    sizes = x.shape[2:]
    axes = [_PoolAxis(sizes[k], taps, 1, strides[k], (pads_begin[k], pads_end[k]), auto_pad, rounding_type == "ceil")
            for k, taps in enumerate(kernel)]
    counts = np.ones((), np.float32)
    for k, axis in enumerate(axes):
        x = axis.padded(x, k + 2, 0.0)
        counts = np.multiply.outer(counts, window.window_counts(sizes[k], kernel[k], strides[k], axis.pads, axis.out,
                                                                inside=exclude_pad))

    def tap(flat: int) -> Array:
        y = x
        for k, (axis, place) in enumerate(zip(axes, np.unravel_index(flat, kernel), strict=True)):
            y = axis.tap(y, k + 2, int(place))
        return y

    order = pool_order(sizes, kernel, strides, [axis.pads for axis in axes], in_order)
    total = array_total(order, tap, prod(kernel), kernel[-1], (*x.shape[:2], *counts.shape))
    return rounded(window.from_channels_first(total / counts, data_format), src.dtype)


class _PoolAxis:
    """The windows along one axis of `size` elements."""

    def __init__(self, size: int, taps: int, dilation: int, stride: int, pads: tuple[int, int], auto_pad: str,
                 ceil: bool) -> None:
        width = (taps - 1) * dilation + 1
        self.size, self.taps, self.dilation, self.stride = size, taps, dilation, stride
        self.pads = window.padding(auto_pad, size, width, stride, *pads)
        out = window.output_size(size, width, stride, pads, auto_pad, ceil=ceil)
        assert out is not None
        self.out, self.last = out, (out - 1) * stride + width

    def padded(self, x: Array, axis: int, fill: float) -> Array:
        """Pad `x` with `fill`, up to the end of the last window if sizes are rounded up."""
        begin, end = self.pads
        end = max(self.last - begin - self.size, end)
        return window.padded(x, [(begin, end) if k == axis else (0, 0) for k in range(2, x.ndim)], fill)

    def tap(self, x: Array, axis: int, tap: int) -> Array:
        first = tap * self.dilation
        return x[(*[slice(None)] * axis, slice(first, first + (self.out - 1) * self.stride + 1, self.stride))]
