"""Unary elementwise functions on f32, bf16 and f16: arithmetic in f32, transcendental functions in f64."""
from __future__ import annotations

from typing import Literal

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import Curve, register_op
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import const, op
from graphq.ops.compute import Array, c_erf, erfc, in_f32, in_f64, quiet
from graphq.ops.infer import finite_f32, infer_unary, output_dtype


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: op("abs", src), bound=Curve(1), onnx="Abs")
@in_f32
def abs_(src: Array) -> Array:
    """`|src|` (oneDNN Abs)."""
    return np.abs(src)


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: src * src)
@in_f32
def square(src: Array) -> Array:
    """`src**2` (oneDNN Square)."""
    return src * src


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: op("sqrt", src), onnx="Sqrt")
@in_f32
def sqrt(src: Array) -> Array:
    """Square root (oneDNN Sqrt). NaN below zero."""
    return np.sqrt(src)


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: const(1.0) / src, onnx="Reciprocal")
@in_f32
def reciprocal(src: Array) -> Array:
    """`1 / src` (oneDNN Reciprocal)."""
    return np.float32(1) / src


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: op("rint", src), onnx="Round")
@in_f32
def round_(src: Array) -> Array:
    """The nearest integer, ties to even (oneDNN Round)."""
    return np.rint(src)


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: op("floor", src), onnx="Floor")
@in_f32
def floor(src: Array) -> Array:
    """The greatest integer that is not above the number (ONNX Floor)."""
    return np.floor(src)


@register_op(infer=infer_unary, elementwise=True, lanes=lambda src: -op("floor", -src), onnx="Ceil")
@in_f32
def ceil(src: Array) -> Array:
    """The least integer that is not below the number (ONNX Ceil)."""
    return np.ceil(src)


@register_op(infer=infer_unary, elementwise=True, onnx="Sign")
@in_f32
def sign(src: Array) -> Array:
    """-1, 0 or 1 (ONNX Sign). NaN stays."""
    return np.sign(src)


@register_op(infer=infer_unary, elementwise=True, onnx="Sin")
@in_f64
def sin(src: Array) -> Array:
    """The sine of radians (ONNX Sin)."""
    return np.sin(src)


@register_op(infer=infer_unary, elementwise=True, onnx="Cos")
@in_f64
def cos(src: Array) -> Array:
    """The cosine of radians (ONNX Cos)."""
    return np.cos(src)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.exp, exact=False, onnx="Exp")
@in_f64
def exp(src: Array) -> Array:
    """`e**src` (oneDNN Exp)."""
    return np.exp(src)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.log, exact=False, onnx="Log")
@in_f64
def log(src: Array) -> Array:
    """Natural logarithm (oneDNN Log). -inf at zero, NaN below."""
    return np.log(src)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.tanh, bound=Curve(1, 0.45, 0, 2), exact=False,
             onnx="Tanh")
@in_f64
def tanh(src: Array) -> Array:
    """Hyperbolic tangent (oneDNN Tanh)."""
    return np.tanh(src)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.sigmoid, bound=Curve(0.25, 0.23, 0, 2), exact=False,
             onnx="Sigmoid")
@in_f64
def sigmoid(src: Array) -> Array:
    """`1 / (1 + exp(-src))` (oneDNN Sigmoid)."""
    return 1 / (1 + np.exp(-src))


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.erf, bound=Curve(1.13, 0.49, 0, 2), exact=False,
             onnx="Erf")
@in_f64
def erf(src: Array) -> Array:
    """The error function (ONNX Erf)."""
    return c_erf(src)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.gelu, bound=Curve(1.13, 0.35, 1, 6), exact=False)
@in_f64
def gelu(src: Array, *, mode: Literal["gelu_erf", "gelu_tanh"] = "gelu_erf") -> Array:
    """Gaussian error linear unit (oneDNN GELU). NaN at -inf, as the formulas give.

    gelu_erf: `src/2 * (1 + erf(src / sqrt(2)))`; gelu_tanh: `src/2 * (1 + tanh(sqrt(2/pi) * (src + 0.044715 src**3)))`.
    """
    if mode == "gelu_erf":
        return 0.5 * src * erfc(-src * np.sqrt(0.5))  # 1 + erf(x) = erfc(-x), without its cancellation
    inner = np.sqrt(2 / np.pi) * (src + 0.044715 * src**3)
    return src / (1 + np.exp(-2 * inner))  # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), without its cancellation


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.mish, bound=Curve(1.1, 0.5, 1, 6), exact=False,
             onnx="Mish")
@in_f64
def mish(src: Array) -> Array:
    """`src * tanh(log(1 + exp(src)))` (oneDNN Mish). NaN at -inf, as the formula gives."""
    return src * np.tanh(np.logaddexp(0, src))


def infer_softplus(src: TensorType, *, beta: float) -> TensorType:
    """A unary float op; beta is finite and not zero."""
    if np.float32(finite_f32("beta", beta)) == 0:
        raise GraphError(f"beta must not be zero as an f32, got {beta}")
    return infer_unary(src)


@register_op(infer=infer_softplus, elementwise=True, lanes=lambda src, *, beta: elementary.softplus(src, beta),
             bound=lambda *, beta: Curve(1, 0.28 / abs(beta), 1, 6, lambda x: 1.01 * (x + 0.7 / abs(beta))),
             exact=False, onnx="Softplus")
@in_f64
def softplus(src: Array, *, beta: float = 1.0) -> Array:
    """`log(1 + exp(beta * src)) / beta` (oneDNN SoftPlus)."""
    b = np.float64(np.float32(beta))
    return np.logaddexp(0, b * src) / b


def infer_pow(src: TensorType, *, beta: float) -> TensorType:
    """A unary float op with a finite exponent."""
    finite_f32("beta", beta)
    return infer_unary(src)


@register_op(infer=infer_pow, elementwise=True)
def pow_(src: Array, *, beta: float) -> Array:
    """`src**beta` (oneDNN Pow), NaN below zero if beta is no integer; beta 3 is two products, as in ONNX Runtime."""
    return _cube(src) if beta == 3 else _power(src, beta=beta)


@in_f32
def _cube(src: Array) -> Array:
    return src * src * src


@in_f64
def _power(src: Array, *, beta: float) -> Array:
    return np.float_power(src, np.float32(beta))  # np.power takes sqrt for 0.5, which is not C's pow at -0 and -inf


# oneDNN's table of TypeCast: for each source dtype, the dtypes that the result may have.
CASTS: dict[DType, tuple[DType, ...]] = {f32: (bf16, f16), bf16: (f32,), f16: (f32,)}


def infer_type_cast(src: TensorType, *, dtype: DType) -> TensorType:
    """The cast is from f32 to bf16 or f16, or back."""
    return TensorType(output_dtype(infer_unary(src).dtype, dtype, CASTS), src.shape)


@register_op(infer=infer_type_cast, elementwise=True, lanes=lambda src: src)
@quiet
def type_cast(src: Array, *, dtype: DType) -> Array:
    """`src` as `dtype`, rounded to nearest even; numbers beyond the range become infinities (oneDNN TypeCast)."""
    return src.astype(dtype.numpy)
