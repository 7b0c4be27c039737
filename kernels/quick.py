"""Quantizes right after an anchor in few operations, which also say how near to a tie they are.

    exact   q = saturate(rint(f32(y * inv)) + zp)      y of several f32 operations, as `formula` has them
    quick   u = y * inv + zp - lo + 256.5 + half       saturated to [256.25, 511.75], in f32, whose last bit is 2**-15
            q = whole(u) - 256 + lo                    for fraction(u) >= 2 * half

q lies between lo and lo + 255. Within `half` of a tie fraction(u) is below 2 * half; there, and only there, the two may
differ, as `half` is larger than the difference of both u, and larger than the band within which outputs are settled by
literal sums. Saturated values, a quarter from the next whole number, are not near. Where y is a sum of integers times
constants, u is that of fused multiply-adds with other constants, which saves an operation each for scale and bias.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphq.kernels import math
from graphq.kernels.expression import BYTES, Expr, const, op, walk

STEP = 2.0**-15
"""The last bit of u."""
UNIT = 2.0**-24
_WIDEST = 0.125
"""From here on saturated values would be near; then all outputs count as near."""

Numbers = Mapping[Expr, np.ndarray]
"""Loads and what they load, one number or one a column."""


@dataclass(frozen=True)
class Affine:
    """A value as `factors` times f32 of integers, by these, and a constant; of f64, each one number or one a column."""

    factors: dict[Expr, np.ndarray]
    constant: np.ndarray

    def times(self, factor: np.ndarray) -> Affine:
        """The multiple."""
        return Affine({x: f * factor for x, f in self.factors.items()}, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """The sum."""
        factors = dict(self.factors)
        for x, f in other.factors.items():
            factors[x] = factors.get(x, np.zeros(())) + f
        return Affine(factors, self.constant + other.constant)


def affine(y: Expr, numbers: Numbers) -> Affine | None:
    """y as a sum of the anchor's integers and of bytes, in exact arithmetic; None where it is none."""
    known: dict[Expr, Affine | None] = {}
    for node in walk(y):
        args = [known[a] for a in node.args]
        known[node] = None
        if node in numbers:
            known[node] = Affine({}, numbers[node].astype(np.float64).reshape(-1))
        elif node.op == "const" and node.dtype != "bool":
            known[node] = Affine({}, np.full(1, float(node.value)))
        elif node.dtype == "s32" and _whole(node):
            known[node] = Affine({node: np.ones(1)}, np.zeros(1))
        elif len(args) == 2 and (a := args[0]) is not None and (b := args[1]) is not None:
            if node.op in ("add", "sub"):
                known[node] = a.plus(b.times(np.full(1, 1.0 if node.op == "add" else -1.0)))
            elif node.op == "mul" and not (a.factors and b.factors):
                known[node] = a.times(b.constant) if a.factors else b.times(a.constant)
        elif node.op == "to_f32":
            known[node] = args[0]
    return known[y]


def _whole(node: Expr) -> bool:
    """Whether an s32 is taken as it is: what holds the accumulator, and bytes."""
    if node.op == "load":
        return node.value[1] in BYTES and node.value[2] == "vector"
    return any(x.op == "acc" for x in walk(node))


def factors(y: Affine, inverse: np.ndarray, operations: int) -> tuple[dict[Expr, np.ndarray], np.ndarray, np.ndarray]:
    """The factors of u in f32, its constant less the offset, and how far u may lie from y * inv, in steps.

    Only for |u - offset| <= 256: then the accumulator's term is at most 256 and the others', and each of the operations
    rounds a partial sum of all. Both products with an integer of 24 bits or more round it, too.
    """
    scaled = y.times(inverse)
    others = np.abs(scaled.constant) + sum(256 * np.abs(f) for x, f in scaled.factors.items() if x.op == "load")
    size = 256 + 2 * others
    with np.errstate(divide="ignore"):
        widest = max(np.max(size / np.abs(f), initial=0) for f in scaled.factors.values())
    count = operations + 2 * len(scaled.factors) + (0 if widest < 2.0**24 else 2)
    error = UNIT * (count * size + np.abs(scaled.constant) + 512)
    return {x: f.astype(np.float32) for x, f in scaled.factors.items()}, scaled.constant, error


def half_band(width: np.ndarray) -> np.ndarray:
    """Half of the band around ties, at least this width: whole units of STEP."""
    return np.ceil(width / STEP) * STEP


def offset(zps: np.ndarray, half: np.ndarray, dtype: str) -> np.ndarray:
    """What is added to y * inv."""
    return np.asarray(256.5 + zps - math.RANGES[dtype][0] + np.where(half < _WIDEST, half, 0.0))


def band(half: np.ndarray) -> np.ndarray:
    """Below which `steps_of` are near a tie: their upper 15 bits are the fraction."""
    steps = np.where(half < _WIDEST, 2 * half / STEP, 0).astype(np.int64)
    return np.where(half < _WIDEST, steps << 17, 2**32 - 1).astype(np.uint32).view(np.int32)


def quantized(steps: Expr, dtype: str) -> Expr:
    """The s32 whose low byte is q, from `steps_of`."""
    return steps if dtype == "u8" else op("xor", steps, 0x80)


def without_relu(y: Expr) -> tuple[Expr, bool]:
    """The operand of a ReLU, or y itself, and whether there is one."""
    is_relu = y.op == "max" and y.args[0] is const(0)
    return (y.args[1], True) if is_relu else (y, False)
