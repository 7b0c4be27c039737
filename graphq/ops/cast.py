"""The operation cast, between all element types that NumPy computes with."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ops.compute import Array, quiet
from graphq.ops.infer import expect_dtype

CASTABLE = (f32, bf16, f16, f64, s64, s32, s16, s8, u64, u32, u16, u8, boolean)


def infer_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """The source and the result may each have any dtype of CASTABLE."""
    expect_dtype("src", src, CASTABLE)
    if dtype not in CASTABLE:
        raise GraphError(f"dtype must be {listing(CASTABLE)}, got {dtype}")
    return TensorType(dtype, src.shape)


@register_op(infer=infer_cast, elementwise=True)
@quiet
def cast(src: Array, *, dtype: DType) -> Array:
    """`src` as `dtype` (ONNX Cast): to floats rounded to nearest even, to integers towards zero, to boolean by != 0.

    Integers wrap. A float beyond the range of an integer gives the nearest end of the range, and NaN gives 0, on every
    CPU; ONNX leaves both open.
    """
    if dtype == boolean:
        return np.asarray(src != 0)
    if dtype.kind == "int" and as_dtype(src.dtype).kind == "float":
        x = np.trunc(src.astype(np.float64))
        inside = (x >= dtype.min) & (x < -np.float64(dtype.min) if dtype.min else x < 2.0**dtype.bits)
        limits = np.iinfo(dtype.numpy)
        ends = np.where(x > 0, limits.max, np.where(x < 0, limits.min, 0)).astype(dtype.numpy)
        return np.where(inside, np.where(inside, x, 0).astype(dtype.numpy), ends)
    return src.astype(dtype.numpy)
