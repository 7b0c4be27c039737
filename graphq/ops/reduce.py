"""Reductions along axes, and the histogram that calibration uses (`quantization.calibrate`).

reduce_max and reduce_min are exact. reduce_sum, _l1, _l2 and _prod run in f64 and are rounded to f32 once. reduce_mean
runs in f32 and adds in the order of `graphq.kernels.numbers.mean_sums`. The order matters, because the mean of
quantized elements often lies halfway between two integers, and f32 rounding errors decide the result.
"""
from collections.abc import Callable
from math import prod

import numpy as np

from graphq.dtypes import f32, s32, s64
from graphq.errors import GraphError
from graphq.ir import Op, TensorType, register_op
from graphq.kernels.numbers import observed
from graphq.kernels.numbers.mean_sums import row_totals
from graphq.ops.rules import FLOATS, Array, Body, expect_dtype, normal_axes, normal_axis, rounded

WIDE = np.dtype(np.float64)


def infer_reduce(src: TensorType, axes_tensor: TensorType | None = None, *, axes: tuple[int, ...],
                 keep_dims: bool) -> TensorType:
    """The reduced axes become 1 or are left out. Without axes the result is `src`.

    With `axes_tensor`, axes are known only at run time: dimensions are unknown, and without keep_dims the rank as well.
    """
    expect_dtype("src", src, FLOATS)
    if axes_tensor is None:
        return _along(src, axes, keep_dims)
    expect_dtype("axes_tensor", axes_tensor, (s32,))
    if axes:
        raise GraphError(f"axes must be given once, got the attribute {list(axes)} and an operand {axes_tensor}")
    if axes_tensor.shape is not None and len(axes_tensor.shape) != 1:
        raise GraphError(f"'axes_tensor' must be one-dimensional, got {axes_tensor}")
    if axes_tensor.shape == (0,):
        return src
    return TensorType(src.dtype, (None,) * len(src.shape) if keep_dims and src.shape is not None else None)


def _along(src: TensorType, axes: tuple[int, ...], keep_dims: bool) -> TensorType:
    if src.shape is None:
        return src
    reduced = normal_axes(axes, src)
    if keep_dims:
        return TensorType(src.dtype, tuple(1 if k in reduced else d for k, d in enumerate(src.shape)))
    return TensorType(src.dtype, tuple(d for k, d in enumerate(src.shape) if k not in reduced))


def reduction(*, exact: bool = True) -> Callable[[Body], Op]:
    """Make a decorator that declares an op; the decorated function reduces at least one axis.

    The op's result is rounded to the dtype of `src`; without axes it is `src`. The reference raises GraphError if axes
    in `axes_tensor` are out of range.
    """

    def declare(f: Body) -> Op:
        def run(src: Array, axes_tensor: Array | None = None, *, axes: tuple[int, ...] = (),
                keep_dims: bool = False) -> Array:
            if axes_tensor is not None:
                axes = tuple(normal_axis(int(a), src.shape, "axes") for a in axes_tensor)
                if len(set(axes)) < len(axes):
                    raise GraphError(f"axes must be different, got {axes_tensor.tolist()} for shape {list(src.shape)}")
            return rounded(f(src, axes, keep_dims), src.dtype) if axes else src

        run.__name__, run.__doc__ = f.__name__, f.__doc__
        return register_op(infer=infer_reduce, exact=exact, layout="reduced", rows="along")(run)

    return declare


@reduction(exact=False)
def reduce_sum(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The sum over `axes` (oneDNN ReduceSum), 0 if there are no elements. Without axes the result is `src`."""
    return src.sum(axis=axes, keepdims=keep_dims, dtype=WIDE)


@reduction()
def reduce_mean(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The mean over `axes` (oneDNN ReduceMean) in f32, NaN if there are no elements."""
    reduced = sorted(a % src.ndim for a in axes)
    rows = np.moveaxis(src.astype(np.float32, copy=False), reduced, range(-len(reduced), 0))
    shape = rows.shape[:-len(reduced)]
    count = prod(src.shape[a] for a in reduced)
    means = row_totals(rows.reshape(*shape, count)) / np.float32(count)
    return np.expand_dims(means, reduced) if keep_dims else means


@reduction(exact=False)
def reduce_l1(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The sum of absolute values over `axes` (oneDNN ReduceL1). Without axes the result is `src`."""
    return np.abs(src).sum(axis=axes, keepdims=keep_dims, dtype=WIDE)


@reduction(exact=False)
def reduce_l2(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The root of the sum of squares over `axes` (oneDNN ReduceL2). Without axes the result is `src`."""
    return np.sqrt(np.square(src, dtype=WIDE).sum(axis=axes, keepdims=keep_dims))


@reduction()
def reduce_prod(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The product over `axes` (oneDNN ReduceProd), 1 if there are no elements. Without axes the result is `src`."""
    return src.prod(axis=axes, keepdims=keep_dims, dtype=WIDE)


def _greatest(x: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    # The sign of NumPy's maximum of zeros depends on the CPU; here it is + if one has this sign.
    top = x.max(axis=axes, keepdims=keep_dims, initial=-np.inf)
    plus = ((x == 0) & ~np.signbit(x)).any(axis=axes, keepdims=keep_dims)
    return np.where(top == 0, np.where(plus, np.float32(0), np.float32(-0.0)), top)


@reduction()
def reduce_max(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The greatest element over `axes` (oneDNN ReduceMax): NaN if one is NaN, -inf without elements."""
    return _greatest(src.astype(np.float32, copy=False), axes, keep_dims)


@reduction()
def reduce_min(src: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """The least element over `axes` (oneDNN ReduceMin): NaN if one is NaN, inf without elements."""
    return -_greatest(-src.astype(np.float32, copy=False), axes, keep_dims)


def infer_integer_sum(src: TensorType, *, axes: tuple[int, ...], keep_dims: bool) -> TensorType:
    """`src` is s32 or s64. The reduced axes become 1 or are left out."""
    expect_dtype("src", src, (s32, s64))
    return _along(src, axes, keep_dims)


@register_op(computes=False, infer=infer_integer_sum, rows="along")
def integer_sum(src: Array, *, axes: tuple[int, ...] = (), keep_dims: bool = False) -> Array:
    """The sum of integers along `axes` (ONNX ReduceSum). The sum wraps. Without axes the result is `src`."""
    return np.asarray(src.sum(axis=axes, keepdims=keep_dims, dtype=src.dtype)) if axes else src


def infer_histogram(src: TensorType) -> tuple[TensorType, TensorType]:
    """`src` is f32. The results are the counts and the extremes."""
    expect_dtype("src", src, (f32,))
    return TensorType(s32, (observed.BINS,)), TensorType(f32, (2,))


@register_op(infer=infer_histogram, layout="unordered")
def histogram(src: Array) -> tuple[Array, Array]:
    """Count f32 elements by their highest 14 bits: s32 [16384]. Also return the extremes: f32 [2].

    The extremes are the least and the greatest element by the predicate totalOrder of IEEE 754. All NaNs are one value
    of bits 0x7FC00000: they have one bin, and are greater than inf. Without elements the extremes are [inf, -inf],
    without numbers the least is inf. The order of elements does not matter.
    """
    return observed.histogram(src)
