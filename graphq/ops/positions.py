"""ONNX operations on positions: elements are found (non_zero, unique), or rows are written (tensor_scatter)."""
from typing import Literal

import numpy as np

from graphq.dtypes import s64
from graphq.errors import GraphError, InputError
from graphq.ir import TensorType, register_op, shapes_agree
from graphq.ops.arithmetic import CASTABLE
from graphq.ops.rules import Array, expect_dtype, expect_same_dtype, normal_axis, with_axis


def infer_non_zero(src: TensorType) -> TensorType:
    """The result is s64 [rank, count]; the count is known at run time."""
    expect_dtype("src", src, CASTABLE)
    return TensorType(s64, (None if src.shape is None else len(src.shape), None))


@register_op(computes=False, infer=infer_non_zero, onnx="NonZero")
def non_zero(src: Array) -> Array:
    """The positions of elements other than 0 in row-major order, one position per column (ONNX NonZero)."""
    return np.ascontiguousarray(np.argwhere(src).T, np.int64)


def infer_unique(src: TensorType, *, axis: int | None, sorted: bool) -> tuple[TensorType, ...]:
    """The number of unique elements or slices is known at run time."""
    expect_dtype("src", src, CASTABLE)
    found = TensorType(src.dtype, (None,)) if axis is None else with_axis(src, axis, None)
    return found, *[TensorType(s64, (None,))] * 3


@register_op(computes=False, infer=infer_unique, onnx="Unique")
def unique(src: Array, *, axis: int | None = None, sorted: bool = True) -> tuple[Array, Array, Array, Array]:
    """The different elements, or slices along `axis`, each once (ONNX Unique).

    The other results are the place where each is first, the place of each element or slice of `src` in the first
    result, and how often each occurs. The first result is in ascending order or, without `sorted`, in the order of the
    first places. NaNs of elements are equal, as in NumPy.
    """
    x = src.reshape(-1) if axis is None else src
    _, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return np.take(x, first, axis or 0), first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def infer_tensor_scatter(past: TensorType, update: TensorType, places: TensorType | None = None, *, axis: int,
                         mode: str) -> TensorType:
    """`update` fits into `past` along the axis, and its other sizes are equal. `places` is s64 [size of axis 0]."""
    expect_same_dtype(past=past, update=update)
    if places is not None:
        expect_dtype("places", places, (s64,))
    if past.shape is not None and update.shape is not None:
        k = normal_axis(axis, past.shape)
        if k == 0 or len(past.shape) != len(update.shape) or any(
                a is not None and b is not None and (b > a if d == k else b != a)
                for d, (a, b) in enumerate(zip(past.shape, update.shape, strict=True))):
            raise GraphError(f"the update {update} does not fit into {past} along axis {axis}, which may not be 0")
        if places is not None and not shapes_agree(past.shape[:1], places.shape):
            raise GraphError(f"'places' must have a place for each of {past.shape[0]} batch elements, got {places}")
    return past


def place_error(most: int, place: int) -> InputError:
    """The error for an update that begins at `place` and would end behind a cache, or begins before it."""
    return InputError(f"tensor_scatter: places must be in [0, {most}], got {place}")


@register_op(computes=False, infer=infer_tensor_scatter, onnx="TensorScatter")
def tensor_scatter(past: Array, update: Array, places: Array | None = None, *, axis: int = -2,
                   mode: Literal["linear", "circular"] = "linear") -> Array:
    """`past` with `update` written along `axis` from `places[b]` on, by default from 0 on (ONNX TensorScatter).

    In mode circular, writing continues at the start. Raises InputError if an update goes beyond an end in mode linear.
    """
    k, out = axis % past.ndim, past.copy()
    first = np.zeros(len(past), np.int64) if places is None else places
    most = past.shape[k] - update.shape[k]
    outside = first[(first < 0) | (first > most)]
    if mode == "linear" and outside.size:
        raise place_error(most, int(outside[0]))
    rows = (first[:, None] + np.arange(update.shape[k])) % max(past.shape[k], 1)
    np.moveaxis(out, k, 1)[np.arange(len(past))[:, None], rows] = np.moveaxis(update, k, 1)
    return out
