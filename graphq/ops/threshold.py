"""Unary elementwise operations made of comparisons: relu and its variants, clamp, hard_sigmoid, hard_swish, elu.

NaN stays NaN in all of them.
"""
from __future__ import annotations

import math

import numpy as np

from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import Curve, register_op
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import maximum, minimum, select
from graphq.ops.compute import Array, in_f32, in_f64, limited
from graphq.ops.infer import finite_f32, infer_unary


@register_op(infer=infer_unary, elementwise=True,
             lanes=lambda x: maximum(0, x),  # 0 > x ? 0 : x, so NaN and -0 stay
             bound=Curve(1, largest=lambda size: size), onnx="Relu")
@in_f32
def relu(src: Array) -> Array:
    """`max(src, 0)` (oneDNN ReLU). NaN and -0 stay."""
    return np.where(src < 0, np.float32(0), src)


def infer_clamp(src: TensorType, *, min: float, max: float) -> TensorType:
    """A unary float op; min <= max, infinities allowed."""
    if math.isnan(min) or math.isnan(max) or min > max:
        raise GraphError(f"min must not exceed max, and neither may be NaN, got min {min}, max {max}")
    return infer_unary(src)


def _largest_clamped(low: float, high: float, size: float) -> float:
    """A bound of the magnitudes of clamped numbers whose magnitudes are at most `size` before."""
    limits = [abs(low), abs(high)]
    return float(np.max(limits if np.isfinite(limits).all() else [size, *(x for x in limits if np.isfinite(x))]))


@register_op(infer=infer_clamp, elementwise=True, lanes=lambda src, *, min, max: minimum(max, maximum(min, src)),
             bound=lambda *, min, max: Curve(1, largest=lambda size: _largest_clamped(min, max, size)))
@in_f32
def clamp(src: Array, *, min: float, max: float) -> Array:
    """`src` limited to [min, max] (oneDNN Clamp). NaN stays, and so does -0 unless min is positive."""
    return limited(src, min, max)


def infer_alpha(src: TensorType, *, alpha: float) -> TensorType:
    """A unary float op with a finite alpha."""
    finite_f32("alpha", alpha)
    return infer_unary(src)


@register_op(infer=infer_alpha, elementwise=True, lanes=lambda src, *, alpha: select(src < 0, alpha * src, src),
             bound=lambda *, alpha: Curve(max(1.0, abs(alpha)), ulps=1), onnx="LeakyRelu")
@in_f32
def leaky_relu(src: Array, *, alpha: float) -> Array:
    """`src` where `src >= 0`, else `alpha * src` (oneDNN LeakyReLU). NaN stays."""
    return np.where(src < 0, np.float32(alpha) * src, src)


def infer_elu(src: TensorType, *, alpha: float) -> TensorType:
    """A unary float op with a finite alpha >= 0."""
    if finite_f32("alpha", alpha) < 0:
        raise GraphError(f"alpha must not be negative, got {alpha}")
    return infer_unary(src)


@register_op(infer=infer_elu, elementwise=True, lanes=lambda src, *, alpha: elementary.elu(src, alpha), exact=False,
             onnx="Elu", bound=lambda *, alpha: Curve(max(1.0, abs(alpha)), 0.37 * max(1.0, abs(alpha)), 1, 4))
@in_f64
def elu(src: Array, *, alpha: float) -> Array:
    """`src` where `src >= 0`, else `alpha * (exp(src) - 1)` (oneDNN Elu). NaN stays."""
    return np.where(src < 0, np.float64(np.float32(alpha)) * np.expm1(src), src)


def infer_hard_sigmoid(src: TensorType, *, alpha: float, beta: float) -> TensorType:
    """A unary float op with finite alpha and beta."""
    finite_f32("alpha", alpha)
    finite_f32("beta", beta)
    return infer_unary(src)


@register_op(infer=infer_hard_sigmoid, elementwise=True,
             lanes=lambda src, *, alpha, beta: elementary.hard_sigmoid(src, alpha, beta),
             bound=lambda *, alpha, beta: Curve(abs(alpha), abs(beta) + 1, 1, 1), onnx="HardSigmoid")
@in_f32
def hard_sigmoid(src: Array, *, alpha: float, beta: float) -> Array:
    """`max(0, min(1, alpha * src + beta))` (oneDNN HardSigmoid). NaN stays."""
    return limited(np.float32(alpha) * src + np.float32(beta), 0, 1)


@register_op(infer=infer_unary, elementwise=True, lanes=elementary.hard_swish, bound=Curve(1.5, 1.5, 1, 4),
             onnx="HardSwish")
@in_f32
def hard_swish(src: Array) -> Array:
    """`src * max(0, min(1, src / 6 + 1/2))` (oneDNN HardSwish), as ONNX's function: src times f32(1/6).

    NaN at -inf, as the formula gives.
    """
    return src * limited(src * np.float32(1 / 6) + np.float32(0.5), 0, 1)
