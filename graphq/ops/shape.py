"""The operations static_reshape and static_transpose: the same elements in another shape, of every dtype."""
from __future__ import annotations

import math

import numpy as np

from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.op import register_op
from graphq.ops.compute import Array
from graphq.ops.infer import Shape, show


def reshaped(src: Shape, shape: tuple[int, ...], special_zero: bool) -> tuple[Dim, ...]:
    """The dimensions of static_reshape's result for a tensor of shape `src`; raises GraphError if they do not fit."""
    if any(d < -1 for d in shape) or shape.count(-1) > 1:
        raise GraphError(f"shape must have dimensions >= 0 and at most one -1, got {list(shape)}")
    copied = [k for k, d in enumerate(shape) if d == 0 and special_zero]
    if src is None:
        return tuple(None if d == -1 or k in copied else d for k, d in enumerate(shape))
    if copied and copied[-1] >= len(src):
        raise GraphError(f"special_zero copies dimension {copied[-1]}, which {show(src)} does not have; "
                         f"shape {list(shape)}")
    # Copied dimensions are on both sides: the other dimensions of both must give the same number of elements.
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
        raise GraphError(f"cannot reshape {show(src)} to {list(shape)}: {have} elements are no multiple of {want}")
    out[shape.index(-1)] = None if unknown and have != 0 else have // want
    return tuple(out)


def infer_static_reshape(src: TensorType, *, shape: tuple[int, ...], special_zero: bool) -> TensorType:
    """The dimensions in `shape`; -1 and copied dimensions are resolved as far as they are known."""
    return TensorType(src.dtype, reshaped(src.shape, shape, special_zero))


@register_op(infer=infer_static_reshape, layout="reshaped")
def static_reshape(src: Array, *, shape: list[int], special_zero: bool = False) -> Array:
    """The elements of `src` in row-major order, in the shape `shape` (oneDNN StaticReshape).

    One -1 is computed from the other dimensions. A 0 is a dimension of 0 or, with `special_zero`, the source's
    dimension at that position.
    """
    return np.reshape(src, reshaped(src.shape, tuple(shape), special_zero))  # type: ignore[arg-type]


def infer_static_transpose(src: TensorType, *, order: tuple[int, ...]) -> TensorType:
    """The dimensions in the given order."""
    rank = len(order) if src.shape is None else len(src.shape)
    if len(order) != rank or sorted(k + rank if k < 0 else k for k in order) != list(range(rank)):
        raise GraphError(f"order must be a permutation of the {rank} axes of {src}, got {list(order)}")
    return TensorType(src.dtype, (None,) * rank if src.shape is None else tuple(src.shape[k] for k in order))


@register_op(infer=infer_static_transpose, rows="transposed")
def static_transpose(src: Array, *, order: list[int]) -> Array:
    """Axis k of the result is axis `order[k]` of `src`, from the end if negative (oneDNN StaticTranspose)."""
    return np.asarray(np.transpose(src, order))
