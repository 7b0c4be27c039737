"""The operations softmax and log_softmax."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.compute import Array, quiet, rounded
from graphq.ops.infer import FLOATS, expect_dtype, infer_unary, normal_axis, output_dtype

# oneDNN's table of SoftMax: for each source dtype, the dtypes that the output may have.
OUTPUTS: dict[DType, tuple[DType, ...]] = {f32: (f32, bf16, f16), bf16: (f32, bf16), f16: (f32, f16)}


def infer_softmax(src: TensorType, *, axis: int, mode: str, dtype: DType | None,
                  keep_stats: bool) -> TensorType | tuple[TensorType, TensorType]:
    """The output has the source's shape; the statistics are f32, and their size along the axis is 1."""
    expect_dtype("src", src, FLOATS)
    out = TensorType(output_dtype(src.dtype, dtype, OUTPUTS), src.shape)
    stats = None
    if src.shape is not None:
        k = normal_axis(axis, src.shape)
        stats = (*src.shape[:k], 1, *src.shape[k + 1:])
    return (out, TensorType(f32, stats)) if keep_stats else out


@register_op(infer=infer_softmax, exact=False, layout="softmax", rows="along_axis")
@quiet
def softmax(src: Array, *, axis: int = 1, mode: Literal["none", "inf_as_zero"] = "none",
            dtype: DType | None = None, keep_stats: bool = False) -> Array | tuple[Array, Array]:
    """`exp(src - max) / sum(exp(src - max))` along `axis`, in f64, rounded to f32 once (oneDNN SoftMax).

    A row of only -inf gives NaN, or zeros in mode inf_as_zero. The output has `dtype` (None: that of `src`). With
    `keep_stats` there is a second output, oneDNN's optional stats: `max + log(sum(exp(src - max)))`, f32.
    """
    x = src.astype(np.float64)
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    if mode == "inf_as_zero":
        x, top = np.where(top == -np.inf, -np.inf, x), np.where(top == -np.inf, 0, top)
    e = np.exp(x - top)
    total = e.sum(axis=axis, keepdims=True)
    y = e / np.where(total == 0, 1, total)  # a sum of zero comes only from a row of -inf in mode inf_as_zero
    out = rounded(y, src.dtype if dtype is None else dtype.numpy)
    return (out, rounded(top + np.log(total), np.dtype(np.float32))) if keep_stats else out


def infer_log_softmax(src: TensorType, *, axis: int) -> TensorType:
    """A unary float op with an axis."""
    if src.shape is not None:
        normal_axis(axis, src.shape)
    return infer_unary(src)


@register_op(infer=infer_log_softmax, exact=False, layout="softmax", rows="along_axis")
@quiet
def log_softmax(src: Array, *, axis: int = -1) -> Array:
    """`src - max - log(sum(exp(src - max)))` along `axis`, in f64, rounded to f32 once (oneDNN LogSoftmax)."""
    x = src.astype(np.float64)
    x = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return rounded(x - np.log(np.exp(x).sum(axis=axis, keepdims=True)), src.dtype)
