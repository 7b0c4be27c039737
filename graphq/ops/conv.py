"""The operations convolution and conv_transpose."""
import math
from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import numpy as np

from graphq.base.budget import expect
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, register_op
from graphq.ops import rules, window
from graphq.ops.rules import Array, Shape

COLUMNS = 2**22
"""The approximate number of elements in an im2col matrix of `correlate`: 32 MB of f64."""


def weight_axes(weights_format: str, count: int) -> tuple[int, ...]:
    """The positions of axis O, axis I and the `count` spatial axes in a weights format such as "XIO"."""
    spatial = weights_format.index("X")
    axes = {"X": range(spatial, spatial + count)}
    for k, letter in enumerate(weights_format.replace("X", "")):
        axes[letter] = range(k if spatial else k + count, k + count + 1)
    return (axes["O"][0], axes["I"][0], *axes["X"])


def weight_dims(weights: Shape, weights_format: str, count: int) -> tuple[Dim, ...]:
    """The dimensions of weights as [O, I, spatial...]. Raises GraphError for a wrong rank or an empty kernel."""
    if weights is None:
        return (None,) * (count + 2)
    if len(weights) != count + 2:
        raise GraphError(f"'weights' must have the rank of src, {count + 2}, got {rules.show(weights)}")
    dims = tuple(weights[k] for k in weight_axes(weights_format, count))
    if 0 in dims[2:]:
        raise GraphError(f"the kernel must have at least one element along each axis, got weights "
                         f"{rules.show(weights)} in {weights_format}")
    return dims


def check_operands(src: TensorType, weights: TensorType, bias: TensorType | None, groups: int) -> None:
    """Check that operands have the same float dtype, the bias is one-dimensional, and `groups` is positive."""
    rules.expect_same_dtype(*rules.FLOATS, src=src, weights=weights, bias=bias)
    if groups < 1:
        raise GraphError(f"groups must be positive, got {groups}")
    if bias is not None and bias.shape is not None and len(bias.shape) != 1:
        raise GraphError(f"'bias' must be one-dimensional, got {bias}")


def known_channels(out: Dim, bias: TensorType | None) -> Dim:
    """The number of output channels, if known from `out` or the bias. Raises GraphError if they differ."""
    if bias is None or bias.shape is None:
        return out
    window.check_channels("the elements of 'bias'", bias.shape[0], out, bias.shape, "the output's channels")
    return bias.shape[0] if out is None else out


def infer_convolution(src: TensorType, weights: TensorType, bias: TensorType | None = None, *,
                      strides: tuple[int, ...], pads_begin: tuple[int, ...], pads_end: tuple[int, ...],
                      dilations: tuple[int, ...], auto_pad: str, groups: int, data_format: str,
                      weights_format: str, dtype: DType | None) -> TensorType:
    """Weights have I = channels / groups. An output axis has (size + pads - span) // stride + 1 elements.

    A negative pads_end cuts elements off the end of `src`.
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
    return TensorType(rules.output_dtype(src.dtype, dtype, rules.SUMS),
                      window.in_format((n, known_channels(o, bias), *out), data_format))


@register_op(infer=infer_convolution, layout="anchor", rows="images")
def convolution(src: Array, weights: Array, bias: Array | None = None, *, strides: list[int], pads_begin: list[int],
                pads_end: list[int], dilations: list[int], auto_pad: window.AutoPad = "none", groups: int = 1,
                data_format: window.DataFormat = "NXC", weights_format: Literal["OIX", "XIO"] = "XIO",
                dtype: DType | None = None) -> Array:
    """Convolution over any number of spatial axes (oneDNN Convolution), without reversing the kernel.

    If `auto_pad` is not none, `pads_begin` and `pads_end` are ignored. same_upper and same_lower pad such that the
    output has ceil(size / stride) elements; if the number of added elements is odd, same_upper adds one more at the
    end, and same_lower at the beginning. Products are summed in f64 and rounded to f32 once. The bias is added in f32.
    Then the result is rounded to `dtype` (None: the dtype of `src`).
    """
    x = window.to_channels_first(src, data_format).astype(np.float32, copy=False)
    w = weights.transpose(weight_axes(weights_format, src.ndim - 2))
    y = correlate(x, w, strides, dilations, pads_begin, pads_end, auto_pad, groups)
    y = window.from_channels_first(with_bias(y, bias), data_format)
    return rules.rounded(y, src.dtype if dtype is None else dtype.numpy)


def with_bias(y: Array, bias: Array | None) -> Array:
    """`y` [n, c, spatial...] plus one element of `bias` for each channel, in f32."""
    return y if bias is None else y + bias.astype(np.float32).reshape(-1, *[1] * (y.ndim - 2))


def correlate(x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], pads_begin: Sequence[int],
              pads_end: Sequence[int], auto_pad: str, groups: int, result: type = np.float32) -> Array:
    """The convolution of x [n, c, ...] with w [o, c / groups, ...], by matmuls in f64, rounded to `result` once."""
    count, taps = len(strides), w.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    x = window.padded(x, [window.padding(auto_pad, *axis) for axis in zip(
        x.shape[2:], spans, strides, pads_begin, pads_end, strict=True)])
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
    step = max(1, COLUMNS // max(1, elements))
    part = rows if elements <= COLUMNS else max(1, rows * COLUMNS // elements)
    for n in range(0, images, step):
        for r in range(0, rows, max(1, part)):
            yield slice(n, n + step), slice(r, r + part)


def transposed_padding(auto_pad: str, span: int, stride: int, begin: int, end: int) -> tuple[int, int]:
    """How many elements to cut off at the beginning and at the end of an output axis.

    same_upper and same_lower leave size * stride elements if `span` is at least the stride. If the number of elements
    to cut off is odd, same_upper cuts one more at the end, same_lower at the beginning (measured on oneDNN 3.13).
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
    """The `output_padding` of each spatial axis. oneDNN's files have 12 values; values beyond the last axis are 0."""
    if output_padding is None:
        return (0,) * count
    values, rest = output_padding[:count], output_padding[count:]
    if len(values) < count or any(v < 0 for v in values) or any(rest):
        raise GraphError(f"output_padding must be {count} values >= 0, one per spatial axis, "
                         f"got {list(output_padding)}")
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
        raise GraphError(f"channels of 'src' must be a multiple of groups, got {channels} in {rules.show(src.shape)} "
                         f"and {groups}")
    out = tuple(_output_size(size, window.span(k, d), s, (b, e), auto_pad, m) for size, k, d, s, b, e, m
                in zip(sizes, taps, dilations, strides, pads_begin, pads_end, more_at_end(output_padding, count),
                       strict=True))
    o = known_channels(None if o is None else o * groups, bias)
    return TensorType(rules.output_dtype(src.dtype, dtype, rules.SUMS), window.in_format((n, o, *out), data_format))


@register_op(infer=infer_conv_transpose, layout="anchor", rows="images")
def conv_transpose(src: Array, weights: Array, bias: Array | None = None, *, strides: list[int], pads_begin: list[int],
                   pads_end: list[int], dilations: list[int], auto_pad: window.AutoPad = "none",
                   output_padding: list[int] | None = None, groups: int = 1, data_format: window.DataFormat = "NXC",
                   weights_format: Literal["OIX", "XIO", "IOX", "XOI"] = "XOI", dtype: DType | None = None) -> Array:
    """The transpose of a convolution: each element of `src` adds a multiple of the kernel (oneDNN ConvTranspose).

    In all weights formats, I is the channels of `src`, and O is the output's channels divided by `groups`. oneDNN 3.13
    implements IOX and XOI (its default), although its documentation says OIX and XIO. The pads are cut off the full
    result, and `output_padding` zeros are added at the result's end. Sums are in f64 and rounded to f32 once. The bias
    is added in f32. Then the result is rounded to `dtype` (None: the dtype of `src`).
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
    return rules.rounded(window.from_channels_first(y, data_format), src.dtype if dtype is None else dtype.numpy)
