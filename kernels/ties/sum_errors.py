"""Error bounds: how far an anchor's f32 sum, in the order of `literal`, may lie from the exact sum of integers.

docs/numbers.md derives both bounds. `proved` holds for any activations. `estimated` takes rounding errors as
independent of each other, and the activations of a sum as independent numbers whose mean may be any that their type can
hold. Both know the weights, where those are constant.
"""
from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import NamedTuple

import numpy as np

from graphq.kernels.ties.literal import Literal
from graphq.sizes import later

UNIT = 2.0**-24
"""The most that rounding to f32 changes a number, relative to the number."""
ROUNDING = 0.41 * UNIT
"""The root mean square of that change, for numbers whose last bits and whose logarithms are uniform."""
SIGMAS = 3
"""How many standard deviations of the difference `estimated` is."""
PIECE = 16
"""A partial sum is bounded at the end of every so many products of a chain, and in between as at the next end."""
PART = 2**17
"""Weights that are taken at a time, so that they stay in the cache."""


class SumError(NamedTuple):
    """Two bounds of the difference, one number a column, in the output's unit."""

    proved: np.ndarray
    estimated: np.ndarray


class Sums(NamedTuple):
    """Sums of |w|, w and w**2 over pieces of chains, [columns, chains, pieces]; and by how much rounding moves factors.

    `moved` [columns] is the sum of f32(w * scale) - w * scale over all k.
    """

    absolute: np.ndarray
    signed: np.ndarray
    squares: np.ndarray
    moved: np.ndarray

    def each(self, f: Callable[[np.ndarray], np.ndarray]) -> Sums:
        """The sums changed by f."""
        return Sums(f(self.absolute), f(self.signed), f(self.squares), self.moved)


def sum_error(literal: Literal, low: int, high: int, weights: np.ndarray | tuple[int, int], batch: int = 1) -> SumError:
    """The bounds for activations from `low` to `high` (zero points subtracted, from both operands).

    `weights` are integers [k, columns], in the order of the sums, of `batch` matrices side by side, for all of which a
    column's bound holds. When they are not constant: k, and the most that one can be in size; the result then has one
    number for each of `literal`'s scales.
    """
    activations = min(low, 0), max(high, 0)  # padding is 0
    if isinstance(weights, tuple):
        bounds = later(_of_any_weights, literal, activations, *weights)
        return SumError(later(getitem, bounds, 0), later(getitem, bounds, 1))
    k, columns = weights.shape
    scales, starts = (np.tile(np.broadcast_to(x, columns // batch), batch)
                      for x in (literal.w_scale, np.abs(literal.start)))
    step = max(1, PART // max(1, k))
    parts = [_known(literal, np.ascontiguousarray(weights[:, c:c + step].T, np.float32), scales[c:c + step])
             for c in range(0, max(1, columns), step)]
    known = Sums(*(np.concatenate(x) for x in zip(*parts, strict=True)))
    bounds = _bounds(literal, activations, k, known, scales, starts)
    return SumError(*(x.reshape(batch, -1).max(axis=0) if batch > 1 else x for x in bounds))


def _chains(literal: Literal, w: np.ndarray) -> np.ndarray:
    """Weights [columns, k] as [columns, chains, pieces, PIECE], filled up with zeros.

    A chain are products that are summed one after another before their sum goes to the total.
    """
    columns, k = w.shape
    taps = max(1, literal.taps) if literal.order == "taps" else 1
    size = k // taps
    length = max(1, {"quads": 4, "octets": -(-size // 8)}.get(literal.order, min(literal.block, size)))
    piece = min(PIECE, length)
    pieces = -(-length // piece)
    lanes = 8 if literal.order == "octets" else 1
    chains = -(-size // (length * lanes))
    w = _filled(w.reshape(columns, taps, size), chains * length * lanes)
    w = w.reshape(columns, taps * chains, length, lanes).swapaxes(2, 3).reshape(columns, taps * chains * lanes, length)
    return _filled(w, pieces * piece).reshape(columns, taps * chains * lanes, pieces, piece)


def _filled(w: np.ndarray, size: int) -> np.ndarray:
    """An array with zeros after those of the last dimension, up to `size`."""
    if w.shape[-1] == size:
        return w
    out = np.zeros((*w.shape[:-1], size), w.dtype)
    out[..., :w.shape[-1]] = w
    return out


def _known(literal: Literal, w: np.ndarray, scales: np.ndarray) -> Sums:
    """The sums of known weights: of integers in f32, exact as sums of pieces are below 2**24."""
    parts = _chains(literal, w)
    ones = np.ones(parts.shape[-1], np.float32)
    signed = parts @ ones
    factors = (w * scales[:, None]).astype(np.float64) @ np.ones(w.shape[1])
    moved = factors - signed.sum(axis=(1, 2), dtype=np.float64) * scales
    return Sums(np.abs(parts) @ ones, signed, np.einsum("ncpk,ncpk->ncp", parts, parts), moved)


def _of_any_weights(literal: Literal, activations: tuple[int, int], k: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Both bounds for weights that are not constant: functions of k, which may be open."""
    starts = np.abs(literal.start).max(initial=0)
    return _bounds(literal, activations, k, _unknown(literal, k, most), literal.w_scale, starts)


def _unknown(literal: Literal, k: int, most: int) -> Sums:
    """The sums of weights that may be any from -most to most; for the estimate they are independent and uniform."""
    count = _chains(literal, np.ones((1, k))).sum(axis=-1)
    squares = count * most**2 / 3
    total = np.sqrt(squares.cumsum(axis=-1))
    return Sums(most * count, np.diff(total, axis=-1, prepend=0), squares, np.zeros(1))


def _bounds(literal: Literal, activations: tuple[int, int], k: int, w: Sums, scales: np.ndarray, starts: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray]:
    """Both bounds. Products count in units of both scales, `starts` and the results in the output's unit."""
    low, high = activations
    near, far, variance = min(high, -low), max(high, -low), (high - low)**2 / 12
    unit = float(literal.x_scale) * scales.astype(np.float64)
    count = _chains(literal, np.ones((1, k))).sum(axis=-1)
    totals = {"taps": 2, "octets": 3}.get(literal.order, 1)  # of additions to the total, for each chain at most
    factors = 3 if literal.order in ("quads", "octets") else 2  # roundings of a product: of both factors, and its own
    within = w.each(lambda x: x.cumsum(axis=2, dtype=np.float64))
    after = within.each(lambda x: x[:, :, -1].cumsum(axis=1))

    def largest(s: Sums) -> np.ndarray:
        """The most that partial sums reach: activations at one end where weights are positive, else at the other."""
        return np.asarray(((far + near) * s.absolute + (far - near) * np.abs(s.signed)) / 2)

    def mean_square(s: Sums) -> np.ndarray:
        """Of partial sums, if the mean of the activations is at the far end."""
        return np.asarray(far**2 * s.signed**2 + variance * s.squares)

    absolute, squares = (x.sum(axis=(1, 2), dtype=np.float64) for x in (w.absolute, w.squares))
    most = (count * largest(within)).sum(axis=(1, 2)) + totals * largest(after).sum(axis=1) + factors * far * absolute
    walk = (count * mean_square(within)).sum(axis=(1, 2)) + totals * mean_square(after).sum(axis=1) \
        + factors * far**2 * squares
    chains = after.absolute.shape[1]
    roundings = k + totals * chains + 8  # that later ones work on results of earlier ones makes it larger
    proved = UNIT * (unit * most + totals * chains * starts) / (1 - roundings * UNIT)
    walk = unit**2 * walk + totals * chains * starts**2
    moved = far * float(literal.x_scale) * np.abs(w.moved)
    return proved, np.minimum(proved, SIGMAS * ROUNDING * np.sqrt(walk) + moved)
