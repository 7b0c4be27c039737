"""ONNX's comparisons of any dtype, operations on booleans, and tests for NaN and infinities."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import boolean
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.kernels.lanes.expression import const, op
from graphq.ops.arithmetic import CASTABLE
from graphq.ops.rules import FLOATS, Array, broadcast, expect_dtype, expect_same_dtype, quiet


def infer_comparison(src_0: TensorType, src_1: TensorType) -> TensorType:
    """Both operands have the same dtype of CASTABLE and broadcast; the result is boolean."""
    expect_dtype("src_0", src_0, CASTABLE)
    expect_same_dtype(src_0=src_0, src_1=src_1)
    return TensorType(boolean, broadcast(src_0.shape, src_1.shape))


def infer_logical(src_0: TensorType, src_1: TensorType) -> TensorType:
    """Both operands and the result are boolean; the shapes broadcast."""
    expect_dtype("src_0", src_0, (boolean,))
    return infer_comparison(src_0, src_1)


def infer_not(src: TensorType) -> TensorType:
    """`src` and the result are boolean."""
    expect_dtype("src", src, (boolean,))
    return src


def infer_test(src: TensorType, **attrs: bool) -> TensorType:
    """`src` is a float tensor, and the result is boolean."""
    expect_dtype("src", src, FLOATS)
    return TensorType(boolean, src.shape)


@register_op(infer=infer_comparison, commutative=True, elementwise=True, lanes=lambda a, b: op("eq", a, b),
             onnx="Equal")
@quiet
def equal(src_0: Array, src_1: Array) -> Array:
    """`src_0 == src_1` (ONNX Equal). False when either is NaN."""
    return np.asarray(src_0 == src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a > b, onnx="Greater")
@quiet
def greater(src_0: Array, src_1: Array) -> Array:
    """`src_0 > src_1` (ONNX Greater). False when either is NaN."""
    return np.asarray(src_0 > src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a < b, onnx="Less")
@quiet
def less(src_0: Array, src_1: Array) -> Array:
    """`src_0 < src_1` (ONNX Less). False when either is NaN."""
    return np.asarray(src_0 < src_1)


@register_op(infer=infer_comparison, elementwise=True, lanes=lambda a, b: a <= b, onnx="LessOrEqual")
@quiet
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
