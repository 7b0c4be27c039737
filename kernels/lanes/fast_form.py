"""The fast form of a quantize in an epilogue: it has fewer operations, and is right except near a rounding tie.

    exact   q = saturate(rint(y / s) + zp)             y computed operation by operation, as in `formula`
    fast    u = y / s + zp + 0.5 + half                in f32
            q = saturate(floor(u))                     for fraction(u) >= 2 * half

q is from lo to lo + 255. A tie is the middle between two integers. The constant `half` bounds the error of u, plus the
half-width of the band around ties that the caller asks for. It shifts u, so that fraction(u) < 2 * half if y / s + zp
is at most `half` from a tie: kernels compute such outputs again. For all other outputs, both forms give the same
integer.

If y is a sum of integers times constants, u is a chain of fused multiply-adds whose constants include scales and zero
points. If y depends on the integer of an earlier quantize, this integer is floor(v), and v is the u of the earlier
quantize. Kernels compute floor(v) - lo + 256 in f32, with the earlier quantize's lo. Before they round down, they
saturate v - lo + 256 to [256.25, 511.75], where f32 has 15 bits of fraction.

Kernels round 2**16 * u to an s32: the upper 16 bits are the stored integer, the lower 16 bits the fraction. If u is
NaN, the fraction is 0, which counts as near a tie. If |u| is above 2**15, machines give -2**31, whose fraction is 0 as
well, or the nearest s32, whose upper half saturates as u does. Values that saturate to the least integer, as after a
ReLU, would often count as near; u is therefore kept at least a quarter above this integer.

The expressions depend only on the structure of an epilogue, and are derived once per structure. `fast_form` then fills
in the constants of a layer, and computes `half` from them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Literal, NamedTuple

import numpy as np

from graphq.kernels.lanes.elementary import NEAR, NEAR_ERROR
from graphq.kernels.lanes.epilogues import FastForm, Pairs
from graphq.kernels.lanes.expression import BASIC, Expr, const, make, maximum, op, substitute, walk
from graphq.kernels.lanes.quantizing import RANGES, byte_type, quantized, saturate, unquantized

ONE = 2.0**16
"""The scale of fixed-point results: an s32 is ONE times the number, so the upper half of the s32 is the integer."""
STEP = 2.0**-15
"""The distance between neighboring f32 from 256 to 512, the range of u for quantizes inside an epilogue."""
UNIT = 2.0**-24
"""The largest relative error of rounding to f32."""
_WIDEST = 0.125
"""If `half` is below this limit, saturated values do not count as near a tie; otherwise every value counts as near."""

Numbers = Mapping[Expr, np.ndarray]
"""The constants that loads of an expression read: one number for all columns, or one per column."""


class Affine(NamedTuple):
    """A value as a constant plus a sum of integers times factors.

    The integers are bytes, or the anchor's s32 sum. Constant and factors are expressions of constants, for `in_f64`.
    """

    factors: dict[Expr, Expr]
    constant: Expr

    def times(self, factor: Expr) -> Affine:
        """Multiply by a factor."""
        return Affine({x: f * factor for x, f in self.factors.items()}, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """The sum of two affine forms."""
        more = {x: self.factors[x] + f if x in self.factors else f for x, f in other.factors.items()}
        return Affine({**self.factors, **more}, self.constant + other.constant)


@lru_cache(maxsize=1024)
def affine(y: Expr, known: frozenset[Expr]) -> Affine | None:
    """Write y as a constant plus multiples of integers, exactly; None if impossible. Loads in `known` are constants."""
    if y in known or y.op == "const" and y.dtype != "bool":
        return Affine({}, y if y.dtype == "f32" else op("to_f32", y))
    if byte_type(y) is not None:
        return Affine({y: const(1.0)}, const(0.0))
    if y.op == "to_f32":
        return affine(y.args[0], known)
    if y.dtype != "s32" and y.op not in ("add", "sub", "mul"):
        return None
    a, b = (affine(x, known) for x in y.args) if len(y.args) == 2 else (None, None)
    if y.dtype == "s32" and not (a and b and all(map(byte_type, (*a.factors, *b.factors)))):
        return Affine({y: const(1.0)}, const(0.0)) if any(x.op == "acc" for x in walk(y)) else None
    if a is None or b is None:
        return None
    if y.op in ("add", "sub"):
        return a.plus(b if y.op == "add" else b.times(const(-1.0)))
    if y.op == "mul" and not (a.factors and b.factors):
        return a.times(b.constant) if a.factors else b.times(a.constant)
    return None


def in_f64(exprs: Iterable[Expr], numbers: Numbers) -> list[np.ndarray]:
    """Compute expressions of constants in f64: one number each, or one per column."""
    done: dict[Expr, np.ndarray] = {}
    exprs = tuple(exprs)
    for node in walk(*exprs):
        if node in numbers or node.op == "const":
            done[node] = np.asarray(numbers.get(node, node.value), np.float64).reshape(-1)
        else:
            args = [done[a] for a in node.args]
            done[node] = args[0] if node.op == "to_f32" else BASIC[node.op].numpy(*args)
    return [done[x] for x in exprs]


class Rounding(NamedTuple):
    """A quantize q that gets a fast form. Its operand is `plain`, or the ReLU of `plain`.

    `u` is the affine form of plain / s. Without it, u is plain * `inverse`. `inverse` is 1 / s, `zp` the zero point (an
    f32), and `low` the least integer. `error` bounds the error of `plain` if a function of `NEAR` computes it.
    """

    q: Expr
    plain: Expr
    is_relu: bool
    inverse: Expr
    u: Affine | None
    zp: Expr
    low: int
    error: float


@lru_cache(maxsize=256)
def _roundings(quantizes: tuple[Expr, ...], known: frozenset[Expr]) -> tuple[Rounding, ...]:
    """The quantizes that get a fast form (see `fast_form`)."""
    found = []
    for q in quantizes:
        y, of_sum = q.args[0], q.op == "quantize_to"
        *_, zp, low, _ = q.args
        is_relu = y.op == "max" and y.args[0] is const(0)
        plain, inverse = y.args[1] if is_relu else y, q.args[1] if of_sum else 1.0 / q.args[1]
        u = affine(plain, known)
        u = u.times(inverse) if u is not None and len(u.factors) >= (1 if of_sum else 2) else None
        if of_sum or u is not None:
            near = NEAR.get(plain.op)
            found.append(Rounding(q, near(*plain.args) if near else plain, is_relu, inverse, u, zp, int(low.value),
                                  NEAR_ERROR if near else 0.0))
    return tuple(found)


class Parameter(NamedTuple):
    """A constant of a fast form: an expression for `in_f64`, plus `moves` * `half` (plus 0 if `half` >= _WIDEST)."""

    role: str
    number: Expr
    moves: float


class Derived(NamedTuple):
    """The fast form of a structure. Loads of slots -1, -2, ... stand for its parameters."""

    pairs: Pairs
    distance: Expr
    parameters: tuple[Parameter, ...]


def _place(number: int) -> Expr:
    """The load that stands for a parameter."""
    return make("load", (), "f32", (-1 - number, "f32", "scalar"))


@lru_cache(maxsize=256)
def _derived(quantizes: tuple[Expr, ...], known: frozenset[Expr], stored: Expr, saturates: bool) -> Derived:
    """Derive the fast form of quantizes. If `saturates`, no value below the least integer counts as near a tie."""
    floors: dict[Expr, tuple[Expr, int]] = {}  # quantized integers as sums of an f32 expression and an integer
    parameters: list[Parameter] = []
    pairs, distances = [], []

    def parameter(role: str, number: Expr, moves: float = 0.0) -> Expr:
        parameters.append(Parameter(role, number, moves))
        return _place(len(parameters) - 1)

    for k, r in enumerate(_roundings(quantizes, known)):
        up, scale = (0, ONE) if r.q is stored else (256 - r.low, 1.0)
        dtype = "s8" if r.low else "u8"
        shift, least = r.zp + (0.5 + up), (r.zp if r.is_relu else const(r.low)) + (0.25 + up)
        if r.u is None:
            u = op("fma", r.plain, r.inverse * scale if r.q is stored else r.inverse,
                   parameter(f"offset {k}", shift * scale, scale))
        else:
            values = [floors.get(x, (op("to_f32", x), 0)) for x in r.u.factors]
            for (_, integer), f in zip(values, r.u.factors.values(), strict=True):
                shift = shift + f * integer
            u = parameter(f"offset {k}", (shift + r.u.constant) * scale, scale)
            for n, ((value, _), f) in enumerate(zip(values, r.u.factors.values(), strict=True)):
                u = op("fma", value, parameter(f"factor {k} {n}", f * scale), u)
        if r.q is stored:
            if r.is_relu or saturates:
                u = maximum(parameter(f"least {k}", least * scale), u)  # this order of the operands keeps NaN
            steps = op("round_s32", u)
            pairs.append((r.q, op(f"high_{dtype}", steps)))
        else:
            bits = op("as_s32", saturate(u, parameter(f"least {k}", least)))
            steps = op("shl", bits, 1)
            # Clearing the fraction bits by `and` is floor(u) in one operation; a CPU's floor may take two.
            floors[quantized(r.q, dtype)] = op("as_f32", op("and", bits, -1 << 15)), r.low - 256
            pairs.append((r.q, op("add", op("shr", bits, 15), r.low)))
        distances.append(steps)
    return Derived(tuple(pairs), reduce(lambda a, b: op("min_u16", a, b), distances), tuple(parameters))


@lru_cache(maxsize=256)
def _filled(derived: Derived, loads: tuple[Expr, ...]) -> tuple[Pairs, Expr]:
    """Put `loads` in place of the parameters. Returns the pairs and the distance."""
    new, done = dict(zip(map(_place, range(len(loads))), loads, strict=True)), dict[Expr, Expr]()
    return tuple([(q, substitute(x, new, done)) for q, x in derived.pairs]), substitute(derived.distance, new, done)


def fast_form(bands: Mapping[Expr, tuple[np.ndarray, float]], stored: Expr, numbers: Numbers,
              parameter: Callable[[np.ndarray, Literal["f32", "s32"], str], Expr]) -> FastForm | None:
    """Make the fast form of an epilogue, whose result is `stored`; None if no quantize gets one.

    `bands` has the quantizes to compute fast, in order: results of `quantize` that depend on the anchor's sum, and
    results of `quantize_quotient` that depend on bytes only. If a quantize has the band (h, r), quotients q that are at
    most h + r * |q| from a tie count as near a tie as well. Operands and quotients must be finite. `numbers` are the
    constants that loads read. `parameter(numbers, dtype, role)` makes an operand. Bands may depend on open sizes.
    """
    quantizes, known = tuple(bands), frozenset(numbers)
    roundings = _roundings(quantizes, known)
    if not roundings:
        return None
    with np.errstate(all="ignore"):  # infinities are allowed: they count as near a tie
        half = reduce(np.maximum, [_half(r, bands[r.q], numbers, r.q is stored) for r in roundings])
        if any(r.u is None for r in roundings):
            half = np.ceil(half / STEP) * STEP  # rounded up to a multiple of STEP: offsets are then exact in f32
        saturates = any(bool((in_f64([r.zp], numbers)[0] == r.low).any()) for r in roundings if r.q is stored)
        derived = _derived(quantizes, known, stored, saturates)
        moved = np.where(half < _WIDEST, half, 0.0)
        loads = [parameter(x + p.moves * moved if p.moves else x, "f32", p.role) for p, x in zip(
            derived.parameters, in_f64([p.number for p in derived.parameters], numbers), strict=True)]
        limit = np.where(half < _WIDEST, np.ceil(2 * half * ONE), ONE).astype(np.int32)
    pairs, distance = _filled(derived, tuple(loads))
    return FastForm(pairs, distance, parameter(limit, "s32", ""))


class Spread(NamedTuple):
    """An interval that contains a value, and the error of computing it, in f64: one number, or one per column."""

    least: np.ndarray
    most: np.ndarray
    error: np.ndarray

    @staticmethod
    def between(a: np.ndarray, b: np.ndarray) -> Spread:
        """The spread of a value between `a` and `b` that is computed exactly."""
        return Spread(np.minimum(a, b), np.maximum(a, b), np.zeros(1))

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


def spread_of(y: Expr, spreads: dict[Expr, Spread], numbers: Numbers) -> Spread:
    """The spread of y, computed operation by operation from its leaves: constants, loads in `numbers`, and `spreads`.

    Adds the spreads of all nodes of y to `spreads`.
    """
    if y in spreads:
        return spreads[y]
    if y in numbers or y.op == "const":
        (number,) = in_f64((y,), numbers)
        spread = Spread.between(number, number)
    else:
        a, *b = (spread_of(x, spreads, numbers) for x in y.args)
        if y.op == "to_f32":
            spread = a.converted()
        else:
            spread = a.times(b[0]) if y.op == "mul" else a.plus(b[0], 1 if y.op == "add" else -1)
            spread = spread.rounded() if y.dtype == "f32" else spread
    spreads[y] = spread
    return spread


def _half(r: Rounding, band: tuple[np.ndarray, float], numbers: Numbers, stored: bool) -> np.ndarray:
    """The half-width of the band around ties that a quantize needs, in steps: `band` plus the error of u.

    The error is the difference between u computed by the exact form, operation by operation, and u computed by
    multiply-adds, for u from lo to lo + 255.25. If `stored`, the kernel computes ONE * u and rounds it to an integer.
    This adds at most 1/2, and the rounding of ONE * u to f32 at most 1/4.
    """
    lo, (zps, inverse) = r.low, in_f64((r.zp, r.inverse), numbers)
    most = np.maximum(np.abs(lo - zps), np.abs(lo + 255 - zps))
    half = band[0] + most * band[1]
    if r.u is None:
        return half + STEP + (r.error * inverse + STEP if r.error else 0.0)  # a unit in its last place is at most STEP
    constant, *values = in_f64((r.u.constant, *r.u.factors.values()), numbers)
    factors = dict(zip(r.u.factors, values, strict=True))
    integers = _integers(factors, constant, most)
    if integers is None:
        return np.full(1, np.inf)
    # `half_unit` bounds the rounding of y / s, or of y times the inverse scale
    exact = spread_of(r.plain, dict(integers), numbers).error * inverse + half_unit(most)
    shift, end = (zps + 0.5, 127.5) if stored else (zps + 0.5 + 256 - lo, 511.25)
    error = exact + _fast_error(factors, constant + shift, integers, end) + (0.5 / ONE if stored else 0)
    return half + np.asarray(error * (1 + 2.0**-10))


def _range(x: Expr) -> tuple[float, float]:
    lo = RANGES[byte_type(x) or ""][0]
    return lo, lo + 255.0


def _integers(factors: Mapping[Expr, np.ndarray], constant: np.ndarray, most: np.ndarray) -> dict[Expr, Spread] | None:
    """A spread for each integer of the affine form u, if |u| is at most `most`; None with two accumulators.

    If one integer is an accumulator (the sum of an anchor), all others are bytes, so the bound of |u| also bounds the
    accumulator. With two accumulators, the bound of |u| bounds only their sum.
    """
    found = {x: Spread.between(*np.array([_range(x)]).T) for x in factors if byte_type(x) is not None}
    rest, others = [x for x in factors if x not in found], Spread.between(constant, constant)
    for x, spread in found.items():
        others = others.plus(spread.times(Spread.between(factors[x], factors[x])))
    if len(rest) > 1:
        return None
    for x in rest:
        f = np.abs(factors[x])
        size = np.where(f > 0, (most + others.size) / np.where(f > 0, f, 1), 0.0)
        found[x] = Spread.between(-size, size)
    return found


def _fast_error(factors: Mapping[Expr, np.ndarray], constant: np.ndarray, integers: Mapping[Expr, Spread],
                most: float) -> np.ndarray:
    """Bound the error of an affine form, computed by multiply-adds, if its absolute value is at most `most`.

    Quantized bytes enter as numbers from 256 to 511, and the constant corrects this. The error includes the roundings
    of the factors and of the constant.
    """
    terms = []
    for x, f in factors.items():
        if unquantized(x) is not None:
            constant = constant + (_range(x)[0] - 256) * f
            integer = Spread.between(np.full(1, 256.0), np.full(1, 511.0))
        else:
            integer = integers[x].converted()
        terms.append(integer.times(Spread(f, f, np.abs(f.astype(np.float32) - f))))
    total = Spread.between(constant - _WIDEST, constant + _WIDEST).rounded()
    for n, term in enumerate(terms, 1):
        total = total.plus(term).rounded(most if n == len(terms) else np.inf)
    return total.error
