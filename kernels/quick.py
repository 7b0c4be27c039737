"""Quantizes after an anchor in few operations, which also say how near to a tie they are.

    exact   q = saturate(rint(y / s) + zp)             y of several f32 operations, as `formula` has them
    quick   u = y / s + zp + 0.5 + half                in f32
            q = saturate(whole(u))                     for fraction(u) >= 2 * half

q lies between lo and lo + 255. Within `half` of a tie fraction(u) is below 2 * half; there, and only there, the two may
differ, as `half` is larger than the difference of both u, and larger than the band within which outputs are settled by
literal sums. Where y is a sum of integers times constants, u is that of fused multiply-adds with other constants, which
saves an operation each for scales and zero points; the integers of a quantize before it are whole(u) of that one.

What is stored is the upper half of round(2**16 * u), an s32, so the lower half is the fraction. Saturated values may be
near a tie; but where the least number stands for all below it, as after a ReLU, u is at least a quarter more than that.
Beyond 2**15, and for NaN, x86 rounds to -2**31, whose fraction 0 is near. The integers of a quantize that is not stored
are used as floats: u - lo + 256, saturated to [256.25, 511.75], is floor(u - lo + 256), and has 15 bits of fraction.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphq.kernels import math
from graphq.kernels.expression import BYTES, Expr, const, maximum, op, walk
from graphq.kernels.stores import Pairs

STEP = 2.0**-15
"""The last bit of f32 from 256 to 512."""
ONE = 2.0**16
"""What stands for 1 where u is an s32."""
UNIT = 2.0**-24
_WIDEST = 0.125
"""From here on saturated values would be near; then all outputs count as near."""

Numbers = Mapping[Expr, np.ndarray]
"""Loads and what they load, one number or one a column."""


@dataclass(frozen=True, eq=False)
class Rounding:
    """A quantize's result q of y, and its parameters: one number or one a column.

    Right after an anchor y * `inverse` is rounded, and outputs of which `near` holds are settled, those at most `width`
    of a step from a tie. After a quantize the quotient is, exactly.
    """

    q: Expr
    y: Expr
    dtype: str
    scales: np.ndarray
    zps: np.ndarray
    inverse: Expr | None = None
    near: Expr | None = None
    width: np.ndarray | None = None


@dataclass(frozen=True)
class Affine:
    """A value as `factors` times integers, by these, and a constant; of f64, each one number or one a column.

    `gross` are the sizes of what was added up to a factor (a constant: None), and `products` how often terms were
    multiplied.
    """

    factors: dict[Expr, np.ndarray]
    constant: np.ndarray
    gross: dict[Expr | None, np.ndarray]
    products: int = 0

    @staticmethod
    def integer(x: Expr) -> Affine:
        """An integer itself."""
        return Affine({x: np.ones(1)}, np.zeros(1), {x: np.ones(1), None: np.zeros(1)})

    @staticmethod
    def number(x: np.ndarray) -> Affine:
        """A constant."""
        return Affine({}, x, {None: np.abs(x)})

    @property
    def of_bytes(self) -> bool:
        """Whether no integer holds the accumulator."""
        return all(is_byte(x) for x in self.factors)

    def times(self, factor: np.ndarray) -> Affine:
        """The multiple, with no rounding."""
        return Affine({x: f * factor for x, f in self.factors.items()}, self.constant * factor,
                      {x: f * np.abs(factor) for x, f in self.gross.items()}, self.products)

    def plus(self, other: Affine) -> Affine:
        """The sum."""
        factors, gross = dict(self.factors), dict(self.gross)
        for x, f in other.factors.items():
            factors[x] = factors.get(x, np.zeros(())) + f
        for key, size in other.gross.items():
            gross[key] = gross.get(key, np.zeros(())) + size
        return Affine(factors, self.constant + other.constant, gross, max(self.products, other.products))


def is_byte(x: Expr) -> bool:
    """Whether an s32 is one of 8 bits: what is loaded so, or a quantize's result."""
    if x.op == "load":
        return x.value[1] in BYTES and x.value[2] in ("vector", "column")
    return math.unquantized(x) is not None


def affine(y: Expr, numbers: Numbers) -> Affine | None:
    """y as a sum of bytes and of the integer that holds the accumulator, in exact arithmetic; None where it is none."""
    known: dict[Expr, Affine | None] = {}

    def of(node: Expr) -> Affine | None:
        if node not in known:
            known[node] = _affine(node, of, numbers)
        return known[node]

    return of(y)


def _affine(node: Expr, of: Callable[[Expr], Affine | None], numbers: Numbers) -> Affine | None:
    """See `affine`; `of` gives those of operands, which most nodes are told without."""
    if node in numbers:
        return Affine.number(numbers[node].astype(np.float64).reshape(-1))
    if node.op == "const" and node.dtype != "bool":
        return Affine.number(np.full(1, float(node.value)))
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
        y = a.times(b.constant) if a.factors else b.times(a.constant)
        return replace(y, products=max(a.products, b.products) + 1)
    return None


def error(u: Affine, y: Expr) -> np.ndarray:
    """How far two ways of computing u may lie from each other, in steps: the operations of y, and multiply-adds.

    Only for |u - offset| <= 256: then the accumulator's term is at most 256 and the others', as partial sums are. Each
    operation rounds its result by half a unit, of sizes before terms cancel. Both ways round an integer of 24 bits or
    more, too. Quantized bytes are taken as 256 to 511, and the constant makes up for it.
    """
    bytes_, constant, ratio = np.zeros(1), u.gross[None], np.zeros(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        for x, f in u.factors.items():
            if is_byte(x):
                wide = math.unquantized(x) is not None
                bytes_ = bytes_ + (512 if wide else 256) * u.gross[x]
                constant = constant + (384 if wide else 0) * np.abs(f)
            else:
                ratio = np.where(u.gross[x] == 0, 1.0, u.gross[x] / np.abs(f))
        most = (256 + bytes_ + constant) * np.maximum(ratio, 1.0)
        widest = max(np.max(most / np.abs(f), initial=0) for f in u.factors.values())
        terms = bytes_ + most * np.sign(ratio)
        rounded, partial = u.products + 1 + (0 if widest < 2.0**24 else 2), len(u.factors) - 1
        last = 512 + constant + (512 + most) * partial
        return np.asarray(UNIT * (rounded * terms + max(0, _sums(y, u) - 1) * most + 2 * 256 + last) + STEP / 2)


def _sums(y: Expr, u: Affine) -> int:
    """The sums of f32 from the integers of `u` to y."""
    todo, seen, count = [y], set(u.factors), 0
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(node.args)
            count += node.dtype == "f32" and node.op in ("add", "sub")
    return count


def offset(zps: np.ndarray, half: np.ndarray) -> np.ndarray:
    """What is added to y / s."""
    return np.asarray(0.5 + zps + np.where(half < _WIDEST, half, 0.0))


def band(half: np.ndarray) -> np.ndarray:
    """Below which a fraction is near a tie, s32: those are the lower 16 bits of an s32."""
    return np.where(half < _WIDEST, 2 * half * ONE, ONE).astype(np.int32)


def without_relu(y: Expr) -> tuple[Expr, bool]:
    """The operand of a ReLU, or y itself, and whether there is one."""
    is_relu = y.op == "max" and y.args[0] is const(0)
    return (y.args[1], True) if is_relu else (y, False)


@dataclass
class Quick:
    """The quick quantizes of an epilogue, one by one.

    `numbers` are those that operands load. `parameter` makes an operand of f32 numbers, one or one a column, in a role.
    """

    numbers: Numbers
    parameter: Callable[[np.ndarray, str], Expr]

    def __post_init__(self) -> None:
        self.wholes: dict[Expr, tuple[Expr, int]] = {}

    def make(self, roundings: Iterable[Rounding], stored: Expr) -> tuple[Expr, np.ndarray, Pairs]:
        """The distance, the band below which outputs may be near a tie, and the quantizes and what they may be.

        The lower half of the distance counts. `stored` is the result of the quantize whose bytes are stored, if any.
        """
        taken: list[tuple[Rounding, Expr, bool, Affine | None, np.ndarray]] = []
        for r in roundings:
            plain, is_relu = without_relu(r.y)
            sum_ = affine(plain, self.numbers)
            if sum_ is not None and len(sum_.factors) > (0 if r.near is not None else 1):  # of one byte: a table's
                sum_ = sum_.times(1 / r.scales)
                taken.append((r, plain, is_relu, sum_, error(sum_, plain)))
            elif r.near is not None:
                taken.append((r, plain, is_relu, None, np.full(1, STEP)))
        half = np.zeros(1)
        for r, *_, far in taken:
            half = np.maximum(half, far if r.width is None else far + r.width)
        half = np.ceil(half / STEP) * STEP
        with np.errstate(over="ignore"):  # what is infinite is near
            return self.quantizes(taken, half, stored)

    def quantizes(self, taken: Sequence[tuple[Rounding, Expr, bool, Affine | None, np.ndarray]], half: np.ndarray,
                  stored: Expr) -> tuple[Expr, np.ndarray, Pairs]:
        """What `make` gives, of the roundings that are `taken`, with bands of one width."""
        distance, pairs = None, []
        for k, (r, plain, is_relu, sum_, _) in enumerate(taken):
            lo, shift = math.RANGES[r.dtype][0], offset(r.zps, half)
            least = 0.25 + (r.zps if is_relu else np.full(1, lo))
            if r.q is stored:
                u = self.u(k, r, plain, sum_, shift, ONE)
                if is_relu or (r.zps == lo).any():
                    u = maximum(self.parameter(ONE * least, f"least {k}"), u)  # NaN passes
                steps = op("round_s32", u)
                pairs.append((r.q, op(f"high_{r.dtype}", steps)))
            else:
                u = math.saturate(self.u(k, r, plain, sum_, shift + (256 - lo)),
                                  self.parameter(least + (256 - lo), f"least {k}"))
                bits = op("as_s32", u)
                steps = op("shl", bits, 1)
                self.wholes[math.quantized(r.q, r.dtype)] = op("floor", u), lo - 256
                pairs.append((r.q, op("add", op("shr", bits, 15), lo)))
            distance = steps if distance is None else op("min_u16", distance, steps)
        assert distance is not None
        return distance, band(half), tuple(pairs)

    def u(self, k: int, r: Rounding, plain: Expr, sum_: Affine | None, shift: np.ndarray, one: float = 1.0) -> Expr:
        """y / s and an offset, of quantize k, times `one`."""
        if sum_ is None:
            assert r.inverse is not None
            inverse = r.inverse if one == 1 else r.inverse * one
            return op("fma", plain, inverse, self.parameter(one * shift, f"offset {k}"))
        terms: list[tuple[Expr, Expr]] = []
        for x, factor in sum_.factors.items():
            value, less = self.wholes.get(x, (op("to_f32", x), 0))
            shift = shift + less * factor
            terms.append((value, self.parameter(one * factor, f"factor {k} {len(terms)}")))
        total = self.parameter(one * (shift + sum_.constant), f"offset {k}")
        for value, f in terms:
            total = op("fma", value, f, total)
        return total
