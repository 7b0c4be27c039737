"""Windows of convolutions and pools: attribute checks, padding, and output sizes."""
from collections.abc import Sequence
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from graphq.base.budget import expect
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ops.rules import Array, Shape, show

AutoPad: TypeAlias = Literal["none", "same_upper", "same_lower", "valid"]
DataFormat: TypeAlias = Literal["NCX", "NXC"]
Pads: TypeAlias = list[tuple[int, int]]


def check_lists(src: TensorType, positive: dict[str, tuple[int, ...]], not_negative: dict[str, tuple[int, ...]],
                **others: tuple[int, ...]) -> int:
    """The number of spatial axes. Raises GraphError if a list lacks a valid value for one of these axes."""
    lists = {**positive, **not_negative, **others}
    count = len(next(iter(lists.values()))) if src.shape is None else len(src.shape) - 2
    if count < 1:
        raise GraphError(f"'src' must have a batch, a channel and spatial axes, got {src}")
    for name, values in lists.items():
        low = 1 if name in positive else 0 if name in not_negative else None
        if len(values) != count or low is not None and any(v < low for v in values):
            least = "" if low is None else f" >= {low}"
            raise GraphError(f"{name} must be {count} values{least}, one per spatial axis of {src}, got {list(values)}")
    return count


def span(taps: Dim, dilation: int) -> Dim:
    """The number of input elements from the first to the last tap of a window."""
    return None if taps is None else (taps - 1) * dilation + 1


def padding(auto_pad: str, size: int, span: int, stride: int, begin: int, end: int) -> tuple[int, int]:
    """The padding at both ends of an axis; with same_*, the output has ceil(size / stride) elements."""
    if auto_pad == "none":
        return begin, end
    if auto_pad == "valid":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    return (total // 2, total - total // 2) if auto_pad == "same_upper" else (total - total // 2, total // 2)


def output_size(size: Dim, span: Dim, stride: int, pads: tuple[int, int], auto_pad: str, *, ceil: bool = False) -> Dim:
    """The output size of one axis of a convolution or pool. Raises GraphError if the window does not fit.

    Padding at the end may be negative, as in oneDNN: elements at the end of the input are then left out.
    """
    if size is None:
        return None
    if auto_pad in ("same_upper", "same_lower") and size > 0:
        return -(-size // stride)
    if span is None:
        return None
    begin, end = padding(auto_pad, size, span, stride, *pads)
    room = size + begin + end - span
    if room < 0:
        raise GraphError(f"a window of {span} elements does not fit into {size} padded by {begin} and {end}")
    return (-(-room // stride) if ceil else room // stride) + 1


def output_sizes(sizes: Sequence[Dim], spans: Sequence[Dim], strides: Sequence[int], pads_begin: Sequence[int],
                 pads_end: Sequence[int], auto_pad: str, *, ceil: bool = False) -> tuple[Dim, ...]:
    """The output sizes of all spatial axes (see `output_size`)."""
    return tuple(output_size(n, w, s, pads, auto_pad, ceil=ceil) for n, w, s, pads
                 in zip(sizes, spans, strides, zip(pads_begin, pads_end, strict=True), strict=True))


def padded(x: Array, pads: Sequence[tuple[int, int]], fill: float = 0.0) -> Array:
    """`x` [n, c, spatial...] with `pads` elements of `fill` added at both ends of its spatial axes.

    Negative padding at an end removes elements. Raises CompileError if the result would take too much memory.
    """
    sizes = [n + begin + end for n, (begin, end) in zip(x.shape[2:], pads, strict=True)]
    expect(prod([*x.shape[:2], *sizes]) * x.itemsize, f"an input of {list(x.shape)} padded by {list(pads)}")
    whole = np.pad(x, [(0, 0), (0, 0), *((begin, max(end, 0)) for begin, end in pads)], constant_values=fill)
    return whole[(slice(None), slice(None), *map(slice, sizes))]


def window_counts(size: int, taps: int, stride: int, pads: tuple[int, int], outputs: int, *, inside: bool) -> Array:
    """Count the taps of each pool window that lie in the input (if `inside`) or in the padded input: f32 [outputs].

    Negative padding at the end only removes windows. The other windows still count all input elements.
    """
    begin, end = (0, 0) if inside else (pads[0], max(pads[1], 0))
    expect(32 * outputs, f"counting the taps of {outputs} windows")
    first = np.arange(outputs) * stride - pads[0]
    return np.maximum(np.minimum(first + taps, size + end) - np.maximum(first, -begin), 0).astype(np.float32)


def channels_first(shape: Shape, count: int, data_format: str) -> tuple[Dim, ...]:
    """A shape as [n, c, spatial...]. If the rank is unknown, all dimensions are unknown."""
    if shape is None:
        return (None,) * (count + 2)
    return shape if data_format == "NCX" else (shape[0], shape[-1], *shape[1:-1])


def in_format(shape: Sequence[Dim], data_format: str) -> tuple[Dim, ...]:
    """Reorder [n, c, spatial...] to `data_format`."""
    n, c, *spatial = shape
    return (n, c, *spatial) if data_format == "NCX" else (n, *spatial, c)


def to_channels_first(x: Array, data_format: str) -> Array:
    """A view of `x` as [n, c, spatial...]."""
    return x if data_format == "NCX" else np.moveaxis(x, -1, 1)


def from_channels_first(x: Array, data_format: str) -> Array:
    """Reorder the axes of x from [n, c, spatial...] to `data_format`, as a contiguous array."""
    return np.ascontiguousarray(x if data_format == "NCX" else np.moveaxis(x, 1, -1))


def check_channels(what: str, got: Dim, want: Dim, where: Shape, why: str) -> None:
    """Raise GraphError if both numbers of channels are known and differ."""
    if got is not None and want is not None and got != want:
        raise GraphError(f"{what} must be {want} ({why}), got {got} in {show(where)}")
