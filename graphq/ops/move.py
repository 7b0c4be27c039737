"""Operations without arithmetic: constants, reshape, transpose, concat, gather, slice, pad, expand and others."""
import math
from functools import partial
from typing import Literal, NoReturn, cast

import numpy as np

from graphq.base.sizes import largest
from graphq.dtypes import DType, s32, s64
from graphq.errors import GraphError, InputError
from graphq.ir import Dim, TensorType, array_type, listing, register_op
from graphq.ops import rules
from graphq.ops.rules import Array, Shape, show

register_move = partial(register_op, computes=False)

def infer_gather(src: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    """The dimensions of `indices` replace the dimension `axis` of `src`."""
    rules.expect_dtype("indices", indices, (s32, s64))
    found = rules.with_axis(src, axis, *(indices.shape or ()))
    return TensorType(src.dtype, None) if indices.shape is None else found


@register_move(infer=infer_gather, rows="gathered", onnx="Gather")
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
    for k, *limits in zip(rules.normal_axes(axes, src), starts, ends, steps, strict=True):
        if (size := src.shape[k]) is not None:
            start, end, step = bounds(size, *limits)
            out[k] = largest(0, -((start - end) // step))  # len(range(start, end, step))
    return TensorType(src.dtype, tuple(out))


def bounds(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """Resolve bounds as ONNX does: negative bounds count from the end, and bounds are clamped to the axis."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (x + size if x < 0 else x for x in (start, end))
    return min(max(start, max(low, 0)), high), min(max(end, low), high), step


@register_move(infer=infer_slice, rows="sliced", onnx="Slice")
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


@register_move(infer=infer_pad, rows="padded")
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
    return TensorType(src.dtype, rules.broadcast(src.shape, shape))


@register_move(infer=infer_expand, rows="broadcast", onnx="Expand")
def expand(src: Array, *, shape: list[int]) -> Array:
    """`src` repeated along dimensions of 1, so that it has its broadcast shape with `shape` (ONNX Expand)."""
    return np.broadcast_to(src, np.broadcast_shapes(src.shape, tuple(shape))).copy()


@register_move(infer=lambda *, value: array_type(value))
def constant(*, value: np.ndarray) -> np.ndarray:
    """The array `value`. In oneDNN a constant is not an op but a logical tensor of property "constant"."""
    return value


def infer_concat(*srcs: TensorType, axis: int) -> TensorType:
    """Operands have the same dtype and, except along `axis`, equal shapes. Sizes along `axis` add up."""
    if not srcs:
        raise GraphError("takes at least one operand, got none")
    if len({t.dtype for t in srcs}) > 1:
        raise GraphError(f"operands must have the same dtype, got {listing([t.dtype for t in srcs], 'and')}")
    shapes = [t.shape for t in srcs if t.shape is not None]
    if not shapes:
        return srcs[0]
    rank = len(shapes[0])
    at = rules.normal_axis(axis, shapes[0])
    if any(len(s) != rank for s in shapes):
        raise GraphError(f"operands must have the same rank, got {listing(map(show, shapes), 'and')}")
    out: list[Dim] = []
    for k in range(rank):
        dims = [s[k] for s in shapes]
        known = {d for d in dims if d is not None}
        if k == at:
            out.append(None if None in dims or len(shapes) < len(srcs) else sum(d for d in dims if d is not None))
        elif len(known) > 1:
            raise GraphError(f"operands must have equal shapes except along axis {at}, "
                             f"got {listing(map(show, shapes), 'and')}")
        else:
            out.append(known.pop() if known else None)
    return TensorType(srcs[0].dtype, tuple(out))


@register_move(infer=infer_concat, layout="along_axis", rows="joined", onnx="Concat")
def concat(*srcs: Array, axis: int) -> Array:
    """Join the operands along `axis` (oneDNN Concat)."""
    return np.concatenate(srcs, axis=axis)


@register_move(infer=rules.infer_unary, layout="lane_wise", rows="kept", onnx="Identity")
def reorder(src: Array) -> Array:
    """`src` itself (oneDNN Reorder). oneDNN changes the memory layout, but no element."""
    return src


@register_move(infer=rules.unary_rule(result=s32), layout="along_axis")
def gen_index(src: Array, *, axis: int) -> Array:
    """Each element's index along `axis` (oneDNN GenIndex)."""
    k = axis % src.ndim
    index = np.arange(src.shape[k], dtype=np.int32).reshape(-1, *[1] * (src.ndim - k - 1))
    return np.broadcast_to(index, src.shape).copy()


@register_move(infer=lambda src: (), rows="kept")  # any dtype, as in oneDNN's library; its table has only floats
def end(src: Array) -> tuple[Array, ...]:
    """Mark `src` as used outside of the graph (oneDNN End)."""
    return ()


def infer_wildcard(*srcs: TensorType, dtypes: tuple[DType, ...],
                   shapes: tuple[tuple[int, ...], ...] | None) -> tuple[TensorType, ...]:
    """One output for each of `dtypes`, of the given shapes or of unknown rank. -1 is an unknown dimension."""
    if shapes is None:
        return tuple(TensorType(t, None) for t in dtypes)
    if len(shapes) != len(dtypes) or any(d < -1 for s in shapes for d in s):
        raise GraphError(f"shapes must be a list of dimensions >= -1 for each of {len(dtypes)} dtypes, "
                         f"got {[list(s) for s in shapes]}")
    return tuple(TensorType(t, tuple(None if d == -1 else d for d in s)) for t, s in zip(dtypes, shapes, strict=True))


@register_move(infer=infer_wildcard)
def wildcard(*srcs: Array, dtypes: tuple[DType, ...] = (), shapes: list[list[int]] | None = None) -> NoReturn:
    """A placeholder for an operation that oneDNN Graph does not know (oneDNN Wildcard). It cannot run.

    `dtypes` and `shapes` (-1: an unknown dimension) are the types of the outputs. A run raises GraphError.
    """
    raise GraphError("wildcard stands for an operation that is not known, and cannot run")


def reshaped(src: Shape, shape: tuple[int, ...], special_zero: bool) -> tuple[Dim, ...]:
    """The dimensions of static_reshape's result for shape `src`. Raises GraphError if the shapes do not fit."""
    if any(d < -1 for d in shape) or shape.count(-1) > 1:
        raise GraphError(f"shape must have dimensions >= 0 and at most one -1, got {list(shape)}")
    copied = [k for k, d in enumerate(shape) if d == 0 and special_zero]
    if src is None:
        return tuple(None if d == -1 or k in copied else d for k, d in enumerate(shape))
    if copied and copied[-1] >= len(src):
        raise GraphError(f"special_zero copies dimension {copied[-1]}, which {show(src)} does not have; "
                         f"shape {list(shape)}")
    # Copied dimensions are equal in both shapes, so the products of all others must be equal.
    out: list[Dim] = [src[k] if k in copied else d for k, d in enumerate(shape)]
    rest = [d for k, d in enumerate(src) if k not in copied]
    want = math.prod(d for k, d in enumerate(shape) if k not in copied and d != -1)
    have = math.prod(d for d in rest if d is not None)
    unknown = None in rest
    if -1 not in shape:
        # The product of the unknown dimensions may be any integer.
        fits = want == have or unknown and (have != 0 and want % have == 0)
        if not fits:
            raise GraphError(f"cannot reshape {show(src)} to {list(shape)}: {have}{' * ?' * unknown} "
                             f"elements against {want}")
        return tuple(out)
    if want == 0:
        raise GraphError(f"-1 is not determined next to a dimension of 0: {show(src)} to {list(shape)}")
    if not unknown and have % want != 0:
        raise GraphError(f"cannot reshape {show(src)} to {list(shape)}: {have} elements are not a multiple of {want}")
    out[shape.index(-1)] = None if unknown and have != 0 else have // want
    return tuple(out)


def infer_static_reshape(src: TensorType, *, shape: tuple[int, ...], special_zero: bool) -> TensorType:
    """The dimensions in `shape`, with -1 and copied dimensions resolved if known."""
    return TensorType(src.dtype, reshaped(src.shape, shape, special_zero))


@register_move(infer=infer_static_reshape, layout="reshaped")
def static_reshape(src: Array, *, shape: list[int], special_zero: bool = False) -> Array:
    """The elements of `src` in row-major order, in the shape `shape` (oneDNN StaticReshape).

    One dimension may be -1: it follows from the others. With `special_zero`, a 0 means the dimension of `src` at the
    same position.
    """
    return np.reshape(src, cast("tuple[int, ...]", reshaped(src.shape, tuple(shape), special_zero)))


def infer_static_transpose(src: TensorType, *, order: tuple[int, ...]) -> TensorType:
    """The dimensions of `src` in the given order."""
    rank = len(order) if src.shape is None else len(src.shape)
    if sorted(k + rank if k < 0 else k for k in order) != list(range(rank)):
        raise GraphError(f"order must be a permutation of the {rank} axes of {src}, got {list(order)}")
    return TensorType(src.dtype, (None,) * rank if src.shape is None else tuple(src.shape[k] for k in order))


@register_move(infer=infer_static_transpose, rows="transposed")
def static_transpose(src: Array, *, order: list[int]) -> Array:
    """Axis k of the result is axis `order[k]` of `src` (oneDNN StaticTranspose). `order` may be negative."""
    return np.asarray(np.transpose(src, order))
