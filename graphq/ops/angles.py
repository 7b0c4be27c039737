"""Trigonometric and hyperbolic functions and their inverses (ONNX), with the same bits on every CPU.

All are computed in f64 by basic IEEE operations and rounded to f32 once: NumPy's own functions differ between CPUs. The
f64 results are within 4 units in the last place, so that an f32 result is the nearest f32 except very near to halves.
"""
import math

import numpy as np

from graphq.ops.eltwise import unary_f64
from graphq.ops.rules import Array

_TWO_BY_PI = int("A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561", 16)
"""2**256 * 2 / pi."""
_WORDS = [_TWO_BY_PI >> 162 - e & 2**96 - 1 for e in range(-24, 105)]
_HIGH, _LOW = (np.array(words, np.uint64) for words in ([w >> 32 for w in _WORDS], [w % 2**32 for w in _WORDS]))
"""By exponent e from -24 on: (2**e * 2 / pi mod 4) * 2**94, its upper 64 and lower 32 bits."""

_FACTORIALS = [1 / math.factorial(k) for k in range(24)]
_ODD = [1 / (2 * k + 1) for k in range(16)]


_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""The sum is ln 2; products of the first with integers below 2**20 are exact."""


def _series(x: Array, coefficients: list[float]) -> Array:
    """A polynomial by Horner's rule; the coefficient of the lowest power comes first."""
    y = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y = y * x + c
    return y


def _turn(src: Array) -> tuple[Array, Array]:
    """The sine and the cosine of `src` (Payne and Hanek's reduction).

    An f32 is m * 2**e with |m| < 2**24. Products of m with the words of 2**e * 2 / pi wrap at 4 quarter turns.
    """
    near = np.abs(src) < 0.75
    m, e = np.frexp(np.where(near | ~np.isfinite(src), 1, np.abs(src)))
    whole = (m * 2.0**24).astype(np.uint64)
    rest = whole * _LOW[e]
    turn = whole * _HIGH[e] + (rest >> np.uint64(32))
    quarter = np.where(near, np.uint64(0), (turn + np.uint64(2**61)) >> np.uint64(62))
    part = (turn - (quarter << np.uint64(62))).view(np.int64) * 2.0**-62 + (rest & np.uint64(2**32 - 1)) * 2.0**-94
    angle = np.where(near, src, part * (math.pi / 2) * np.sign(src) + (src - src))  # NaN for infinities
    square = -angle * angle
    sine, cosine = angle * _series(square, _FACTORIALS[1:18:2]), _series(square, _FACTORIALS[0:18:2])
    at = np.where(src < 0, 4 - quarter, quarter).astype(np.int64) % 4
    return np.choose(at, [sine, cosine, -sine, -cosine]), np.choose(at, [cosine, -sine, -cosine, sine])


def _atan(x: Array) -> Array:
    """The angle is halved twice by tan(a / 2) = tan(a) / (1 + sqrt(1 + tan(a)**2)), then a series sums it."""
    t = np.abs(x)
    z = np.where(t > 1, 1 / t, t)
    for _ in range(2):
        z = z / (1 + np.sqrt(1 + z * z))
    y = 4 * z * _series(-z * z, _ODD)
    return np.copysign(np.where(t > 1, math.pi / 2 - y, y), x)


def _log1p(x: Array) -> Array:
    """The logarithm of 1 + x: of its power of two, and of the rest m by 2 * atanh((m - 1) / (m + 1))."""
    u = 1 + x
    m, e = np.frexp(u)
    low = m < math.sqrt(0.5)
    m, e = np.where(low, m + m, m), e - low
    z = (m - 1) / (m + 1)
    y = e * _LN2_HIGH + (2 * z * _series(z * z, _ODD) + (e * _LN2_LOW + (x - (u - 1)) / u))
    return np.where(u < math.inf, np.where(u >= 0, y, math.nan), u)


def _exp(x: Array) -> Array:
    """The exponential of x >= 0, infinite from 800 on."""
    x = np.minimum(x, 800)
    n = np.rint(x / math.log(2))
    return np.ldexp(_series(x - n * _LN2_HIGH - n * _LN2_LOW, _FACTORIALS[:16]), n.astype(np.int32))


@unary_f64(onnx="Sin")
def sin(src: Array) -> Array:
    """The sine, of radians (ONNX Sin)."""
    return _turn(src)[0]


@unary_f64(onnx="Cos")
def cos(src: Array) -> Array:
    """The cosine, of radians (ONNX Cos)."""
    return _turn(src)[1]


@unary_f64(onnx="Tan")
def tan(src: Array) -> Array:
    """The tangent, of radians (ONNX Tan)."""
    sine, cosine = _turn(src)
    return sine / cosine


@unary_f64(onnx="Asin")
def asin(src: Array) -> Array:
    """The angle in [-pi/2, pi/2] whose sine is `src` (ONNX Asin). NaN outside [-1, 1]."""
    return _atan(src / np.sqrt((1 - src) * (1 + src)))


@unary_f64(onnx="Acos")
def acos(src: Array) -> Array:
    """The angle in [0, pi] whose cosine is `src` (ONNX Acos). NaN outside [-1, 1]."""
    return 2 * _atan(np.sqrt((1 - src) / (1 + src)))


@unary_f64(onnx="Atan")
def atan(src: Array) -> Array:
    """The angle in [-pi/2, pi/2] whose tangent is `src` (ONNX Atan)."""
    return _atan(src)


@unary_f64(onnx="Sinh")
def sinh(src: Array) -> Array:
    """The hyperbolic sine, `(exp(src) - exp(-src)) / 2` (ONNX Sinh)."""
    e = _exp(np.abs(src))
    return np.where(np.abs(src) < 1, src * _series(src * src, _FACTORIALS[1::2]), np.copysign((e - 1 / e) / 2, src))


@unary_f64(onnx="Cosh")
def cosh(src: Array) -> Array:
    """The hyperbolic cosine, `(exp(src) + exp(-src)) / 2` (ONNX Cosh)."""
    e = _exp(np.abs(src))
    return (e + 1 / e) / 2


@unary_f64(onnx="Asinh")
def asinh(src: Array) -> Array:
    """The number whose hyperbolic sine is `src` (ONNX Asinh)."""
    t = np.abs(src)
    return np.copysign(np.where(np.isinf(t), t, _log1p(t + t * t / (1 + np.sqrt(1 + t * t)))), src)


@unary_f64(onnx="Acosh")
def acosh(src: Array) -> Array:
    """The number from 0 on whose hyperbolic cosine is `src` (ONNX Acosh). NaN below 1."""
    return _log1p((src - 1) + np.sqrt(src - 1) * np.sqrt(src + 1))


@unary_f64(onnx="Atanh")
def atanh(src: Array) -> Array:
    """The number whose hyperbolic tangent is `src` (ONNX Atanh). Infinite at -1 and 1, NaN beyond."""
    t = np.abs(src)
    return np.copysign(_log1p((t + t) / (1 - t)) / 2, src)
