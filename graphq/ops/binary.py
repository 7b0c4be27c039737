"""Binary and ternary elementwise operations with broadcasting, and prelu.

`auto_broadcast` is oneDNN's attribute: "numpy" broadcasts as NumPy does, "none" requires equal shapes. As in oneDNN,
the attribute `dtype` of add, subtract, multiply and divide is the float type of the result. None means the type of
the operands, or f32 if the operands differ. If add or subtract of s32 has an f32 result, the operands are first rounded
to f32.
"""
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from graphq.dtypes import DType, boolean
from graphq.errors import GraphError
from graphq.ir import Curve, TensorType, register_op
from graphq.kernels.lanes import elementary, expression
from graphq.ops import rules
from graphq.ops.rules import Array

AutoBroadcast: TypeAlias = Literal["none", "numpy"]

binary_f32 = partial(rules.lane_wise, rules.in_f32)
infer_arithmetic = rules.binary_rule(mixed=True)
infer_sum = rules.binary_rule(mixed=True, integer=True)
infer_same = rules.binary_rule()
infer_compare = rules.binary_rule(integer=True, result=boolean)


@binary_f32(infer=infer_sum, commutative=True, lanes=lambda a, b: a + b, bound="sum", onnx="Add")
def add(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy", dtype: DType | None = None) -> Array:
    """`src_0 + src_1` (oneDNN Add). s32 wraps."""
    return src_0 + src_1


@binary_f32(infer=infer_sum, lanes=lambda a, b: a - b, bound="sum", onnx="Sub")
def subtract(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy",
             dtype: DType | None = None) -> Array:
    """`src_0 - src_1` (oneDNN Subtract). s32 wraps."""
    return src_0 - src_1


@binary_f32(infer=infer_arithmetic, commutative=True, lanes=lambda a, b: a * b, bound="product", onnx="Mul")
def multiply(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy",
             dtype: DType | None = None) -> Array:
    """`src_0 * src_1` (oneDNN Multiply)."""
    return src_0 * src_1


@binary_f32(infer=infer_arithmetic, lanes=lambda a, b: a / b, bound="quotient", onnx="Div")
def divide(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy", dtype: DType | None = None) -> Array:
    """`src_0 / src_1` (oneDNN Divide). Division by zero gives an infinity, or NaN for 0 / 0."""
    return src_0 / src_1


@binary_f32(infer=infer_same, commutative=True,
             lanes=partial(elementary.extreme, expression.maximum, "and"), bound="extreme", onnx="Max")
def maximum(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy") -> Array:
    """`max(src_0, src_1)` (oneDNN Maximum), IEEE 754-2019 `maximum`: NaN when either is NaN, and -0 < +0."""
    # The sign of np.maximum(-0, +0) depends on the CPU. The sum has the right sign: -0 + +0 is +0, and -0 + -0 is -0.
    return np.where((src_0 == 0) & (src_1 == 0), src_0 + src_1, np.maximum(src_0, src_1))


@binary_f32(infer=infer_same, commutative=True,
             lanes=partial(elementary.extreme, expression.minimum, "or"), bound="extreme", onnx="Min")
def minimum(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy") -> Array:
    """`min(src_0, src_1)` (oneDNN Minimum), IEEE 754-2019 `minimum`: NaN when either is NaN, and -0 < +0."""
    # Zeros as in `maximum`, by min(a, b) = -max(-a, -b).
    return np.where((src_0 == 0) & (src_1 == 0), -(-src_0 + -src_1), np.minimum(src_0, src_1))


@binary_f32(infer=infer_same, lanes=lambda a, b: (a - b) * (a - b))
def squared_difference(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy") -> Array:
    """`(src_0 - src_1)**2` (oneDNN SquaredDifference)."""
    return (src_0 - src_1) * (src_0 - src_1)


@register_op(infer=infer_compare, elementwise=True, lanes=lambda a, b: a >= b, onnx="GreaterOrEqual")
def greater_equal(src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy") -> Array:
    """`src_0 >= src_1` as boolean (oneDNN GreaterEqual). False when either is NaN."""
    return np.asarray(rules.widened(src_0) >= rules.widened(src_1))


def infer_select(cond: TensorType, src_0: TensorType, src_1: TensorType, *, auto_broadcast: str = "numpy",
                 allowed: tuple[DType, ...] = rules.FLOATS) -> TensorType:
    """`cond` is boolean, `src_0` and `src_1` have the same dtype of `allowed`, and all three shapes broadcast."""
    rules.expect_dtype("cond", cond, (boolean,))
    rules.expect_same_dtype(*allowed, src_0=src_0, src_1=src_1)
    return TensorType(src_0.dtype, rules.combine(auto_broadcast, cond.shape, src_0.shape, src_1.shape))


@register_op(infer=infer_select, elementwise=True, lanes=expression.select, onnx="Where")
def select(cond: Array, src_0: Array, src_1: Array, *, auto_broadcast: AutoBroadcast = "numpy") -> Array:
    """`src_0` where `cond` is true, else `src_1` (oneDNN Select)."""
    return np.where(cond, src_0, src_1)


def infer_prelu(src: TensorType, slope: TensorType, *, data_format: str, per_channel_broadcast: bool) -> TensorType:
    """Both operands have the same float dtype. A 1-D slope is for the channel or last axis; other slopes broadcast."""
    rules.expect_same_dtype(*rules.FLOATS, src=src, slope=slope)
    dims, given = src.shape, slope.shape
    if dims is None or given is None:
        return src
    if per_channel_broadcast and len(given) == 1:
        axis = rules.channel_axis(data_format, dims)
        if given[0] not in (1, None) and dims[axis] not in (given[0], None):
            raise GraphError(f"a slope per channel must have 1 or {dims[axis]} elements (axis {axis} of "
                             f"{rules.show(dims)} in {data_format}), got {rules.show(given)}")
        return src
    out = rules.broadcast(dims, given)
    if out is None or len(out) != len(dims) or any(a == 1 and b not in (1, None)
                                                   for a, b in zip(dims, out, strict=True)):
        raise GraphError(f"slope must broadcast to src {rules.show(dims)}, got {rules.show(given)}")
    return src


@binary_f32(infer=infer_prelu, lanes=lambda src, slope: expression.select(src < 0, slope * src, src),
             bound=lambda slope: Curve(max(1.0, slope), ulps=1), layout="sloped")
def prelu(src: Array, slope: Array, *, data_format: Literal["NCX", "NXC"] = "NXC",
          per_channel_broadcast: bool = True) -> Array:
    """`src` where `src >= 0`, else `slope * src` (oneDNN PReLU). NaN stays NaN.

    A 1-D slope varies along the channel axis of `data_format`, or the last axis if `per_channel_broadcast` is false. A
    slope of higher rank broadcasts to `src` as in NumPy.
    """
    if per_channel_broadcast and slope.ndim == 1 and data_format == "NCX":
        slope = slope.reshape(-1, *[1] * (src.ndim - 2))
    return np.where(src < 0, slope * src, src)
