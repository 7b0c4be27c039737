"""Operations without arithmetic: constants, reshape, transpose, concat and others."""
from __future__ import annotations

import math
from typing import NoReturn, cast

import numpy as np

from graphq.dtypes import DType, as_dtype, s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ops.rules import FLOATS, Array, Shape, expect_dtype, infer_unary, normal_axis, show


def infer_constant(*, value: np.ndarray) -> TensorType:
    """The result has the array's type. Raises GraphError for a dtype that graphq does not have."""
    return TensorType(as_dtype(value.dtype), value.shape)


@register_op(infer=infer_constant)
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
    at = normal_axis(axis, shapes[0])
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


@register_op(infer=infer_concat, layout="along_axis", rows="joined", onnx="Concat")
def concat(*srcs: Array, axis: int) -> Array:
    """Join the operands along `axis` (oneDNN Concat)."""
    return np.concatenate(srcs, axis=axis)


@register_op(infer=infer_unary, layout="lane_wise", rows="kept", onnx="Identity")
def reorder(src: Array) -> Array:
    """`src` itself (oneDNN Reorder). oneDNN changes the memory layout, but no element."""
    return src


def infer_gen_index(src: TensorType, *, axis: int) -> TensorType:
    """The result is s32 and has the shape of `src`."""
    expect_dtype("src", src, FLOATS)
    if src.shape is not None:
        normal_axis(axis, src.shape)
    return TensorType(s32, src.shape)


@register_op(infer=infer_gen_index, layout="along_axis")
def gen_index(src: Array, *, axis: int) -> Array:
    """Each element's index along `axis` (oneDNN GenIndex)."""
    k = axis % src.ndim
    index = np.arange(src.shape[k], dtype=np.int32).reshape(-1, *[1] * (src.ndim - k - 1))
    return np.broadcast_to(index, src.shape).copy()


def infer_end(src: TensorType) -> tuple[TensorType, ...]:
    """No outputs. `src` may have any dtype, as in oneDNN's library (its table has only floats)."""
    return ()


@register_op(infer=infer_end, rows="kept")
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


@register_op(infer=infer_wildcard)
def wildcard(*srcs: Array, dtypes: tuple[DType, ...] = (),
             shapes: list[list[int]] | None = None) -> NoReturn:
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


@register_op(infer=infer_static_reshape, layout="reshaped")
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


@register_op(infer=infer_static_transpose, rows="transposed")
def static_transpose(src: Array, *, order: list[int]) -> Array:
    """Axis k of the result is axis `order[k]` of `src` (oneDNN StaticTranspose). `order` may be negative."""
    return np.asarray(np.transpose(src, order))
