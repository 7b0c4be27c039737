"""ONNX operations whose results depend on positions: non_zero."""
import numpy as np

from graphq.dtypes import s64
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.arithmetic import CASTABLE
from graphq.ops.rules import Array, expect_dtype


def infer_non_zero(src: TensorType) -> TensorType:
    """The result is s64 [rank, count]; the count is known at run time."""
    expect_dtype("src", src, CASTABLE)
    return TensorType(s64, (None if src.shape is None else len(src.shape), None))


@register_op(infer=infer_non_zero, onnx="NonZero")
def non_zero(src: Array) -> Array:
    """The positions of elements other than 0 in row-major order, one position per column (ONNX NonZero)."""
    return np.ascontiguousarray(np.argwhere(src).T, np.int64)
