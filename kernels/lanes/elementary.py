"""Functions such as exp and tanh for f32, made of basic operations. All instruction sets and NumPy give the same bits.

Errors are at most 2 ulp over all of f32, including subnormal results. Only softplus, mish and the gelus have larger
errors, of at most 3 to 5.1 ulp (measured by tests/kernels/lanes/test_elementary.py). NaN gives NaN. exp and erf give
the same bits as ONNX Runtime's library MLAS on CPUs that have fused multiply-adds. Other polynomials are from Cephes
(S. Moshier), except for minimax fits of gelu_erf and softplus that were made for this file.
"""
from collections.abc import Callable, Sequence

from graphq.kernels.lanes.expression import Expr, const, define, maximum, minimum, op, select

_LOG2E = 1.44269504088896341
_LN2_HIGH = 0.693359375  # few significant bits, so products with integers below 2**15 are exact
_LN2_LOW = -2.12194440e-4
_SIGN = -(2**31)
_ROUNDS = 12582912.0
"""1.5 * 2**23. Adding it to an f32 rounds to an integer, because all f32 numbers of this size are integers."""
_ROUNDS_BITS = 0x4B400000


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Evaluate a polynomial by Horner's rule with fused multiply-adds. The highest power's coefficient comes first."""
    y: Expr = const(coefficients[0])
    for c in coefficients[1:]:
        y = op("fma", y, x, c)
    return y


def with_sign(size: Expr, sign: Expr) -> Expr:
    """Combine the magnitude `size` with the sign bit of `sign`."""
    return op("as_f32", op("or", op("as_s32", size), op("and", op("as_s32", sign), _SIGN)))


def power_of_two(n: Expr) -> Expr:
    """2**n for integers n from -126 to 127, made by placing n + 127 into the exponent bits."""
    return op("as_f32", op("shl", n + 127, 23))


def _exp_rest(x: Expr, low: Expr | None = None) -> tuple[Expr, Expr, Expr]:
    """Split exp(x + low) into 2**n * (1 + rest + p) and return (rest, p, n as an s32).

    `rest` is x minus n times the upper bits of ln 2, and is exact. p has all other terms. |x| is at most 180, and `low`
    is a small correction of x.
    """
    whole = op("rint", x * _LOG2E)
    rest = x - whole * _LN2_HIGH  # exact
    small = whole * _LN2_LOW if low is None else whole * _LN2_LOW - low
    r = rest - small  # exp(x + low) = 2**whole * exp(r), |r| <= ln 2 / 2 + |low|
    p = _polynomial(r, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
                        5.0000001201e-1))
    return rest, op("fma", p, r * r, -small), op("round_s32", whole)


def _exp_parts(x: Expr, low: Expr | None = None) -> tuple[Expr, Expr, Expr]:
    """Split exp(x + low) into 2**n * (high + rest) and return (high, rest, s32 n). `high` is off by at most 0.7 ulp."""
    rest, p, n = _exp_rest(x, low)
    first = rest + 1.0
    p = (rest - (first - 1.0)) + p  # adds the rounding error of `first`
    high = first + p
    return high, p - (high - first), n


def _scale(x: Expr, n: Expr) -> Expr:
    """Compute x * 2**n for n from -252 to 128, as two products. Only the second can round a subnormal result."""
    half = op("sar", n, 1)
    return x * power_of_two(half) * power_of_two(n - half)


_EXP = (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0)
"""The coefficients of a polynomial for exp(r), |r| <= ln 2 / 2."""


def _exp_reduced(x: Expr) -> tuple[Expr, Expr]:
    """Split exp(x), |x| <= 2**22 * ln 2, into 2**n * exp(r) and return (r, n as an s32). r is small."""
    whole = op("fma", x, _LOG2E, _ROUNDS)  # its low bits are the integer nearest to x * log2(e)
    n = whole - _ROUNDS
    return op("fma", n, -1.42860677e-6, op("fma", n, -6.93145752e-1, x)), op("as_s32", whole) - _ROUNDS_BITS


@define("f32 -> f32")
def exp(x: Expr) -> Expr:
    """e**x, within 0.84 ulp."""
    # Beyond these bounds the result is 0 or inf. A NaN passes, because max and min then return their second operand.
    r, n = _exp_reduced(maximum(-103.9720840454, minimum(88.776262664795, x)))
    return _scale(_polynomial(r, _EXP), n)


@define("f32 -> f32")
def log(x: Expr) -> Expr:
    """Natural logarithm: -inf for zeros, NaN for negative numbers."""
    small = x < 2.0**-126
    bits = op("as_s32", select(small, x * 2.0**23, x))
    e = op("sar", bits - 0x3F3504F3, 23)  # x = 2**e * m; 0x3F3504F3 is sqrt(1/2), the least m
    f = op("as_f32", bits - op("shl", e, 23)) - 1.0
    exponent = op("to_f32", e + select(small, const(-23, "s32"), const(0, "s32")))
    square = f * f
    p = _polynomial(f, (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1))
    y = f + ((p * f * square + exponent * _LN2_LOW) - 0.5 * square) + exponent * _LN2_HIGH
    y = select(x < float("inf"), y, x)  # inf and NaN are returned unchanged
    return select(x > 0.0, y, select(op("eq", x, 0.0), const(float("-inf")), x * float("nan")))


@define("f32 -> f32")
def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent."""
    t, square = op("abs", x), x * x
    inner = _polynomial(square, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                                 -3.33332819422e-1)) * square * t + t
    r, n = _exp_reduced(minimum(20.0, t + t))  # if t + t >= 18, tanh is 1
    outer = 1.0 - 2.0 / (_polynomial(r, _EXP) * power_of_two(n) + 1.0)
    return with_sign(select(t < 0.625, inner, outer), x)


@define("f32 -> f32")
def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), within 1.83 ulp."""
    # With t = exp(-|x|), the result is t / (1 + t) for x < 0, otherwise 1 / (1 + t), corrected by the rounding error of
    # 1 + t. 2**n may be subnormal, so t is computed with 2**(n + 64) and then multiplied by 2**-64.
    r, n = _exp_reduced(maximum(-104.0, -op("abs", x)))
    t = _polynomial(r, _EXP) * power_of_two(n + 64) * 2.0**-64
    total = t + 1.0
    y = select(x < 0.0, t, 1.0) / total
    return op("fma", y, (total - 1.0) - t, y)


@define("f32 -> f32")
def erf(x: Expr) -> Expr:
    """Error function, within 0.95 ulp."""
    t = minimum(3.925, op("abs", x))
    square = t * t
    inner = _polynomial(square, (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1,
                                 1.28379151e-1))
    outer = _polynomial(t, (1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1,
                            6.34846687e-1, 1.28717512e-1))
    r, n = _exp_reduced(-op("fma", outer, t, t))  # erf(t) = 1 - exp(-t - t * outer)
    e = _polynomial(r, (1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1.0, 1.0))
    return with_sign(select(t > 0.921875, 1.0 - e * power_of_two(n), op("fma", inner, t, t)), x)


def _split(x: Expr) -> tuple[Expr, Expr]:
    """Split x into high + low. `high` has 12 significant bits, so the product of two such numbers is exact."""
    high = op("as_f32", op("and", op("as_s32", x), -0x1000))
    return high, x - high


def _step(x: Expr, rest: Expr) -> Expr:
    """max(x, 0) - rest, with rest = 0 at infinities. NaN at -inf, because max(x, 0) is computed as x * 0 there."""
    return select(x < 0.0, x * 0.0, x) - rest


@define("f32 -> f32")
def gelu_erf(x: Expr) -> Expr:
    """0.5 * x * (1 + erf(x / sqrt(2))). NaN at -inf, where the formula is -inf * 0."""
    # With t = |x|: x * Phi(x) = max(x, 0) - t * Phi(-t), and Phi(-t) = exp(-t**2 / 2) * P(u) for u = 1 / (t + 2.5). The
    # polynomial P has a relative error of 2**-26 for t up to 14.42. At 14.42, t * Phi(-t) is below 2**-150.
    t = minimum(14.42, op("abs", x))
    square = t * t
    low = op("fma", t, t, -square)  # exact: t**2 = square + low
    total = t + 2.5
    u = 1.0 / total
    lost = t - (total - 2.5)  # the derivative of P(u) * u by t is about -1.9 * u * P(u) * u
    e, _, n = _exp_parts(square * -0.5, low * -0.5 - lost * u * 1.9)
    p = _polynomial(u, (307.0673277, -674.1197592, 582.9507428, -228.0407293, 29.07418047, -2.596744829, 3.563940994,
                        2.080668318, 0.9976535172, 0.3989401152))
    return _step(x, _scale(t * (p * u * e), n))


@define("f32 -> f32")
def gelu_tanh(x: Expr) -> Expr:
    """0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))). NaN at -inf, where the formula is -inf * 0."""
    # x * sigmoid(a(x)) = max(x, 0) - t * exp(-a) / (1 + exp(-a)) for t = |x| and a = c * t * (t**2 + 1 / 0.044715).
    # t**2, the sum in brackets, t times this sum, and a are each kept as the unevaluated sum of two f32.
    t = minimum(10.8, op("abs", x))
    high, low = _split(t)
    square = high * high
    factor, _ = _split(square + 22.375)
    factor_low = (22.375 - factor + square) + (low * (t + high) - 0.01113999777)
    whole, part = _split(high * factor)
    part = part + (high * factor_low + low * (factor + factor_low))
    e, _, n = _exp_parts(whole * -0.07135009765625, part * -0.07135481627 - whole * 4.71861635e-6)
    return _step(x, _scale(t * e / (_scale(e, n) + 1.0), n))


def _smooth_step(x: Expr, end: float, coefficients: Sequence[float]) -> Expr:
    """max(x, 0) minus a polynomial of odd degree in min(|x|, end) - end / 2, by two chains of half its length."""
    z = minimum(end, op("abs", x)) - end / 2
    square = z * z
    odd, even = _polynomial(square, coefficients[::2]), _polynomial(square, coefficients[1::2])
    return maximum(0.0, x) - op("fma", odd, z, even)


@define("f32 -> f32")
def near_gelu_erf(x: Expr) -> Expr:
    """An approximation of gelu_erf, see `NEAR`."""
    return _smooth_step(x, 5.0, (
        -1.64257614e-7, 1.13634975e-7, 5.3918493e-6, -9.55936412e-6, -6.49503272e-5, 2.25309137e-4, 1.23186648e-4,
        -2.00729794e-3, 4.2962716e-3, -4.49172454e-4, -1.64501593e-2, 3.72288972e-2, -3.760802e-2, 1.55252535e-2))


@define("f32 -> f32")
def near_gelu_tanh(x: Expr) -> Expr:
    """An approximation of gelu_tanh, see `NEAR`."""
    return _smooth_step(x, 4.8, (
        -1.65791931e-7, 1.28714746e-7, 5.06472861e-6, -1.07786618e-5, -5.17918306e-5, 2.34951091e-4, -7.41035838e-5,
        -1.80772517e-3, 5.42880641e-3, -3.49321635e-3, -1.54410945e-2, 4.2898681e-2, -4.60597612e-2, 1.92777812e-2))


NEAR = {"gelu_erf": near_gelu_erf, "gelu_tanh": near_gelu_tanh}
"""Cheaper functions for fast forms, by the functions that they stand for. They have a third of the operations.

For finite x, both results differ by at most `NEAR_ERROR` plus one unit in the last place. max(x, 0) - gelu(x) depends
on |x| only, and vanishes for large |x|. The polynomials are minimax fits of it, made for this file."""
NEAR_ERROR = 2.0**-19


def gelu(x: Expr, *, mode: str) -> Expr:
    """The variant of gelu that `mode`, an attribute of the operation, chooses."""
    return gelu_erf(x) if mode == "gelu_erf" else gelu_tanh(x)


@define("f32 -> f32")
def mish(x: Expr) -> Expr:
    """x * tanh(log(1 + exp(x))). NaN at -inf, where the formula is -inf * 0."""
    # tanh(log(1 + e)) = e * (e + 2) / (e * (e + 2) + 2) for e = exp(x). For x > 0, numerator and denominator are
    # divided by e**2.
    negative = x < 0.0
    high, _, n = _exp_parts(maximum(-110.0, -op("abs", x)))
    e = _scale(high, n)
    over = select(negative, high * (e + 2.0), e + e + 1.0)
    under = select(negative, e * (e + 2.0) + 2.0, e * (e + e) + (e + e + 1.0))
    y = _scale(maximum(-110.0, x) * (over / under), select(negative, n, const(0, "s32")))
    return select(x > float("-inf"), y, x * 0.0)


@define("f32 f32 -> f32")
def softplus(x: Expr, beta: Expr) -> Expr:
    """log(1 + exp(beta * x)) / beta, for beta other than 0."""
    # With z = beta * x and e = exp(-|z|), the result is max(x, 0) + log(1 + e) / beta. z is kept as a sum of two f32.
    # log(1 + e) is e * p(e) with a polynomial p.
    z = beta * x
    t, (a, a_low), (b, b_low) = op("abs", z), _split(op("abs", beta)), _split(op("abs", x))
    low = select(t < 174.0, ((t - a * b) - (a * b_low + a_low * b)) - a_low * b_low, 0.0)
    e, _, n = _exp_parts(-minimum(174.0, t), low)
    p = _polynomial(_scale(e, n), (-3.243980253e-3, 1.985125988e-2, -5.695915394e-2, 0.1060361635, -0.1530556981,
                                   0.1967593136, -0.2495413212, 0.3332996227, -0.4999990242, 1.0))
    return select(z > 0.0, x, -0.0) + _scale(e * p / beta, n)


@define("f32 f32 -> f32")
def elu(x: Expr, alpha: Expr) -> Expr:
    """x if x >= 0, otherwise alpha * (exp(x) - 1)."""
    rest, p, n = _exp_rest(maximum(-40.0, x))
    power = power_of_two(n)
    return select(x < 0.0, alpha * (power * (rest + p) + (power - 1.0)), x)


@define("f32 f32 f32 -> f32")
def hard_sigmoid(x: Expr, alpha: Expr, beta: Expr) -> Expr:
    """max(0, min(1, alpha * x + beta))."""
    return minimum(1.0, maximum(0.0, alpha * x + beta))


@define("f32 -> f32")
def hard_swish(x: Expr) -> Expr:
    """x * max(0, min(1, x / 6 + 1/2)), with x * f32(1/6). NaN at -inf, where the formula is -inf * 0."""
    return x * hard_sigmoid(x, const(1 / 6), const(0.5))


def extreme(choose: Callable[[Expr, Expr], Expr], bits: str, a: Expr, b: Expr) -> Expr:
    """IEEE 754-2019 maximum or minimum: NaN if an operand is NaN, and -0 < +0.

    `choose` selects the larger or the smaller number. `bits` ("and" or "or") combines the bits of equal operands, to
    give zeros the right sign.
    """
    same = op("as_f32", op(bits, op("as_s32", a), op("as_s32", b)))
    chosen = select(op("eq", a, b), same, choose(a, b))
    return select(op("eq", a, a), chosen, a)  # if b is NaN, `choose` has returned it


@define("f32 -> f32")
def round_bf16(x: Expr) -> Expr:
    """Round to the nearest bf16, ties to even. NaN stays NaN."""
    # Add half of the range of the dropped bits (one less if the kept bits are even), then drop the bits. NaNs are
    # returned unchanged, because the addition could turn them into numbers.
    bits = op("as_s32", x)
    odd = op("and", op("shr", bits, 16), 1)
    kept = op("as_f32", op("and", bits + 0x7FFF + odd, -0x10000))
    return select(op("eq", x, x), kept, x)


SMALL_FLOATS = {"f16": (15, 10, 112, 0x7C00, 0x7E00), "f8_e5m2": (7, 2, 112, 0x7C, 0x7E),
                "f8_e4m3": (7, 3, 120, 0x7F, 0x7F)}
"""By dtype: the place of the sign, the bits of the mantissa, how much smaller the bias of exponents is than in f32, the
first code after the finite numbers (infinity, or NaN in a dtype without infinities), and a code of NaN."""


def small_float_value(bits: Expr, dtype: str) -> Expr:
    """Convert the bits of a small float to a number."""
    # Exponent and mantissa bits, shifted to their position in an f32, are the number times 2**-bias, even if the number
    # is subnormal. The product with 2**bias is exact.
    sign, mantissa, bias, top, _ = SMALL_FLOATS[dtype]
    moved = op("shl", op("and", bits, 2**sign - 1), 23 - mantissa)
    special = moved >= top << 23 - mantissa  # inf and NaN
    size = select(special, op("as_f32", op("or", moved, 0x7F800000)), op("as_f32", moved) * 2.0**bias)
    return op("as_f32", op("or", op("as_s32", size), op("shl", op("and", bits, 1 << sign), 31 - sign)))


def small_float_bits(x: Expr, dtype: str) -> Expr:
    """Convert a number to the bits of the nearest small float, ties to even."""
    sign, mantissa, bias, top, nan = SMALL_FLOATS[dtype]
    bits, dropped = op("as_s32", x), 23 - mantissa
    size = op("and", bits, 0x7FFFFFFF)
    odd = op("and", op("shr", size, dropped), 1)
    normal = op("sar", size - (bias << 23) + (2**(dropped - 1) - 1) + odd, dropped)  # as in round_bf16
    grid = const(2.0**(bias - 126 + dropped))  # adding it rounds to multiples of the smallest number
    small = op("as_s32", op("as_f32", size) + grid) - op("as_s32", grid)
    kept = minimum(select(size < bias + 1 << 23, small, normal), top)
    kept = select(op("eq", x, x), kept, nan)
    return op("or", kept, op("and", op("shr", bits, 31 - sign), 1 << sign))
