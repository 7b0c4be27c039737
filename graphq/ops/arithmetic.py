"""Arithmetic of integers and f64, as ONNX has it; oneDNN's operations take floats of at most 32 bits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from graphq.dtypes import boolean, f32, f64
from graphq.errors import InputError
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.cast import CASTABLE
from graphq.ops.compute import Array, quiet
from graphq.ops.infer import FLOATS, broadcast, expect_dtype, expect_same_dtype

NUMBERS = tuple(t for t in CASTABLE if t not in (*FLOATS, boolean))
"""The dtypes that a function takes unless TAKES has others: integers and f64."""

TAKES = {"modulo": tuple(t for t in NUMBERS if t != f64), "remainder": (f32, *NUMBERS)}
"""The dtypes of functions that do not take NUMBERS: modulo takes no floats, as ONNX Mod; remainder also takes f32."""


def _quotient(a: Array, b: Array) -> Array:
    """The quotient; for integers it is truncated towards zero."""
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
    """Both operands have one dtype, which the function must take (TAKES); shapes broadcast as in NumPy."""
    expect_dtype("src_0", src_0, TAKES.get(function, NUMBERS))
    expect_same_dtype(src_0=src_0, src_1=src_1)
    return TensorType(src_0.dtype, broadcast(src_0.shape, src_1.shape))


@register_op(infer=infer_arithmetic, elementwise=True)
@quiet
def arithmetic(src_0: Array, src_1: Array, *, function: Literal[
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "modulo", "remainder"]) -> Array:
    """A function of two numbers of one dtype. Integers wrap, and their quotients are truncated towards zero.

    The remainder of a division has the sign of `src_1` in modulo (ONNX Mod), and that of `src_0` in remainder (fmod).
    Raises InputError if an integer is divided by zero.
    """
    return np.asarray(FUNCTIONS[function](src_0, src_1), src_0.dtype)


def infer_choose(cond: TensorType, src_0: TensorType, src_1: TensorType) -> TensorType:
    """The condition is boolean, both sources have one dtype, and all three shapes broadcast."""
    expect_dtype("cond", cond, (boolean,))
    expect_dtype("src_0", src_0, CASTABLE)
    expect_same_dtype(src_0=src_0, src_1=src_1)
    return TensorType(src_0.dtype, broadcast(cond.shape, src_0.shape, src_1.shape))


@register_op(infer=infer_choose, elementwise=True, onnx="Where")
def choose(cond: Array, src_0: Array, src_1: Array) -> Array:
    """`src_0` where `cond` is true, else `src_1`: as `select`, but for every dtype (ONNX Where)."""
    return np.where(cond, src_0, src_1)
