"""Unary elementwise operations: arithmetic functions, relu, clamp and similar. All return NaN for NaN."""
import math
from functools import partial
from typing import Literal

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32
from graphq.errors import GraphError
from graphq.ir import Curve, TensorType, register_op
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import const, maximum, minimum, op, select
from graphq.ops.rules import Array, finite_f32, in_f32, in_f64, infer_unary, lane_wise, limited, output_dtype

unary_f32, unary_f64 = (partial(lane_wise, compute, infer=infer_unary) for compute in (in_f32, in_f64))

c_erf, erfc = np.vectorize(math.erf, otypes=[np.float64]), np.vectorize(math.erfc, otypes=[np.float64])
"""The error function and the complementary error function in f64, from the C library."""


@unary_f32(lanes=lambda src: op("abs", src), bound=Curve(1), onnx="Abs")
def abs_(src: Array) -> Array:
    """`|src|` (oneDNN Abs)."""
    return np.abs(src)


@unary_f32(lanes=lambda src: src * src)
def square(src: Array) -> Array:
    """`src**2` (oneDNN Square)."""
    return src * src


@unary_f32(lanes=lambda src: op("sqrt", src), onnx="Sqrt")
def sqrt(src: Array) -> Array:
    """Square root (oneDNN Sqrt). NaN below zero."""
    return np.sqrt(src)


@unary_f32(lanes=lambda src: const(1.0) / src, onnx="Reciprocal")
def reciprocal(src: Array) -> Array:
    """`1 / src` (oneDNN Reciprocal)."""
    return np.float32(1) / src


@unary_f32(lanes=lambda src: op("rint", src), onnx="Round")
def round_(src: Array) -> Array:
    """The nearest integer, ties to even (oneDNN Round)."""
    return np.rint(src)


@unary_f32(lanes=lambda src: op("floor", src), onnx="Floor")
def floor(src: Array) -> Array:
    """The greatest integer <= `src` (ONNX Floor)."""
    return np.floor(src)


@unary_f32(lanes=lambda src: -op("floor", -src), onnx="Ceil")
def ceil(src: Array) -> Array:
    """The least integer >= `src` (ONNX Ceil)."""
    return np.ceil(src)


@unary_f32(onnx="Sign")
def sign(src: Array) -> Array:
    """-1, 0 or 1 by the sign of `src` (ONNX Sign). NaN stays NaN."""
    return np.sign(src)


@unary_f64(lanes=elementary.exp, exact=False, onnx="Exp")
def exp(src: Array) -> Array:
    """`e**src` (oneDNN Exp)."""
    return np.exp(src)


@unary_f64(lanes=elementary.log, exact=False, onnx="Log")
def log(src: Array) -> Array:
    """Natural logarithm (oneDNN Log). -inf at zero, NaN below."""
    return np.log(src)


def _at_most_1(size: float) -> float:
    return 1.0


@unary_f64(lanes=elementary.tanh, exact=False, bound=Curve(1, 0.45, 0, 2, _at_most_1, reach=(-1, 1)), onnx="Tanh")
def tanh(src: Array) -> Array:
    """Hyperbolic tangent (oneDNN Tanh)."""
    return np.tanh(src)


@unary_f64(lanes=elementary.sigmoid, exact=False,
           bound=Curve(0.25, 0.23, 0, 2, _at_most_1, reach=(-2, 2)), onnx="Sigmoid")
def sigmoid(src: Array) -> Array:
    """`1 / (1 + exp(-src))` (oneDNN Sigmoid)."""
    return 1 / (1 + np.exp(-src))


@unary_f64(lanes=elementary.erf, exact=False,
           bound=Curve(1.13, 0.49, 0, 2, _at_most_1, (-3.925, 3.925), (-1, 1)), onnx="Erf")
def erf(src: Array) -> Array:
    """The error function (ONNX Erf)."""
    return c_erf(src)


@unary_f64(lanes=elementary.gelu, bound=Curve(1.13, 0.35, 1, 6), exact=False)
def gelu(src: Array, *, mode: Literal["gelu_erf", "gelu_tanh"] = "gelu_erf") -> Array:
    """Gaussian error linear unit (oneDNN GELU). NaN at -inf, by the formulas.

    gelu_erf: `src/2 * (1 + erf(src / sqrt(2)))`; gelu_tanh: `src/2 * (1 + tanh(sqrt(2/pi) * (src + 0.044715 src**3)))`.
    """
    if mode == "gelu_erf":
        return 0.5 * src * erfc(-src * np.sqrt(0.5))  # 1 + erf(x) = erfc(-x), without cancellation
    inner = np.sqrt(2 / np.pi) * (src + 0.044715 * src**3)
    return src / (1 + np.exp(-2 * inner))  # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), without cancellation


@unary_f64(lanes=elementary.mish, bound=Curve(1.1, 0.5, 1, 6), exact=False, onnx="Mish")
def mish(src: Array) -> Array:
    """`src * tanh(log(1 + exp(src)))` (oneDNN Mish). NaN at -inf, by the formula."""
    return src * np.tanh(np.logaddexp(0, src))


def infer_softplus(src: TensorType, *, beta: float) -> TensorType:
    """Type rule of a unary float op; beta is finite and not zero."""
    if np.float32(finite_f32("beta", beta)) == 0:
        raise GraphError(f"beta must not be zero as an f32, got {beta}")
    return infer_unary(src)


@unary_f64(infer=infer_softplus, lanes=lambda src, *, beta: elementary.softplus(src, beta), exact=False,
           bound=lambda *, beta: Curve(1, 0.28 / abs(beta), 1, 6, lambda x: 1.01 * (x + 0.7 / abs(beta))),
           onnx="Softplus")
def softplus(src: Array, *, beta: float = 1.0) -> Array:
    """`log(1 + exp(beta * src)) / beta` (oneDNN SoftPlus)."""
    b = np.float64(np.float32(beta))
    return np.logaddexp(0, b * src) / b


@register_op(infer=infer_unary, elementwise=True, portable=False)
def pow_(src: Array, *, beta: float) -> Array:
    """`src**beta` (oneDNN Pow). NaN below zero if beta is not an integer. For beta 3: src * src * src."""
    return _cube(src) if beta == 3 else _power(src, beta=beta)


@in_f32
def _cube(src: Array) -> Array:
    return src * src * src


@in_f64
def _power(src: Array, *, beta: float) -> Array:
    return np.float_power(src, np.float32(beta))  # np.power uses sqrt for 0.5, which is wrong at -0 and -inf


# oneDNN's table of TypeCast: the possible dtypes of the result, by the operand's dtype.
CASTS: dict[DType, tuple[DType, ...]] = {f32: (bf16, f16), bf16: (f32,), f16: (f32,)}


def infer_type_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """Casts go from f32 to bf16 or f16, or back."""
    return TensorType(output_dtype(infer_unary(src).dtype, dtype, CASTS), src.shape)


@register_op(infer=infer_type_cast, elementwise=True, lanes=lambda src: src)
def type_cast(src: Array, *, dtype: DType) -> Array:
    """`src` as `dtype`, rounded to nearest even (oneDNN TypeCast). Numbers beyond the range become infinities."""
    return src.astype(dtype.numpy)


@unary_f32(lanes=lambda x: maximum(0, x),  # 0 > x ? 0 : x, so NaN and -0 stay
           bound=Curve(1, largest=lambda size: size), onnx="Relu")
def relu(src: Array) -> Array:
    """`max(src, 0)` (oneDNN ReLU). NaN and -0 stay."""
    return np.where(src < 0, np.float32(0), src)


def infer_clamp(src: TensorType, *, min: float, max: float) -> TensorType:
    """Type rule of a unary float op with min <= max. Infinities are allowed."""
    if math.isnan(min) or math.isnan(max) or min > max:
        raise GraphError(f"min must not exceed max, and neither may be NaN, got min {min}, max {max}")
    return infer_unary(src)


def _largest_clamped(low: float, high: float, size: float) -> float:
    limits = [abs(low), abs(high)]
    return float(np.max(limits if np.isfinite(limits).all() else [size, *(x for x in limits if np.isfinite(x))]))


@unary_f32(infer=infer_clamp, lanes=lambda src, *, min, max: minimum(max, maximum(min, src)),
           bound=lambda *, min, max: Curve(1, largest=lambda size: _largest_clamped(min, max, size), flat=(min, max)))
def clamp(src: Array, *, min: float, max: float) -> Array:
    """`src` limited to [min, max] (oneDNN Clamp). NaN stays NaN, and -0 stays -0 if min is not positive."""
    return limited(src, min, max)


@unary_f32(lanes=lambda src, *, alpha: select(src < 0, alpha * src, src),
           bound=lambda *, alpha: Curve(max(1.0, abs(alpha)), ulps=1), onnx="LeakyRelu")
def leaky_relu(src: Array, *, alpha: float) -> Array:
    """`src` where `src >= 0`, else `alpha * src` (oneDNN LeakyReLU). NaN stays."""
    return np.where(src < 0, np.float32(alpha) * src, src)


def infer_elu(src: TensorType, *, alpha: float) -> TensorType:
    """Type rule of a unary float op with a finite alpha >= 0."""
    if finite_f32("alpha", alpha) < 0:
        raise GraphError(f"alpha must not be negative, got {alpha}")
    return infer_unary(src)


@unary_f64(infer=infer_elu, lanes=lambda src, *, alpha: elementary.elu(src, alpha), exact=False, onnx="Elu",
           bound=lambda *, alpha: Curve(max(1.0, abs(alpha)), 0.37 * max(1.0, abs(alpha)), 1, 4))
def elu(src: Array, *, alpha: float) -> Array:
    """`src` where `src >= 0`, else `alpha * (exp(src) - 1)` (oneDNN Elu). NaN stays."""
    return np.where(src < 0, np.float64(np.float32(alpha)) * np.expm1(src), src)


def _hard_sigmoid_curve(*, alpha: float, beta: float) -> Curve:
    """The Curve of hard_sigmoid. Its interval `flat` has a margin for the rounding of alpha * x + beta."""
    room = 2.0**-20 * (1 + abs(beta))
    ends = sorted((y - beta) / alpha for y in (-room, 1 + room)) if alpha else (-math.inf, math.inf)
    return Curve(abs(alpha), abs(beta) + 1, 1, 1, _at_most_1, (ends[0], ends[1]))


@unary_f32(bound=_hard_sigmoid_curve, onnx="HardSigmoid",
           lanes=lambda src, *, alpha, beta: elementary.hard_sigmoid(src, alpha, beta))
def hard_sigmoid(src: Array, *, alpha: float, beta: float) -> Array:
    """`max(0, min(1, alpha * src + beta))` (oneDNN HardSigmoid). NaN stays."""
    return limited(np.float32(alpha) * src + np.float32(beta), 0, 1)


@unary_f32(lanes=elementary.hard_swish, bound=Curve(1.5, 1.5, 1, 4), onnx="HardSwish")
def hard_swish(src: Array) -> Array:
    """`src * max(0, min(1, src * f32(1/6) + 1/2))` (oneDNN HardSwish, ONNX's numbers). NaN at -inf, by the formula."""
    return src * limited(src * np.float32(1 / 6) + np.float32(0.5), 0, 1)
