"""The operation convolution."""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops import window
from graphq.ops.compute import Array, quiet, rounded
from graphq.ops.infer import FLOATS, SUMS, Shape, expect_dtype, expect_same_dtype, output_dtype, show

COLUMNS = 2**22
"""The approximate number of elements of the im2col matrix that `correlate` builds at a time: 32 MB of f64."""


def weight_axes(weights_format: str, count: int) -> tuple[int, ...]:
    """The positions of axis O, axis I and the `count` spatial axes in weights of a format such as "XIO"."""
    spatial = weights_format.index("X")
    axes = {"X": range(spatial, spatial + count)}
    for k, letter in enumerate(weights_format.replace("X", "")):
        axes[letter] = range(k if spatial else k + count, k + count + 1)
    return (axes["O"][0], axes["I"][0], *axes["X"])


def weight_dims(weights: Shape, weights_format: str, count: int) -> tuple[Dim, ...]:
    """The dimensions of weights as [O, I, spatial...]; raises GraphError on a wrong rank or an empty kernel."""
    if weights is None:
        return (None,) * (count + 2)
    if len(weights) != count + 2:
        raise GraphError(f"'weights' must have rank {count + 2} as src, got {show(weights)}")
    dims = tuple(weights[k] for k in weight_axes(weights_format, count))
    if 0 in dims[2:]:
        raise GraphError(f"the kernel must have at least one element along each axis, got weights {show(weights)} "
                         f"in {weights_format}")
    return dims


def check_operands(src: TensorType, weights: TensorType, bias: TensorType | None, groups: int) -> None:
    """Check for one float dtype, a one-dimensional bias, and at least one group."""
    expect_dtype("src", src, FLOATS)
    expect_same_dtype(src=src, weights=weights, bias=bias)
    if groups < 1:
        raise GraphError(f"groups must be positive, got {groups}")
    if bias is not None and bias.shape is not None and len(bias.shape) != 1:
        raise GraphError(f"'bias' must be one-dimensional, got {bias}")


def known_channels(out: Dim, bias: TensorType | None) -> Dim:
    """The number of output channels, which equals the bias's size; raises GraphError if they differ."""
    if bias is None or bias.shape is None:
        return out
    window.check_channels("the elements of 'bias'", bias.shape[0], out, bias.shape, "the output's channels")
    return bias.shape[0] if out is None else out


def infer_convolution(src: TensorType, weights: TensorType, bias: TensorType | None = None, *,
                      strides: tuple[int, ...], pads_begin: tuple[int, ...], pads_end: tuple[int, ...],
                      dilations: tuple[int, ...], auto_pad: str, groups: int, data_format: str,
                      weights_format: str, dtype: DType | None) -> TensorType:
    """Weights have I = channels / groups; an axis of the output has (size + pads - span) // stride + 1 elements.

    Negative pads_end keep windows off the end of the source.
    """
    check_operands(src, weights, bias, groups)
    count = window.check_lists(src, {"strides": strides, "dilations": dilations},
                               {"pads_begin": pads_begin}, pads_end=pads_end)
    n, c, *sizes = window.channels_first(src.shape, count, data_format)
    o, i, *taps = weight_dims(weights.shape, weights_format, count)
    window.check_channels("channels of 'src'", c, None if i is None else i * groups, src.shape,
                          f"{groups} groups of the {i} in weights {weights}")
    if o is not None and o % groups != 0:
        raise GraphError(f"output channels must be a multiple of groups, got {o} and {groups}")
    spans = [window.span(k, d) for k, d in zip(taps, dilations, strict=True)]
    out = window.output_sizes(sizes, spans, strides, pads_begin, pads_end, auto_pad)
    return TensorType(output_dtype(src.dtype, dtype, SUMS),
                      window.in_format((n, known_channels(o, bias), *out), data_format))


@register_op(infer=infer_convolution, layout="anchor", rows="images")
@quiet
def convolution(src: Array, weights: Array, bias: Array | None = None, *, strides: list[int], pads_begin: list[int],
                pads_end: list[int], dilations: list[int], auto_pad: window.AutoPad = "none", groups: int = 1,
                data_format: window.DataFormat = "NXC", weights_format: Literal["OIX", "XIO"] = "XIO",
                dtype: DType | None = None) -> Array:
    """Convolution over any number of spatial axes (oneDNN Convolution), without reversing the kernel.

    If `auto_pad` is not none, `pads_begin` and `pads_end` are ignored. same_* pads so that the output has ceil(size /
    stride) elements; if the number of added elements is odd, there is one more at the end (same_upper) or at the
    beginning (same_lower). Products are summed in f64 and rounded to f32 once; the bias is added in f32; then the
    result is rounded to `dtype` (None: that of `src`).
    """
    x = window.to_channels_first(src, data_format).astype(np.float32, copy=False)
    w = weights.transpose(weight_axes(weights_format, src.ndim - 2))
    pads = [window.padding(auto_pad, n, (k - 1) * d + 1, s, b, e) for n, k, d, s, b, e
            in zip(x.shape[2:], w.shape[2:], dilations, strides, pads_begin, pads_end, strict=True)]
    y = correlate(x, w, tuple(strides), tuple(dilations), pads, groups)
    y = window.from_channels_first(with_bias(y, bias), data_format)
    return rounded(y, src.dtype if dtype is None else dtype.numpy)


def with_bias(y: Array, bias: Array | None) -> Array:
    """`y` [n, c, spatial...] plus the element of `bias` for each channel, in f32."""
    return y if bias is None else y + bias.astype(np.float32).reshape(-1, *[1] * (y.ndim - 2))


def correlate(x: Array, w: Array, strides: tuple[int, ...], dilations: tuple[int, ...], pads: window.Pads,
              groups: int, result: type = np.float32) -> Array:
    """The convolution of x [n, c, ...] with w [o, c / groups, ...], by matmuls in f64, rounded to `result` once."""
    count, taps = len(strides), w.shape[2:]
    x = window.padded(x, pads)
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, count + 2)))
    windows = windows[(slice(None), slice(None), *[slice(None, None, s) for s in (*strides, *dilations)])]
    n, c, *sizes = windows.shape[:count + 2]
    matrix = w.astype(np.float64).reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))
    y = np.empty((n, w.shape[0], *sizes), result)
    # From [n, c, sizes, taps] to [c, taps, n, sizes]: a row for each weight, a column for each output.
    order = (1, *range(count + 2, 2 * count + 2), 0, *range(2, count + 2))
    for images, rows in _chunks(n, sizes[0], c * math.prod(taps) * math.prod(sizes)):
        part = windows[images, :, rows].transpose(order).astype(np.float64, order="C")
        columns = part.reshape(groups, matrix.shape[2], math.prod(part.shape[count + 1:]))
        sums = (matrix @ columns).reshape(w.shape[0], *part.shape[count + 1:])
        y[images, :, rows] = np.moveaxis(sums, 0, 1)
    return y


def _chunks(images: int, rows: int, elements: int) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices, of images and of rows, that have about COLUMNS elements; one image has `elements`."""
    step = max(1, COLUMNS // max(1, elements))
    part = rows if elements <= COLUMNS else max(1, rows * COLUMNS // elements)
    for n in range(0, images, step):
        for r in range(0, rows, max(1, part)):
            yield slice(n, n + step), slice(r, r + part)
