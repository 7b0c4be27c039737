"""ONNX's casts, arithmetic on integers and f64, comparisons, and operations on booleans. oneDNN has none of these."""
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from graphq.dtypes import DType, as_dtype, bf16, boolean, f8_e8m0, f16, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64
from graphq.errors import GraphError, InputError
from graphq.ir import TensorType, register_op
from graphq.kernels.lanes.expression import Expr, const, op, select
from graphq.ops import rules
from graphq.ops.binary import infer_select
from graphq.ops.rules import Array

CASTABLE = (f32, bf16, f16, f64, s64, s32, s16, s8, u64, u32, u16, u8, boolean)


def infer_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """`src` and the result may have any dtype."""
    return TensorType(dtype, src.shape)


@register_op(infer=infer_cast, elementwise=True)
def cast(src: Array, *, dtype: DType) -> Array:
    """`src` as `dtype` (ONNX Cast). Floats round to nearest even, integers towards zero; booleans are `src != 0`.

    Integers beyond the range wrap; so do floats cast to integers of 4 and 2 bits, by way of s32. Floats beyond the
    range of other integers, or of floats of 8 bits or fewer, become the nearest end of the range. NaN becomes 0 in
    types without NaN. This holds on every CPU; ONNX does not define all of it. f8_e8m0 has the magnitude, rounded up to
    a power of two, and NaN for infinities.
    """
    if dtype == boolean:
        return np.asarray(src != 0)
    if dtype == f8_e8m0:
        bits = np.abs(src.astype(np.float32)).view(np.uint32)
        up = np.minimum((bits + 0x7FFFFF) >> 23, 254)
        return np.where(bits < 0x7F800000, up, 255).astype(np.uint8).view(dtype.numpy)
    if dtype.kind == "float" and dtype.bits <= 8:
        y = np.clip(src.astype(np.float64), dtype.min, dtype.max)
        return (np.where(np.isnan(y), 0, y) if dtype.bits < 8 else y).astype(dtype.numpy)
    if dtype.kind == "int" and dtype.bits < 8 and as_dtype(src.dtype).kind == "float":
        src = cast.reference(src, dtype=s32)
    if dtype.kind == "int" and as_dtype(src.dtype).kind == "float":
        x = np.trunc(src.astype(np.float64))
        inside = (x >= dtype.min) & (x < -np.float64(dtype.min) if dtype.min else x < 2.0**dtype.bits)
        low, zero, high = np.array([dtype.min, 0, dtype.max], dtype.numpy)
        ends = np.where(x > 0, high, np.where(x < 0, low, zero))
        return np.where(inside, np.where(inside, x, 0).astype(dtype.numpy), ends)
    x = src.astype(np.int8) if as_dtype(src.dtype).bits < 8 and dtype.bits < 8 else src  # ml_dtypes lacks such casts
    return x.astype(dtype.numpy)


def infer_bit_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """`dtype` has as many bits as the dtype of `src`; the shape stays."""
    if dtype.bits != src.dtype.bits:
        raise GraphError(f"dtype must have {src.dtype.bits} bits as {src}, got {dtype}")
    return TensorType(dtype, src.shape)


@register_op(computes=False, infer=infer_bit_cast, elementwise=True)
def bit_cast(src: Array, *, dtype: DType) -> Array:
    """The bits of `src` as another dtype of the same width (ONNX BitCast). As booleans, all bits but 0 are true."""
    if dtype == boolean:
        return src.view(np.uint8) != 0
    return src.view(dtype.numpy) if dtype.bits >= 8 else (src.view(np.uint8) & (2**dtype.bits - 1)).view(dtype.numpy)


NUMBERS = tuple(t for t in CASTABLE if t not in (*rules.FLOATS, boolean))
"""The dtypes that a function of `arithmetic` accepts by default: integers and f64."""

INTEGERS = tuple(t for t in NUMBERS if t != f64)

TAKES = {**dict.fromkeys(("and", "or", "xor", "shift_left", "shift_right"), INTEGERS),
         **dict.fromkeys(("modulo", "remainder"), (*rules.FLOATS, *NUMBERS))}
"""The functions that accept other dtypes: functions of bits only integers, remainders (ONNX Mod) all numbers."""


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    down = np.floor_divide(a, b)
    return down + ((np.remainder(a, b) != 0) & ((a < 0) ^ (b < 0))).astype(a.dtype)


FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _quotient, "maximum": rules.larger,
    "minimum": rules.smaller, "modulo": np.mod, "remainder": np.fmod, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shift_left": np.left_shift, "shift_right": np.right_shift}


def infer_pair(src_0: TensorType, src_1: TensorType, allowed: tuple[DType, ...], result: DType | None) -> TensorType:
    """Both operands have one dtype of `allowed`; shapes broadcast as in NumPy. None: the result has the same dtype."""
    rules.expect_same_dtype(*allowed, src_0=src_0, src_1=src_1)
    return TensorType(result or src_0.dtype, rules.broadcast(src_0.shape, src_1.shape))


def infer_arithmetic(src_0: TensorType, src_1: TensorType, *, function: str) -> TensorType:
    """Both operands have one dtype that the function accepts (TAKES, NUMBERS)."""
    return infer_pair(src_0, src_1, TAKES.get(function, NUMBERS), None)


def _bits(a: Expr, b: Expr, *, function: str) -> Expr:
    """The functions of bits, of integers of at most 32 bits; a shift by b is one shift for each bit of b."""
    if not function.startswith("shift"):
        return op(function, a, b)
    y, shift = a, "shl" if function == "shift_left" else "sar"
    for k in range(5):
        y = select(op("eq", op("and", b, 1 << k), 0), y, op(shift, y, 1 << k))
    return select(op("eq", op("and", b, -32), 0), y, op("sar", a, 31) if shift == "sar" else const(0, "s32"))


@register_op(infer=infer_arithmetic, elementwise=True, lanes=_bits)
def arithmetic(src_0: Array, src_1: Array, *, function: Literal[
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "modulo", "remainder", "and", "or", "xor",
        "shift_left", "shift_right"]) -> Array:
    """Apply `function` to two operands of one dtype. Integers wrap; quotients of integers are truncated towards zero.

    The result of modulo (ONNX Mod) has the sign of `src_1`; the result of remainder (fmod) has the sign of `src_0`.
    Shifts by as many bits as the dtype has, or more, leave only the sign.
    Raises InputError if an integer is divided by zero.
    """
    if function in ("divide", "modulo", "remainder") and src_0.dtype.kind != "f" and not src_1.all():
        raise InputError("arithmetic: an integer is divided by zero")
    return np.asarray(FUNCTIONS[function](src_0, src_1), src_0.dtype)


@register_op(computes=False, infer=partial(infer_select, allowed=CASTABLE), elementwise=True, onnx="Where")
def choose(cond: Array, src_0: Array, src_1: Array) -> Array:
    """`src_0` where `cond` is true, else `src_1`: like `select`, but for every dtype (ONNX Where)."""
    return np.where(cond, src_0, src_1)


infer_comparison = partial(infer_pair, allowed=CASTABLE, result=boolean)
infer_logical = partial(infer_pair, allowed=(boolean,), result=boolean)
infer_not, infer_test = rules.unary_rule((boolean,)), rules.unary_rule(result=boolean)


@register_op(infer=infer_comparison, commutative=True, elementwise=True, lanes=lambda a, b: op("eq", a, b),
             onnx="Equal")
def equal(src_0: Array, src_1: Array) -> Array:
    """`src_0 == src_1` (ONNX Equal). False when either is NaN."""
    return np.asarray(src_0 == src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a > b, onnx="Greater")
def greater(src_0: Array, src_1: Array) -> Array:
    """`src_0 > src_1` (ONNX Greater). False when either is NaN."""
    return np.asarray(src_0 > src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a < b, onnx="Less")
def less(src_0: Array, src_1: Array) -> Array:
    """`src_0 < src_1` (ONNX Less). False when either is NaN."""
    return np.asarray(src_0 < src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a <= b, onnx="LessOrEqual")
def less_equal(src_0: Array, src_1: Array) -> Array:
    """`src_0 <= src_1` (ONNX LessOrEqual). False when either is NaN."""
    return np.asarray(src_0 <= src_1)


@register_op(infer=infer_logical, commutative=True, elementwise=True, lanes=lambda a, b: op("and", a, b), onnx="And")
def logical_and(src_0: Array, src_1: Array) -> Array:
    """True where both operands are true (ONNX And)."""
    return np.asarray(src_0 & src_1)


@register_op(infer=infer_logical, commutative=True, elementwise=True, lanes=lambda a, b: op("or", a, b), onnx="Or")
def logical_or(src_0: Array, src_1: Array) -> Array:
    """True where at least one operand is true (ONNX Or)."""
    return np.asarray(src_0 | src_1)


@register_op(infer=infer_logical, commutative=True, elementwise=True, lanes=lambda a, b: op("xor", a, b), onnx="Xor")
def logical_xor(src_0: Array, src_1: Array) -> Array:
    """True where exactly one operand is true (ONNX Xor)."""
    return np.asarray(src_0 ^ src_1)


@register_op(infer=infer_not, elementwise=True, lanes=lambda a: op("xor", a, const(True, "bool")), onnx="Not")
def logical_not(src: Array) -> Array:
    """True where `src` is false (ONNX Not)."""
    return np.asarray(~src)


@register_op(infer=infer_test, elementwise=True, lanes=lambda x: op("ne", x, x), onnx="IsNaN")
def is_nan(src: Array) -> Array:
    """True where `src` is NaN (ONNX IsNaN)."""
    return np.asarray(np.isnan(src))


@register_op(infer=infer_test, elementwise=True, onnx="IsInf")
def is_inf(src: Array, *, detect_negative: bool = True, detect_positive: bool = True) -> Array:
    """True where `src` is an infinity of a chosen sign (ONNX IsInf)."""
    return np.asarray(np.isinf(src) & np.where(np.signbit(src), detect_negative, detect_positive))
