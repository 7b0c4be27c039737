"""Interval arithmetic with rounding errors: how far an f32 computation can be from the exact numbers."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from graphq.kernels.lanes.expression import Expr

UNIT = 2.0**-24
"""The largest relative error of rounding to f32."""


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


def spread_of(y: Expr, known: Mapping[Expr, Spread], numbers: Mapping[Expr, np.ndarray]) -> Spread:
    """The spread of y, computed operation by operation. Its leaves are `known`, or constants: loads in `numbers`."""
    spreads = dict(known)

    def of(node: Expr) -> Spread:
        if node not in spreads:
            spreads[node] = computed(node)
        return spreads[node]

    def computed(node: Expr) -> Spread:
        if node in numbers or node.op == "const":
            v = np.asarray(numbers.get(node, node.value), np.float64).reshape(-1)
            return Spread.between(v, v)
        a, *b = map(of, node.args)
        if node.op == "to_f32":
            return a.converted()
        y = a.times(b[0]) if node.op == "mul" else a.plus(b[0], 1 if node.op == "add" else -1)
        return y.rounded() if node.dtype == "f32" else y

    return of(y)
