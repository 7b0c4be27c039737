"""ONNX operations that move elements without arithmetic, for every dtype: gather, slice, pad, expand."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.base.sizes import largest
from graphq.dtypes import s32, s64
from graphq.errors import GraphError, InputError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import Array, broadcast, expect_dtype, normal_axes, normal_axis, show


def infer_gather(src: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    """The dimensions of `indices` replace the dimension `axis` of `src`."""
    expect_dtype("indices", indices, (s32, s64))
    if src.shape is None:
        return TensorType(src.dtype, None)
    k = normal_axis(axis, src.shape)
    if indices.shape is None:
        return TensorType(src.dtype, None)
    return TensorType(src.dtype, (*src.shape[:k], *indices.shape, *src.shape[k + 1:]))


@register_op(infer=infer_gather, rows="gathered", onnx="Gather")
def gather(src: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take `src` at `indices` along `axis` (ONNX Gather). Raises InputError for an index outside of [-size, size)."""
    size = src.shape[axis]
    outside = indices[(indices < -size) | (indices >= size)]
    if outside.size:
        raise index_error(src.shape, axis, int(outside[0]))
    return np.asarray(np.take(src, indices, axis=axis))


def index_error(shape: tuple[int, ...], axis: int, index: int) -> InputError:
    """The error for an index outside of the axis of a gather."""
    size = shape[axis]
    return InputError(f"gather: indices must be in [{-size}, {size - 1}] for axis {axis} of shape {show(shape)}, "
                      f"got {index}")


def infer_slice(src: TensorType, *, axes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...],
                steps: tuple[int, ...]) -> TensorType:
    """A sliced axis has the length of a Python slice with the same bounds and step."""
    if not len(axes) == len(starts) == len(ends) == len(steps) or 0 in steps:
        raise GraphError(f"axes, starts, ends and steps must be of one length, and steps not 0, got {list(axes)}, "
                         f"{list(starts)}, {list(ends)}, {list(steps)}")
    if src.shape is None:
        return src
    out: list[Dim] = list(src.shape)
    for k, *limits in zip(normal_axes(axes, src), starts, ends, steps, strict=True):
        if (size := src.shape[k]) is not None:
            start, end, step = bounds(size, *limits)
            out[k] = largest(0, -((start - end) // step))  # len(range(start, end, step))
    return TensorType(src.dtype, tuple(out))


def bounds(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """Resolve bounds as ONNX does: negative bounds count from the end, and bounds are clamped to the axis."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (x + size if x < 0 else x for x in (start, end))
    return min(max(start, max(low, 0)), high), min(max(end, low), high), step


@register_op(infer=infer_slice, rows="sliced", onnx="Slice")
def slice_(src: Array, *, axes: list[int], starts: list[int], ends: list[int], steps: list[int]) -> Array:
    """Every `step`-th element from `start` up to, but not including, `end`, along each axis (ONNX Slice)."""
    for axis, *limits in zip(axes, starts, ends, steps, strict=True):
        start, end, step = bounds(src.shape[axis], *limits)
        src = np.moveaxis(np.moveaxis(src, axis, 0)[slice(start, None if end < 0 else end, step)], 0, axis)
    return src


def infer_pad(src: TensorType, *, pads_begin: tuple[int, ...], pads_end: tuple[int, ...], mode: str,
              value: float) -> TensorType:
    """Each dimension grows by its pads, or shrinks by negative pads. Only mode constant can pad an empty axis."""
    rank = len(pads_begin) if src.shape is None else len(src.shape)
    if len(pads_begin) != rank or len(pads_end) != rank:
        raise GraphError(f"pads_begin and pads_end must have one value per axis of {src}, got {list(pads_begin)} and "
                         f"{list(pads_end)}")
    if src.shape is None:
        return TensorType(src.dtype, (None,) * rank)
    out = tuple(None if d is None else d + b + e for d, b, e in zip(src.shape, pads_begin, pads_end, strict=True))
    if any(d is not None and d < 0 for d in out):
        raise GraphError(f"pads {list(pads_begin)} and {list(pads_end)} remove more elements than {src} has")
    for axis, (d, b, e) in enumerate(zip(src.shape, pads_begin, pads_end, strict=True)):
        if mode != "constant" and d is not None and max(b, e) > 0 and d + min(b, 0) + min(e, 0) == 0:
            raise GraphError(f"mode {mode} has no element to repeat along axis {axis} of {src}, for pads of {b} and "
                             f"{e}; mode constant needs none")
    return TensorType(src.dtype, out)


@register_op(infer=infer_pad, rows="padded")
def pad(src: Array, *, pads_begin: list[int], pads_end: list[int],
        mode: Literal["constant", "edge", "reflect", "wrap"] = "constant", value: float = 0.0) -> Array:
    """`src` with elements added at both ends of each axis (ONNX Pad). Negative pads remove elements.

    The new elements are `value`, or depend on `mode` as in numpy.pad.
    """
    kept = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(src.shape, pads_begin, pads_end, strict=True))
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(pads_begin, pads_end, strict=True)]
    if not widths:  # numpy.pad refuses scalars
        return src
    if mode == "constant":
        return np.pad(src[kept], widths, constant_values=np.asarray(value).astype(src.dtype)[()])
    return np.pad(src[kept], widths, mode=mode)


def infer_expand(src: TensorType, *, shape: tuple[int, ...]) -> TensorType:
    """The result's shape is the shape of `src` broadcast with `shape`."""
    if any(d < 0 for d in shape):
        raise GraphError(f"shape must have dimensions >= 0, got {list(shape)}")
    return TensorType(src.dtype, broadcast(src.shape, shape))


@register_op(infer=infer_expand, rows="broadcast", onnx="Expand")
def expand(src: Array, *, shape: list[int]) -> Array:
    """`src` repeated along dimensions of 1, so that it has its broadcast shape with `shape` (ONNX Expand)."""
    return np.broadcast_to(src, np.broadcast_shapes(src.shape, tuple(shape))).copy()
