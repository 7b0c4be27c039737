"""Bound the distance between the f32 sum of a layer, in an order of `sum_orders`, and its exact integer sum.

docs/theory/ties.md derives both bounds. `proved` holds for any activations. `estimated` assumes that rounding errors
are independent of each other, and that the activations of a sum are independent numbers, with any mean that their dtype
can hold. If weights are constant, both bounds depend on their values.
"""
from operator import getitem
from typing import NamedTuple

import numpy as np

from graphq.base.arrays import padded
from graphq.base.sizes import is_open, later, recorded
from graphq.kernels.lanes.fast_form import UNIT
from graphq.kernels.numbers.sum_orders import BLOCKS, DequantizedSum

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


def sum_error(sum_: DequantizedSum, low: int, high: int, weights: np.ndarray | tuple[int, int],
              batch: int = 1) -> SumError:
    """The bounds of a sum for activations from `low` to `high`; zero points are subtracted from both operands.

    `weights` are integers [columns, k], in the order of the sum. With a `batch` above 1, they are the weights of
    `batch` matrices one after another, and the bound of a column holds for all matrices. If weights are not constant,
    `weights` is the tuple of k and the largest absolute value of a weight; the result then has one number per scale.
    If an open size decides the length of chains, the bounds of constant weights hold for chains of any length.
    """
    low, high = min(low, 0), max(high, 0)  # padding is an activation of 0
    if isinstance(weights, tuple):
        bounds = later(_bounds_of_any, sum_, low, high, *weights)
        return SumError(later(getitem, bounds, 0), later(getitem, bounds, 1), largest_sum(weights[0], sum_), np.inf)
    if is_open(sum_.block):
        found = [sum_error(sum_._replace(block=block), low, high, weights, batch) for block in BLOCKS]
        return found[0]._replace(proved=np.max([x.proved for x in found], axis=0),
                                 estimated=np.max([x.estimated for x in found], axis=0))
    columns, k = weights.shape
    scales, starts = (np.tile(np.broadcast_to(x, columns // batch), batch) for x in (sum_.w_scale, np.abs(sum_.start)))
    roundings, step = _Roundings(sum_, low, high, k), max(1, PART // max(1, k))
    parts = [roundings.bounds_of(np.ascontiguousarray(weights[c:c + step], np.float32), scales[c:c + step],
                                 starts[c:c + step]) for c in range(0, max(1, columns), step)]
    proved, estimated, absolute = (np.concatenate(x) for x in zip(*parts, strict=True))
    largest = 1.01 * float((absolute * scales).max(initial=0)) * roundings.size * float(sum_.x_scale)
    if batch > 1:
        proved, estimated = (x.reshape(batch, -1).max(axis=0) for x in (proved, estimated))
    return SumError(proved, estimated, largest, float(absolute.max(initial=0)) * roundings.size)


def largest_sum(k: int, sum_: DequantizedSum) -> float:
    """A bound of the absolute value of any sum of k products, without the number that it starts from."""
    return k * 2.0**16 * float(sum_.x_scale) * float(sum_.w_scale.max(initial=0))


@recorded("sum_errors.bounds_of_any")
def _bounds_of_any(sum_: DequantizedSum, low: int, high: int, k: int, most: int) -> tuple[np.ndarray, ...]:
    """The bounds for unknown weights from -`most` to `most`; the estimate takes them as independent and uniform."""
    roundings = _Roundings(sum_, low, high, k)
    squares = roundings.count * most**2 / 3
    signed = np.diff(np.sqrt(squares.cumsum(axis=-1)), axis=-1, prepend=0)
    return roundings.bounds(most * roundings.count, signed, squares, np.zeros(1), sum_.w_scale,
                            np.abs(sum_.start).max(initial=0))


def _cut(sum_: DequantizedSum, w: np.ndarray) -> np.ndarray:
    """Cut weights [columns, k] into [columns, chains, pieces, products of a piece], filled up with zeros.

    The products of a chain are summed one after another, and then added to the total.
    """
    columns, k = w.shape
    taps = max(1, sum_.taps) if sum_.order == "taps" else 1
    size = k // taps
    length = max(1, {"quads": 4, "octets": -(-size // 8)}.get(sum_.order, min(sum_.block, size)))
    piece = -(-length // PIECES)
    pieces = -(-length // piece)
    lanes = 8 if sum_.order == "octets" else 1
    chains = -(-size // (length * lanes))
    w = padded(w.reshape(columns, taps, size), (columns, taps, chains * length * lanes))
    w = w.reshape(columns, taps * chains, length, lanes).swapaxes(2, 3)
    count = taps * chains * lanes
    w = padded(w.reshape(columns, count, length), (columns, count, pieces * piece))
    return w.reshape(columns, count, pieces, piece)


class _Roundings:
    """How often the products of a piece take part in roundings; all columns share these numbers.

    `count` [1, chains, pieces] is the number of products of each piece, `size` the largest absolute activation.

    For activations from `low` to `high`, a partial sum is largest if activations are at one end of their range for
    positive weights, and at the other end for negative weights. Mean squares use the end that is farther from 0 as the
    mean of the activations.

    Sums of |w| and of w**2 grow from piece to piece. The sum of all partial sums is therefore a sum over the pieces,
    each times the number of partial sums that contain it (`passes`). Partial sums of w can shrink, so each is computed.
    """

    def __init__(self, sum_: DequantizedSum, low: int, high: int, k: int) -> None:
        smaller, larger, variance = min(high, -low), max(high, -low), (high - low)**2 / 12
        self.sum, self.size = sum_, larger
        self.count = np.asarray(_cut(sum_, np.ones((1, k))).sum(axis=-1))
        _, number, pieces = self.count.shape
        self.totals = {"taps": 2, "octets": 3}.get(sum_.order, 1)  # the most roundings of the total per chain
        factors = 3 if sum_.order in ("quads", "octets") else 2  # roundings: of x, of w, and of x * w in these orders
        passes = self.count[:, :, ::-1].cumsum(axis=2)[:, :, ::-1] + self.totals * np.arange(number, 0, -1)[:, None]
        self.absolute = ((larger + smaller) / 2 * passes + factors * larger).ravel()
        self.squares = (variance * passes + factors * larger**2).ravel()
        self.signed = (larger - smaller) / 2
        self.cumulated = np.triu(np.ones((pieces, pieces)))
        self.additions = self.totals * number  # additions to the total; they also round the number that it starts from
        self.all = k + self.additions + 8  # The 8 is for earlier roundings that make later roundings larger.

    def bounds_of(self, w: np.ndarray, scales: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The `bounds` for constant integer weights, as f32: sums of pieces are below 2**24, and therefore exact."""
        parts = _cut(self.sum, w)
        # as a matrix, because BLAS is fast only for matrices
        shape, parts = parts.shape[:-1], parts.reshape(-1, parts.shape[-1])
        ones = np.ones(parts.shape[-1], np.float32)
        signed = (parts @ ones).reshape(shape)
        factors = (w * scales[:, None]).astype(np.float64) @ np.ones(w.shape[1])
        moved = factors - signed.sum(axis=(1, 2), dtype=np.float64) * scales
        sizes, squares = ((f(parts) @ ones).reshape(shape) for f in (np.abs, np.square))
        return self.bounds(sizes, signed, squares, moved, scales, starts)

    def bounds(self, sizes: np.ndarray, signed: np.ndarray, squares: np.ndarray, moved: np.ndarray, scales: np.ndarray,
               starts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The proved and the estimated bound of each column, in the unit of the output, and the column's sum of |w|.

        `sizes`, `signed` and `squares` are the sums of |w|, w and w**2 over each piece [columns, chains, pieces].
        `moved` is the sum of f32(w * scale) - w * scale over all k, the effect of rounding the factors. `starts` are
        the absolute values of the numbers that sums start from.
        """
        columns, width, pieces, count = len(signed), self.count.size, len(self.cumulated), self.count.ravel()
        sizes, squares = (x.reshape(columns, width).astype(np.float64) for x in (sizes, squares))
        within = (signed.reshape(-1, pieces).astype(np.float64) @ self.cumulated).reshape(columns, width)
        after = within[:, pieces - 1::pieces].cumsum(axis=1)
        # the largest absolute values of the partial sums, and their mean squares, added up over all roundings
        most = sizes @ self.absolute + self.signed * (np.abs(within) @ count + self.totals * np.abs(after).sum(axis=1))
        mean_squares = squares @ self.squares \
            + self.size**2 * (np.square(within) @ count + self.totals * np.square(after).sum(axis=1))
        scale = float(self.sum.x_scale)
        unit = scale * scales.astype(np.float64)
        proved = UNIT * (unit * most + self.additions * starts) / (1 - self.all * UNIT)
        variance = unit**2 * mean_squares + self.additions * starts**2
        estimated = SIGMAS * ROUNDING * np.sqrt(variance) + self.size * scale * np.abs(moved)
        return proved, np.minimum(proved, estimated), sizes.sum(axis=1)
