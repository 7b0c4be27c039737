"""Fast requantization: compute a layer's quantized output in fewer operations, and detect outputs near a tie.

    exact   q = saturate(rint(y / s) + zp)             y of several f32 operations, as in `formula`
    fast    u = y / s + zp + 0.5 + half                in f32
            q = saturate(floor(u))                     for fraction(u) >= 2 * half

q is from lo to lo + 255. A tie is the middle between two integers. If y / s + zp is at most `half` from a tie, then
fraction(u) is below 2 * half: the output is near a tie. For all other outputs, both forms give the same integer. `half`
is the error of u plus the half-width of the band of outputs to compute again; fraction(u) therefore shows all of them.

If y is a sum of integers times constants, u is a chain of fused multiply-adds whose constants include scales and zero
points. If y depends on the integer of an earlier quantize, this integer is floor(v), and v is the u of the earlier
quantize. Kernels compute floor(v) in f32: v - lo + 256 is saturated to [256.25, 511.75], a range in which f32 has 15
bits of fraction, and rounded down.

Kernels round 2**16 * u to an s32: the upper 16 bits are the stored integer, the lower 16 bits the fraction. If |u| is
above 2**15 or u is NaN, x86 rounds to -2**31, and the fraction 0 counts as near a tie. Saturated values can also count
as near. If many values saturate to the least integer, as after a ReLU, u is kept at least a quarter above this integer,
so these values do not count as near. If y depends on only two bytes, `exhaustive_requantize` looks for constants with
which u decides all ties as y does; then no output counts as near.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphq.kernels.lanes import requantize
from graphq.kernels.lanes.exhaustive_requantize import ONE, Byte, find_constants
from graphq.kernels.lanes.expression import Expr, const, maximum, op, walk
from graphq.kernels.lanes.stores import Pairs

STEP = 2.0**-15
"""The distance between neighboring f32 from 256 to 512, the range of u for quantizes inside an epilogue."""
UNIT = 2.0**-24
_WIDEST = 0.125
"""If `half` is below this limit, saturated values do not count as near a tie; otherwise every value counts as near."""

ValuesByExpr = Mapping[Expr, np.ndarray]
"""The constants that loads of an expression read: one number for all columns, or one per column."""


class Rounding(NamedTuple):
    """A quantize: its result q, its operand y, and its parameters (one number, or one per column).

    If y is the sum of a layer, y * `inverse` is rounded. Outputs for which the expression `near` is true are computed
    again; they are at most `width` steps from a tie. If y depends only on quantized bytes, the quotient y / scale is
    rounded, as in the graph, and `near` is None.
    """

    q: Expr
    y: Expr
    dtype: str
    scales: np.ndarray
    zps: np.ndarray
    inverse: Expr | None = None
    near: Expr | None = None
    width: np.ndarray | None = None


class Affine(NamedTuple):
    """A value as a constant plus a sum of integers times factors, in f64: one number, or one per column."""

    factors: dict[Expr, np.ndarray]
    constant: np.ndarray

    @staticmethod
    def integer(x: Expr) -> Affine:
        """The affine form of a single integer: factor 1, constant 0."""
        return Affine({x: np.ones(1)}, np.zeros(1))

    @property
    def of_bytes(self) -> bool:
        """Whether all integers are bytes; no integer is then the anchor's s32 sum."""
        return all(is_byte(x) for x in self.factors)

    def times(self, factor: np.ndarray) -> Affine:
        """Multiply by a factor, in f64."""
        return Affine({x: f * factor for x, f in self.factors.items()}, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """The sum of two affine forms."""
        factors = dict(self.factors)
        for x, f in other.factors.items():
            factors[x] = factors.get(x, np.zeros(())) + f
        return Affine(factors, self.constant + other.constant)


def is_byte(x: Expr) -> bool:
    """Whether an s32 expression holds an 8-bit integer: a loaded byte or the result of a quantize."""
    return requantize.byte_type(x) is not None


def affine(y: Expr, numbers: ValuesByExpr) -> Affine | None:
    """Write y as a constant plus multiples of bytes and of the anchor's integer sum, exactly; None if impossible."""
    forms: dict[Expr, Affine | None] = {}

    def of(node: Expr) -> Affine | None:
        if node not in forms:
            forms[node] = _affine(node, of, numbers)
        return forms[node]

    return of(y)


def _affine(node: Expr, of: Callable[[Expr], Affine | None], numbers: ValuesByExpr) -> Affine | None:
    """The affine form of one node (see `affine`); `of` returns the forms of the node's operands."""
    if node in numbers:
        return Affine({}, numbers[node].astype(np.float64).reshape(-1))
    if node.op == "const" and node.dtype != "bool":
        return Affine({}, np.full(1, float(node.value)))
    if is_byte(node):
        return Affine.integer(node)
    if node.op == "to_f32":
        return of(node.args[0])
    if node.dtype != "s32" and node.op not in ("add", "sub", "mul"):
        return None
    a, b = (of(x) for x in node.args) if len(node.args) == 2 else (None, None)
    if node.dtype == "s32" and (a is None or b is None or not (a.of_bytes and b.of_bytes)):
        return Affine.integer(node) if any(x.op == "acc" for x in walk(node)) else None
    if a is None or b is None:
        return None
    if node.op in ("add", "sub"):
        return a.plus(b if node.op == "add" else b.times(np.full(1, -1.0)))
    if node.op == "mul" and not (a.factors and b.factors):
        return a.times(b.constant) if a.factors else b.times(a.constant)
    return None


class Spread(NamedTuple):
    """An interval that contains a value, and the error of computing it, in f64: one number, or one per column."""

    least: np.ndarray
    most: np.ndarray
    error: np.ndarray

    @staticmethod
    def between(a: np.ndarray, b: np.ndarray) -> Spread:
        """The spread of a value between `a` and `b` that is computed exactly."""
        return Spread(np.minimum(a, b), np.maximum(a, b), np.zeros(1))

    @staticmethod
    def constant(x: np.ndarray) -> Spread:
        """The spread of a constant that is rounded to f32."""
        return Spread(x, x, np.abs(x.astype(np.float32) - x))

    @property
    def size(self) -> np.ndarray:
        """The largest absolute value in the interval."""
        return np.maximum(np.abs(self.least), np.abs(self.most))

    def plus(self, other: Spread, sign: int = 1) -> Spread:
        """The spread of the sum or difference of two values."""
        least, most = (other.least, other.most) if sign > 0 else (-other.most, -other.least)
        return Spread(self.least + least, self.most + most, self.error + other.error)

    def times(self, other: Spread) -> Spread:
        """The spread of the product of two values."""
        ends = [a * b for a in (self.least, self.most) for b in (other.least, other.most)]
        error = self.error * other.size + other.error * self.size
        return Spread(np.minimum.reduce(ends), np.maximum.reduce(ends), error)

    def rounded(self, most: float | np.ndarray = np.inf) -> Spread:
        """The spread after rounding to f32 numbers of absolute value at most `most`."""
        return self._replace(error=self.error + half_unit(np.minimum(self.size, most)))

    def converted(self) -> Spread:
        """The spread of integers after conversion to f32; the conversion is exact below 2**24."""
        return self._replace(error=self.error + np.where(self.size < 2.0**24, 0, half_unit(self.size)))


def half_unit(size: np.ndarray) -> np.ndarray:
    """The largest error of rounding a number of absolute value at most `size` to f32."""
    size = size * (1 + 2.0**-10)
    return np.where(size > 0, UNIT * np.exp2(np.floor(np.log2(np.where(size > 0, size, 1)))), 0.0)


def _range(x: Expr) -> tuple[float, float]:
    quantize = requantize.unquantized(x)
    lo = requantize.RANGES[quantize[1] if quantize else x.value[1]][0]
    return lo, lo + 255.0


def _integers(u: Affine, most: np.ndarray) -> dict[Expr, Spread] | None:
    """A spread for each integer in the affine form u, if |u| is at most `most`; None with two accumulators.

    All other integers are bytes, so the bound of |u| also bounds an accumulator (the sum of an anchor). With two
    accumulators, the bound of |u| bounds only their sum.
    """
    bytes_ = {x: Spread.between(*np.array([_range(x)]).T) for x in u.factors if is_byte(x)}
    rest = [x for x in u.factors if x not in bytes_]
    others = Spread.between(u.constant, u.constant)
    for x, spread in bytes_.items():
        others = others.plus(spread.times(Spread.between(u.factors[x], u.factors[x])))
    if len(rest) > 1:
        return None
    for x in rest:
        f = np.abs(u.factors[x])
        size = np.where(f > 0, (most + others.size) / np.where(f > 0, f, 1), 0.0)
        bytes_[x] = Spread.between(-size, size)
    return bytes_


def _as_stated(y: Expr, integers: Mapping[Expr, Spread], numbers: ValuesByExpr) -> Spread:
    """The interval and the error of y if its expression is computed operation by operation."""
    spreads = dict(integers)

    def of(node: Expr) -> Spread:
        if node not in spreads:
            spreads[node] = spread_of(node)
        return spreads[node]

    def spread_of(node: Expr) -> Spread:
        if node in numbers or node.op == "const":
            v = numbers[node].astype(np.float64).reshape(-1) if node in numbers else np.full(1, float(node.value))
            return Spread.between(v, v)
        a, *b = map(of, node.args)
        if node.op == "to_f32":
            return a.converted()
        y = a.times(b[0]) if node.op == "mul" else a.plus(b[0], 1 if node.op == "add" else -1)
        return y.rounded() if node.dtype == "f32" else y

    return of(y)


def span(dtype: str, zps: np.ndarray) -> np.ndarray:
    """The largest distance between an integer of a dtype and one of the zero points."""
    lo = requantize.RANGES[dtype][0]
    return np.asarray(np.maximum(np.abs(lo - zps), np.abs(lo + 255 - zps)))


def error_bound(sum_: Affine, y: Expr, r: Rounding, numbers: ValuesByExpr, stored: bool) -> np.ndarray:
    """Bound the difference between u computed from y, operation by operation, and u computed by multiply-adds.

    The bound, in steps of the quantize, holds for u from lo to lo + 255.25 (see the module). If `stored`, ONE * u is
    computed, with ONE = 2**16. Rounding it to f32 moves it by at most a quarter, because f32 below 2**23 are at most a
    half apart. Rounding the f32 to an integer moves it by at most a half.
    """
    lo = requantize.RANGES[r.dtype][0]
    most = span(r.dtype, r.zps)
    u = sum_.times(1 / r.scales)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        integers = _integers(u, most)
        if integers is None:
            return np.full(1, np.inf)
        stated = _as_stated(y, integers, numbers)
        # half_unit bounds the rounding of the quotient, or of the product with the inverse
        slow = stated.error / r.scales + half_unit(most)
        fast = _fast_error(u, integers, r.zps + 0.5 + (0 if stored else 256 - lo), 127.5 if stored else 511.25)
        return np.asarray((slow + fast + (0.5 / ONE if stored else 0)) * (1 + 2.0**-10))


def _fast_error(u: Affine, integers: Mapping[Expr, Spread], shift: np.ndarray, most: float) -> np.ndarray:
    """Bound the error of u + `shift`, computed by multiply-adds, if the absolute value of the result is at most `most`.

    Quantized bytes enter as numbers from 256 to 511, and the constant corrects this. The error includes the roundings
    of the factors and of the constant.
    """
    constant, terms = u.constant + shift, []
    for x, f in u.factors.items():
        factor = Spread.constant(f)
        if requantize.unquantized(x) is not None:
            constant = constant + (_range(x)[0] - 256) * f
            terms.append(Spread.between(np.full(1, 256.0), np.full(1, 511.0)).times(factor))
        else:
            terms.append(integers[x].converted().times(factor))
    total = Spread.between(constant - _WIDEST, constant + _WIDEST).rounded()
    for n, term in enumerate(terms, 1):
        total = total.plus(term).rounded(most if n == len(terms) else np.inf)
    return total.error


def offset(zps: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The constant that is added to y / s to get u."""
    return 0.5 + zps + np.where(half < _WIDEST, half, 0.0)


def fraction_limit(half: np.ndarray) -> np.ndarray:
    """2**16 times the limit for fraction(u); an output below the limit counts as near a tie.

    If `half` is at least `_WIDEST`, the limit is 1, and every output counts as near.
    """
    return np.where(half < _WIDEST, np.ceil(2 * half * ONE), ONE).astype(np.int32)


def without_relu(y: Expr) -> tuple[Expr, bool]:
    """The operand of a ReLU and True; if y is not a ReLU, y itself and False."""
    is_relu = y.op == "max" and y.args[0] is const(0)
    return (y.args[1], True) if is_relu else (y, False)


class FastForm(NamedTuple):
    """A quantize in the fast form.

    The operand y of the quantize is `plain`, or the ReLU of `plain`. `u` is the affine form of y / s, or None. `error`
    is the result of `error_bound`, and `tie_free` the result of `FastRequantize.tie_free`.
    """

    rounding: Rounding
    plain: Expr
    is_relu: bool
    u: Affine | None
    error: np.ndarray
    tie_free: Affine | None = None


class FastRequantize:
    """Rewrites the quantizes of an epilogue into their fast forms, one after another.

    `numbers` are the constants that loads read. `parameter` makes an operand from f32 numbers (one for all columns, or
    one per column) and a name for their role. `floors` maps each inner quantize to an f32 expression and an integer;
    their sum is the quantized integer.
    """

    def __init__(self, numbers: ValuesByExpr, parameter: Callable[[np.ndarray, str], Expr]) -> None:
        self.numbers, self.parameter = numbers, parameter
        self.floors: dict[Expr, tuple[Expr, int]] = {}

    def build(self, roundings: Iterable[Rounding], stored: Expr) -> tuple[Expr, np.ndarray, Pairs]:
        """Make the parts `distance`, `band` and `fast` of a `lanes.stores.SecondLook`.

        `stored` is the expression that the Store stores, such as a quantize among `roundings`.
        """
        forms: list[FastForm] = []
        for r in roundings:
            plain, is_relu = without_relu(r.y)
            sum_ = affine(plain, self.numbers)
            if sum_ is not None and len(sum_.factors) > (0 if r.near is not None else 1):
                bound = error_bound(sum_, plain, r, self.numbers, r.q is stored)
                u = sum_.times(1 / r.scales)
                forms.append(FastForm(r, plain, is_relu, u, bound, self.tie_free(r, is_relu, u, bound, forms, stored)))
            elif r.near is not None:
                forms.append(FastForm(r, plain, is_relu, None, np.full(1, STEP)))
        half = np.zeros(1)
        for t in forms:
            if t.tie_free is None:
                half = np.maximum(half, t.error if t.rounding.width is None else t.error + t.rounding.width)
        if any(t.u is None for t in forms):
            half = np.ceil(half / STEP) * STEP  # offsets are then exact in f32
        with np.errstate(over="ignore"):  # infinite numbers count as near a tie
            return self.quantizes(forms, half, stored)

    def tie_free(self, r: Rounding, is_relu: bool, u: Affine, bound: np.ndarray, before: Sequence[FastForm],
                 stored: Expr) -> Affine | None:
        """The multiply-adds for ONE * u that round every case of a sum of two bytes correctly, or None."""
        if r.near is not None or r.q is not stored or len(u.factors) != 2 or not u.of_bytes \
                or max(x.size for x in (*u.factors.values(), u.constant, r.zps, bound)) > 1:
            return None
        floors = {requantize.quantized(t.rounding.q, t.rounding.dtype) for t in before}
        bytes_ = [Byte(x, (requantize.unquantized(x) or (x, x.value[1]))[1], float(f.item()),
                       256 - int(_range(x)[0]) if x in floors else 0) for x, f in u.factors.items()]
        lowest = int(r.zps.item()) if is_relu else requantize.RANGES[r.dtype][0]
        constant = float((u.constant + r.zps).item() + 0.5)
        solution = find_constants(r.q, r.dtype, lowest, bytes_, constant, float(bound.item()), self.numbers)
        if solution is None:
            return None
        return Affine({x: np.full(1, f) for x, f in zip(u.factors, solution[0], strict=True)}, np.full(1, solution[1]))

    def quantizes(self, forms: Sequence[FastForm], half: np.ndarray, stored: Expr) -> tuple[Expr, np.ndarray, Pairs]:
        """Make the result of `build` from these forms; all their bands have the half-width `half`."""
        distance, pairs = None, []
        for k, (r, plain, is_relu, sum_, _, tie_free) in enumerate(forms):
            lo, shift = requantize.RANGES[r.dtype][0], offset(r.zps, half)
            least = 0.25 + (r.zps if is_relu else np.full(1, lo))
            if r.q is stored:
                saturates = (r.zps == lo).any()  # values below the least integer saturate, so they are not near a tie
                if tie_free is not None:
                    u, limits = self.sum(k, tie_free.factors, tie_free.constant), is_relu and not saturates
                else:
                    u, limits = self.u(k, r, plain, sum_, shift, ONE), is_relu or saturates
                if limits:
                    u = maximum(self.parameter(ONE * least, f"least {k}"), u)  # this maximum keeps NaN
                steps = op("round_s32", u)
                pairs.append((r.q, op(f"high_{r.dtype}", steps)))
                if tie_free is not None:
                    continue
            else:
                u = requantize.saturate(self.u(k, r, plain, sum_, shift + (256 - lo)),
                                  self.parameter(least + (256 - lo), f"least {k}"))
                bits = op("as_s32", u)
                steps = op("shl", bits, 1)
                # `and` computes floor(u) in one operation; x86 needs two for floor.
                self.floors[requantize.quantized(r.q, r.dtype)] = op("as_f32", op("and", bits, -1 << 15)), lo - 256
                pairs.append((r.q, op("add", op("shr", bits, 15), lo)))
            distance = steps if distance is None else op("min_u16", distance, steps)
        assert distance is not None
        return distance, fraction_limit(half), tuple(pairs)

    def u(self, k: int, r: Rounding, plain: Expr, sum_: Affine | None, shift: np.ndarray, scale: float = 1.0) -> Expr:
        """The u of quantize k: y / s plus an offset, times `scale`."""
        if sum_ is None:
            assert r.inverse is not None
            inverse = r.inverse if scale == 1 else r.inverse * scale
            return op("fma", plain, inverse, self.parameter(scale * shift, f"offset {k}"))
        for x, factor in sum_.factors.items():
            shift = shift + self.value(x)[1] * factor
        return self.sum(k, {x: scale * f for x, f in sum_.factors.items()}, scale * (shift + sum_.constant))

    def value(self, x: Expr) -> tuple[Expr, int]:
        """A quantized integer, as an f32 expression and an integer to add to it."""
        return self.floors.get(x, (op("to_f32", x), 0))

    def sum(self, k: int, factors: Mapping[Expr, np.ndarray], constant: np.ndarray) -> Expr:
        """The multiply-adds of quantize k: the constant plus each integer times its factor."""
        total = self.parameter(constant, f"offset {k}")
        for n, (x, factor) in enumerate(factors.items()):
            total = op("fma", self.value(x)[0], self.parameter(factor, f"factor {k} {n}"), total)
        return total
