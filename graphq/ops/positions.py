"""ONNX operations that find elements: non_zero and unique."""
import numpy as np

from graphq.dtypes import s64
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.arithmetic import CASTABLE
from graphq.ops.rules import Array, Shape, expect_dtype, normal_axis


def infer_non_zero(src: TensorType) -> TensorType:
    """The result is s64 [rank, count]; the count is known at run time."""
    expect_dtype("src", src, CASTABLE)
    return TensorType(s64, (None if src.shape is None else len(src.shape), None))


@register_op(infer=infer_non_zero, onnx="NonZero")
def non_zero(src: Array) -> Array:
    """The positions of elements other than 0 in row-major order, one position per column (ONNX NonZero)."""
    return np.ascontiguousarray(np.argwhere(src).T, np.int64)


def infer_unique(src: TensorType, *, axis: int | None, sorted: bool) -> tuple[TensorType, ...]:
    """The number of unique elements or slices is known at run time."""
    expect_dtype("src", src, CASTABLE)
    shape: Shape = (None,)
    if axis is not None:
        k = 0 if src.shape is None else normal_axis(axis, src.shape)
        shape = src.shape and (*src.shape[:k], None, *src.shape[k + 1:])
    return TensorType(src.dtype, shape), *[TensorType(s64, (None,))] * 3


@register_op(infer=infer_unique, onnx="Unique")
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
