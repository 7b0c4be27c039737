"""Trigonometric and hyperbolic functions and their inverses (ONNX), with the same bits on every CPU.

References and kernels run the same f64 operations and round to f32 once. The f64 results are within a few units in the
last place, so an f32 result is the nearest f32, except very near to halves. Series are Taylor's.
"""
import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from graphq.ir import Op
from graphq.kernels.lanes.elementary import power_of_two, with_sign
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import Expr, const, load, minimum, op, select
from graphq.ops.eltwise import unary_f32
from graphq.ops.rules import Array

_ONE_BY_PI = int("A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561", 16)
"""2**257 / pi."""


_GROUPS = range(0, 105, 26)
_PARTS = [[math.ldexp(_ONE_BY_PI >> 257 - group - last & 2**count - 1, -group - last) for group in _GROUPS]
          for last, count in ((0, 26), (26, 26), (52, 26), (105, 53))]
"""Four consecutive parts of 1 / pi, for f32 below 2**24, 2**50, 2**76, 2**102 and 2**128.

The bits before a group's parts contribute whole turns only.
"""
_FACTORIALS = [1 / math.factorial(k) for k in range(24)]
_ODD = [1 / (2 * k + 1) for k in range(14)]
_SINE = [float((-1)**k * Fraction(math.pi)**(2 * k + 1) / math.factorial(2 * k + 1)) for k in range(11)]
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""The sum is ln 2; products of the first with integers below 2**20 are exact."""


def _series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """A polynomial by Horner's rule; the coefficient of the lowest power comes first."""
    y = const(coefficients[-1], "f64")
    for c in coefficients[-2::-1]:
        y = y * x + c
    return y


def _sine(x: Expr, turns: float) -> Expr:
    """Compute sin(x + pi * turns) in f64, for turns of 0 or 1/2.

    The products of x with 26 bits of 1 / pi are exact, and so are the sums of the first two: no f32 is so near to a
    multiple of pi that the rest loses digits (Payne and Hanek's reduction).
    """
    size, parts = op("abs", x), []
    for first, *others in _PARTS:
        part = const(first, "f64")
        for group, bits in zip(_GROUPS, others, strict=False):
            part = select(size >= 2.0**(group + 24), const(bits, "f64"), part)
        parts.append(op("to_f64", x) * part)
    a, b, c, d = parts
    exact = a - op("rint", a * 0.5) * 2.0 + b + turns
    whole = op("rint", exact + c)  # below 2**24
    rest = exact - whole + c + d
    y = rest * _series(rest * rest, _SINE)
    return select(op("eq", op("and", op("round_s32", op("to_f32", whole)), 1), 0), y, -y)


def _or_small(y: Expr, x: Expr) -> Expr:
    """`x` if it is so small that it is the nearest f32 to its sine and its tangent, otherwise the f64 `y`."""
    return select(op("abs", x) < 2.0**-12, x, op("to_f32", y))


def _angle(y: Expr, x: Expr) -> Expr:
    """The angle in [0, pi/2] whose tangent is y / x, for numbers from 0 on.

    It is taken from pi/2 if y > x. The rest is turned back by pi/6 if it is nearer to pi/6 than to 0.
    """
    steep = y > x
    y, x = select(steep, x, y), select(steep, y, x)
    turned, slope = y > x * (2 - math.sqrt(3)), 1 / math.sqrt(3)  # the tangents of pi / 12 and pi / 6
    z = select(turned, y - x * slope, y) / select(turned, x + y * slope, x)
    angle = select(turned, const(math.pi / 6, "f64"), const(0, "f64")) + z * _series(-(z * z), _ODD)
    return select(steep, math.pi / 2 - angle, angle)


def _log1p(x: Expr) -> Expr:
    """The logarithm of 1 + x = 2**e * m: e * ln 2 + 2 * atanh((m - 1) / (m + 1)). NaN for x < -1."""
    u = x + 1.0
    scaled = u * 2.0**-32  # in the range of f32
    e = op("sar", op("as_s32", op("to_f32", scaled)) - 0x3F3504F3, 23)  # sqrt(1/2) is the least m
    f = select(op("eq", e, -32), x, scaled * op("to_f64", power_of_two(0 - e)) - 1.0)
    z, e = f / (f + 2.0), op("to_f64", e + 32)
    y = e * _LN2_HIGH + (z * 2.0 * _series(z * z, _ODD[:11]) + e * _LN2_LOW)
    return select(u < math.inf, select(u >= 0.0, y, const(math.nan, "f64")), u)


def _exp(size: Expr) -> Expr:
    """The exponential of an f32 from 0 on; beyond 100, the exponential of 100."""
    x = op("to_f64", minimum(100.0, size))
    n = op("rint", x * (1 / (_LN2_HIGH + _LN2_LOW)))
    y = _series(x - n * _LN2_HIGH - n * _LN2_LOW, _FACTORIALS[:14])
    whole = op("round_s32", op("to_f32", n))
    half = op("sar", whole, 1)
    return y * op("to_f64", power_of_two(half)) * op("to_f64", power_of_two(whole - half))


def _formula(f: Callable[[Expr], Expr]) -> Op:
    """Declare the operation whose reference and kernels evaluate an expression."""

    @functools.wraps(f)
    def run(src: Array) -> Array:
        return evaluate(f(load(0, "f32", "vector")), None, [src])

    return unary_f32(lanes=f, onnx=f.__name__.capitalize())(run)


@_formula
def sin(src: Expr) -> Expr:
    """The sine, of radians (ONNX Sin)."""
    return _or_small(_sine(src, 0.0), src)


@_formula
def cos(src: Expr) -> Expr:
    """The cosine, of radians (ONNX Cos)."""
    return op("to_f32", _sine(src, 0.5))


@_formula
def tan(src: Expr) -> Expr:
    """The tangent, of radians (ONNX Tan)."""
    return _or_small(_sine(src, 0.0) / _sine(src, 0.5), src)


@_formula
def asin(src: Expr) -> Expr:
    """The angle in [-pi/2, pi/2] whose sine is `src` (ONNX Asin). NaN outside [-1, 1]."""
    t = op("to_f64", op("abs", src))
    return with_sign(op("to_f32", _angle(t, op("sqrt", (1.0 - t) * (t + 1.0)))), src)


@_formula
def acos(src: Expr) -> Expr:
    """The angle in [0, pi] whose cosine is `src` (ONNX Acos). NaN outside [-1, 1]."""
    t = op("to_f64", src)
    return op("to_f32", _angle(op("sqrt", 1.0 - t), op("sqrt", t + 1.0)) * 2.0)


@_formula
def atan(src: Expr) -> Expr:
    """The angle in [-pi/2, pi/2] whose tangent is `src` (ONNX Atan)."""
    return with_sign(op("to_f32", _angle(op("to_f64", op("abs", src)), const(1, "f64"))), src)


@_formula
def sinh(src: Expr) -> Expr:
    """The hyperbolic sine, `(exp(src) - exp(-src)) / 2` (ONNX Sinh)."""
    t = op("to_f64", op("abs", src))
    e = _exp(op("abs", src))
    y = select(t < 1.0, t * _series(t * t, _FACTORIALS[1:22:2]), (e - 1.0 / e) * 0.5)
    return with_sign(op("to_f32", y), src)


@_formula
def cosh(src: Expr) -> Expr:
    """The hyperbolic cosine, `(exp(src) + exp(-src)) / 2` (ONNX Cosh)."""
    e = _exp(op("abs", src))
    return op("to_f32", (e + 1.0 / e) * 0.5)


@_formula
def asinh(src: Expr) -> Expr:
    """The number whose hyperbolic sine is `src` (ONNX Asinh)."""
    t = op("to_f64", op("abs", src))
    r = 1.0 / t
    return with_sign(op("to_f32", _log1p(t + t / (op("sqrt", r * r + 1.0) + r))), src)


@_formula
def acosh(src: Expr) -> Expr:
    """The number from 0 on whose hyperbolic cosine is `src` (ONNX Acosh). NaN below 1."""
    t = op("to_f64", src) - 1.0
    return op("to_f32", _log1p(t + op("sqrt", t) * op("sqrt", t + 2.0)))


@_formula
def atanh(src: Expr) -> Expr:
    """The number whose hyperbolic tangent is `src` (ONNX Atanh). Infinite at -1 and 1, NaN beyond."""
    t = op("to_f64", op("abs", src))
    return with_sign(op("to_f32", _log1p((t + t) / (1.0 - t)) * 0.5), src)
