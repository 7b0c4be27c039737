"""Bound the distance between the f32 sum of a layer, in an order of `sum_orders`, and its exact integer sum.

docs/theory/ties.md derives both bounds. `proved` holds for any activations. `estimated` assumes that rounding errors
are independent of each other, and that the activations of a sum are independent numbers, with any mean that their dtype
can hold. If weights are constant, both bounds depend on their values.
"""
from __future__ import annotations

from operator import getitem
from typing import NamedTuple

import numpy as np

from graphq.base.sizes import later
from graphq.kernels.lanes.spreads import UNIT
from graphq.kernels.numbers.sum_orders import DequantizedSum

ROUNDING = 0.41 * UNIT
"""The root mean square error of rounding, if the last bits and the logarithms of numbers are uniformly distributed."""
SIGMAS = 3
"""The `estimated` bound includes this many standard deviations of the difference."""
PIECES = 16
"""The most pieces that a chain is cut into. The bound at the end of a piece holds for all partial sums within it."""
PART = 2**17
"""The number of weights that are processed at a time; this many stay in the cache."""


class SumError(NamedTuple):
    """The proved and the estimated bound of a sum's error, in the unit of the output: one number per column.

    `largest` is the largest absolute value of the sum, without the number that the sum starts from. `integers` is the
    largest absolute value of the integer sum, infinite if the weights are not constant.
    """

    proved: np.ndarray
    estimated: np.ndarray
    largest: float
    integers: float


class Sums(NamedTuple):
    """Sums of |w|, of w and of w**2 over each piece of the chains, each [columns, chains, pieces]."""

    absolute: np.ndarray
    signed: np.ndarray
    squares: np.ndarray


def sum_error(sum_: DequantizedSum, low: int, high: int, weights: np.ndarray | tuple[int, int],
              batch: int = 1) -> SumError:
    """The bounds of a sum for activations from `low` to `high`; zero points are subtracted from both operands.

    `weights` are integers [columns, k], in the order of the sum. With a `batch` above 1, they are the weights of
    `batch` matrices one after another, and the bound of a column holds for all matrices. If weights are not constant,
    `weights` is the tuple of k and the largest absolute value of a weight; the result then has one number per scale.
    """
    activations = min(low, 0), max(high, 0)  # padding is an activation of 0
    chains = _Chains(sum_.order, sum_.block, sum_.taps)
    size = max(activations[1], -activations[0])
    scale_and_size = sum_.x_scale, size
    if isinstance(weights, tuple):
        reach = later(_reach_of_any, chains, activations, *weights)
        bounds = later(_bounds, reach, scale_and_size, sum_.w_scale, np.abs(sum_.start).max(initial=0))
        return SumError(later(getitem, bounds, 0), later(getitem, bounds, 1), largest_sum(weights[0], sum_), np.inf)
    columns, k = weights.shape
    scales, starts = (np.tile(np.broadcast_to(x, columns // batch), batch)
                      for x in (sum_.w_scale, np.abs(sum_.start)))
    reach_of, step = _Reaches(chains, activations, k), max(1, PART // max(1, k))
    parts = [reach_of.weights(np.ascontiguousarray(weights[c:c + step], np.float32), scales[c:c + step])
             for c in range(0, max(1, columns), step)]
    most, squares, absolute, moved = (np.concatenate([p[n] for p in parts]) for n in range(4))
    reach = parts[0]._replace(most=most, squares=squares, absolute=absolute, moved=moved)
    largest = 1.01 * float((reach.absolute * scales).max(initial=0)) * size * float(sum_.x_scale)
    proved, estimated = (x.reshape(batch, -1).max(axis=0) if batch > 1 else x
                         for x in _bounds(reach, scale_and_size, scales, starts))
    return SumError(proved, estimated, largest, float(reach.absolute.max(initial=0)) * size)


def largest_sum(k: int, sum_: DequantizedSum) -> float:
    """A bound of the absolute value of any sum of k products, without the number that it starts from."""
    return k * 2.0**16 * float(sum_.x_scale) * float(sum_.w_scale.max(initial=0))


class _Chains(NamedTuple):
    """How products are cut into chains: runs that are summed one after another, and then added to the total."""

    order: str
    block: int
    taps: int

    def of(self, w: np.ndarray) -> np.ndarray:
        """Cut weights [columns, k] into [columns, chains, pieces, products of a piece], filled up with zeros."""
        columns, k = w.shape
        taps = max(1, self.taps) if self.order == "taps" else 1
        size = k // taps
        length = max(1, {"quads": 4, "octets": -(-size // 8)}.get(self.order, min(self.block, size)))
        piece = -(-length // PIECES)
        pieces = -(-length // piece)
        lanes = 8 if self.order == "octets" else 1
        chains = -(-size // (length * lanes))
        w = _filled(w.reshape(columns, taps, size), chains * length * lanes)
        w = w.reshape(columns, taps * chains, length, lanes).swapaxes(2, 3)
        w = w.reshape(columns, taps * chains * lanes, length)
        return _filled(w, pieces * piece).reshape(columns, taps * chains * lanes, pieces, piece)

    def lengths(self, k: int) -> np.ndarray:
        return np.asarray(self.of(np.ones((1, k))).sum(axis=-1))


def _filled(w: np.ndarray, size: int) -> np.ndarray:
    if w.shape[-1] == size:
        return w
    out = np.zeros((*w.shape[:-1], size), w.dtype)
    out[..., :w.shape[-1]] = w
    return out


def _sums_of_any(chains: _Chains, k: int, most: int) -> Sums:
    """Sums of unknown weights from -`most` to `most`. The estimate takes weights as independent and uniform."""
    count = chains.lengths(k)
    squares = count * most**2 / 3
    total = np.sqrt(squares.cumsum(axis=-1))
    return Sums(most * count, np.diff(total, axis=-1, prepend=0), squares)


class _Reach(NamedTuple):
    """The sizes of a column's partial sums, added up over all roundings, in units of the product of both scales.

    `most` adds up the largest absolute values of the partial sums, `squares` adds up their mean squares. `absolute` is
    the sum of |w|. `moved` is the sum of f32(w * scale) - w * scale over all k, the effect of rounding the factors.
    `totals` counts the additions to the total; they also round the number that the sum starts from. `roundings` counts
    all roundings.
    """

    most: np.ndarray
    squares: np.ndarray
    absolute: np.ndarray
    moved: np.ndarray
    totals: int
    roundings: int


def _reach_of_any(chains: _Chains, activations: tuple[int, int], k: int, most: int) -> _Reach:
    """The reach of weights that are not constant. It depends on k (maybe an open size), but not on scales."""
    return _Reaches(chains, activations, k).sums(_sums_of_any(chains, k, most), np.zeros(1))


class _Reaches:
    """The part of `_Reach` that all columns share: how often the products of a piece take part in roundings.

    For activations from `low` to `high`, a partial sum is largest if activations are at one end of their range for
    positive weights, and at the other end for negative weights. Mean squares use the end that is farther from 0 as the
    mean of the activations.

    Sums of |w| and of w**2 grow from piece to piece. The sum of all partial sums is therefore a sum over the pieces,
    each times the number of partial sums that contain it (`passes`). Partial sums of w can shrink, so each is computed.
    """

    def __init__(self, chains: _Chains, activations: tuple[int, int], k: int) -> None:
        low, high = activations
        smaller, larger, variance = min(high, -low), max(high, -low), (high - low)**2 / 12
        count = chains.lengths(k)
        _, number, pieces = count.shape
        totals = {"taps": 2, "octets": 3}.get(chains.order, 1)  # the most roundings of the total per chain
        factors = 3 if chains.order in ("quads", "octets") else 2  # roundings: of x, of w, and of x * w in these orders
        passes = count[:, :, ::-1].cumsum(axis=2)[:, :, ::-1] + totals * np.arange(number, 0, -1)[:, None]
        self.chains, self.count, self.totals, self.larger = chains, count.ravel(), totals, larger
        self.absolute = ((larger + smaller) / 2 * passes + factors * larger).ravel()
        self.squares = (variance * passes + factors * larger**2).ravel()
        self.signed = (larger - smaller) / 2
        self.cumulated = np.triu(np.ones((pieces, pieces)))
        additions = totals * number
        # The 8 is for earlier roundings that make later roundings larger.
        self.roundings = additions, k + additions + 8

    def weights(self, w: np.ndarray, scales: np.ndarray) -> _Reach:
        """The reach of constant integer weights, as f32: sums of pieces are below 2**24, and therefore exact."""
        parts = self.chains.of(w)
        # as a matrix, because BLAS is fast only for matrices
        shape, parts = parts.shape[:-1], parts.reshape(-1, parts.shape[-1])
        ones = np.ones(parts.shape[-1], np.float32)
        signed = (parts @ ones).reshape(shape)
        factors = (w * scales[:, None]).astype(np.float64) @ np.ones(w.shape[1])
        moved = factors - signed.sum(axis=(1, 2), dtype=np.float64) * scales
        sizes, squares = ((f(parts) @ ones).reshape(shape) for f in (np.abs, np.square))
        return self.sums(Sums(sizes, signed, squares), moved)

    def sums(self, w: Sums, moved: np.ndarray) -> _Reach:
        """The reach of weights with these sums."""
        columns = len(w.signed)
        absolute, squares = (x.reshape(columns, len(self.count)).astype(np.float64) for x in (w.absolute, w.squares))
        pieces = len(self.cumulated)
        within = (w.signed.reshape(-1, pieces).astype(np.float64) @ self.cumulated).reshape(columns, len(self.count))
        after = within[:, pieces - 1::pieces].cumsum(axis=1)
        most = absolute @ self.absolute \
            + self.signed * (np.abs(within) @ self.count + self.totals * np.abs(after).sum(axis=1))
        mean_squares = squares @ self.squares \
            + self.larger**2 * (np.square(within) @ self.count + self.totals * np.square(after).sum(axis=1))
        return _Reach(most, mean_squares, absolute.sum(axis=1), moved, *self.roundings)


def _bounds(reach: _Reach, scale_and_size: tuple[np.float32, int], scales: np.ndarray,
            starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The proved and the estimated bound in the unit of the output.

    `scale_and_size` are the scale of the activations and their largest absolute value, `scales` the scales of the
    weights, `starts` the absolute values of the numbers that sums start from.
    """
    scale, size = float(scale_and_size[0]), scale_and_size[1]
    unit = scale * scales.astype(np.float64)
    proved = UNIT * (unit * reach.most + reach.totals * starts) / (1 - reach.roundings * UNIT)
    variance = unit**2 * reach.squares + reach.totals * starts**2
    return proved, np.minimum(proved, SIGMAS * ROUNDING * np.sqrt(variance) + size * scale * np.abs(reach.moved))
