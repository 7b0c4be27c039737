"""ONNX's casts, and ONNX's arithmetic on integers and f64. oneDNN has no arithmetic on integers, and no f64."""
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from graphq.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64
from graphq.errors import GraphError, InputError
from graphq.ir import TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ops.rules import FLOATS, Array, broadcast, expect_dtype, expect_same_dtype, quiet

CASTABLE = (f32, bf16, f16, f64, s64, s32, s16, s8, u64, u32, u16, u8, boolean)


def infer_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """`src` and the result may have any dtype of CASTABLE."""
    expect_dtype("src", src, CASTABLE)
    if dtype not in CASTABLE:
        raise GraphError(f"dtype must be {listing(CASTABLE)}, got {dtype}")
    return TensorType(dtype, src.shape)


@register_op(infer=infer_cast, elementwise=True)
@quiet
def cast(src: Array, *, dtype: DType) -> Array:
    """`src` as `dtype` (ONNX Cast). Floats round to nearest even, integers towards zero; booleans are `src != 0`.

    Integers beyond the range wrap. Floats beyond an integer range become the nearest end of the range, and NaN becomes
    0, on every CPU; ONNX does not define the results of such floats.
    """
    if dtype == boolean:
        return np.asarray(src != 0)
    if dtype.kind == "int" and as_dtype(src.dtype).kind == "float":
        x = np.trunc(src.astype(np.float64))
        inside = (x >= dtype.min) & (x < -np.float64(dtype.min) if dtype.min else x < 2.0**dtype.bits)
        limits = np.iinfo(dtype.numpy)
        low, zero, high = np.array([limits.min, 0, limits.max], dtype.numpy)
        ends = np.where(x > 0, high, np.where(x < 0, low, zero))
        return np.where(inside, np.where(inside, x, 0).astype(dtype.numpy), ends)
    return src.astype(dtype.numpy)


NUMBERS = tuple(t for t in CASTABLE if t not in (*FLOATS, boolean))
"""The dtypes that a function of `arithmetic` accepts by default: integers and f64."""

TAKES = {"modulo": tuple(t for t in NUMBERS if t != f64), "remainder": (f32, *NUMBERS)}
"""The functions that accept other dtypes: modulo accepts no floats, as in ONNX Mod; remainder also accepts f32."""


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    if not b.all():
        raise InputError("arithmetic: an integer is divided by zero")
    down = np.floor_divide(a, b)
    return down + ((np.remainder(a, b) != 0) & ((a < 0) ^ (b < 0))).astype(a.dtype)


def _rest(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def rest(a: Array, b: Array) -> Array:
        if a.dtype.kind != "f" and not b.all():
            raise InputError("arithmetic: an integer is divided by zero")
        return function(a, b)

    return rest


FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _quotient, "maximum": np.maximum,
    "minimum": np.minimum, "modulo": _rest(np.mod), "remainder": _rest(np.fmod)}


def infer_arithmetic(src_0: TensorType, src_1: TensorType, *, function: str) -> TensorType:
    """Both operands have one dtype that the function accepts (TAKES, NUMBERS); shapes broadcast as in NumPy."""
    expect_dtype("src_0", src_0, TAKES.get(function, NUMBERS))
    expect_same_dtype(src_0=src_0, src_1=src_1)
    return TensorType(src_0.dtype, broadcast(src_0.shape, src_1.shape))


@register_op(infer=infer_arithmetic, elementwise=True)
@quiet
def arithmetic(src_0: Array, src_1: Array, *, function: Literal[
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "modulo", "remainder"]) -> Array:
    """Apply `function` to two operands of one dtype. Integers wrap; quotients of integers are truncated towards zero.

    The result of modulo (ONNX Mod) has the sign of `src_1`; the result of remainder (fmod) has the sign of `src_0`.
    Raises InputError if an integer is divided by zero.
    """
    return np.asarray(FUNCTIONS[function](src_0, src_1), src_0.dtype)


def infer_choose(cond: TensorType, src_0: TensorType, src_1: TensorType) -> TensorType:
    """`cond` is boolean, `src_0` and `src_1` have the same dtype of CASTABLE, and all three shapes broadcast."""
    expect_dtype("cond", cond, (boolean,))
    expect_dtype("src_0", src_0, CASTABLE)
    expect_same_dtype(src_0=src_0, src_1=src_1)
    return TensorType(src_0.dtype, broadcast(cond.shape, src_0.shape, src_1.shape))


@register_op(infer=infer_choose, elementwise=True, onnx="Where")
def choose(cond: Array, src_0: Array, src_1: Array) -> Array:
    """`src_0` where `cond` is true, else `src_1`: like `select`, but for every dtype (ONNX Where)."""
    return np.where(cond, src_0, src_1)
