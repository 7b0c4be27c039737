"""The orders of f32 sums in means (average pools, and means of rows).

ONNX and oneDNN leave the order open. These are the orders of ONNX Runtime 1.31 on x86-64 without optimizations of the
graph, found by experiment:

    taps      one after the other, in row-major order
    columns   the elements of each column (all that share an index of the last axis), then the columns' sums
    fours     four partial sums s[l] of the elements k with k % 4 == l: (s[0] + s[2]) + (s[1] + s[3]); then the last
              n % 4 of the n elements
    eights    eight partial sums s[l] of the elements k with k % 8 == l, added as t[l] = s[l] + s[l + 4]; if four or
              more elements remain, t[l] += the next four; then t and the remaining elements as in fours

Sums start from +0, except that sums in the order `eights` start from -0. The order matters if a mean of integers is
quantized again: it is often exactly halfway between two integers, and the f32 rounding errors then decide.
"""
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import numpy as np

Order: TypeAlias = Literal["taps", "columns", "fours", "eights"]
T = TypeVar("T")
"""The type of the elements to sum: arrays, or values of kernel code."""

QUAD = 4
MOST_WIDE = 2045
"""The longest image line, in elements with padding, that is summed by columns: ONNX Runtime's buffer is this long."""


def pool_order(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
               pads: Sequence[tuple[int, int]], in_order: bool) -> Order:
    """The order of an average pool's sums; each list has an entry per spatial axis."""
    if in_order:
        return "taps"
    if list(kernel) == list(sizes) and set(strides) == {1} and set(pads) == {(0, 0)}:
        return "fours"
    return "columns" if strides[-1] <= 2 and sizes[-1] + sum(pads[-1]) <= MOST_WIDE else "taps"


def start_of(order: Order) -> float:
    """The start value of sums in this order."""
    return -0.0 if order == "eights" else 0.0


def lanes_of(order: Order) -> int:
    """The number of partial sums that are accumulated independently."""
    return {"taps": 1, "columns": 1, "fours": QUAD, "eights": 2 * QUAD}[order]


def total(order: Order, tap: Callable[[int], T], n: int, width: int, zero: T, add: Callable[[T, T], T]) -> T:
    """Sum n elements tap(0), tap(1), ... of a window with rows of `width`, from `zero` = `start_of(order)`."""
    def chain(start: int, stop: int, step: int, have: T = zero) -> T:
        for k in range(start, stop, step):
            have = add(have, tap(k))
        return have

    if order == "taps":
        return chain(0, n, 1)
    if order == "columns":
        have = zero
        for column in range(width):
            have = add(have, chain(column, n, width))
        return have
    lanes = lanes_of(order)
    done = n - n % lanes
    sums = [chain(lane, done, lanes) for lane in range(lanes)]
    if lanes > QUAD:
        sums = halved(sums, add)
        if n - done >= QUAD:
            sums = [add(x, tap(done + lane)) for lane, x in enumerate(sums)]
            done += QUAD
    return chain(done, n, 1, halved(halved(sums, add), add)[0])


def halved(sums: list[T], add: Callable[[T, T], T]) -> list[T]:
    """Add the second half of the partial sums to the first half, element by element."""
    half = len(sums) // 2
    return [add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]


def array_total(order: Order, tap: Callable[[int], np.ndarray], n: int, width: int,
                shape: tuple[int, ...]) -> np.ndarray:
    """Call `total` for elements that are f32 arrays of `shape`."""
    with np.errstate(all="ignore"):
        return np.asarray(total(order, tap, n, width, np.full(shape, start_of(order), np.float32), np.add))


def row_totals(x: np.ndarray) -> np.ndarray:
    """The f32 sums along the last axis, in the order `eights` of this module."""
    taps = np.ascontiguousarray(np.moveaxis(x, -1, 0))
    return array_total("eights", taps.__getitem__, len(taps), 1, x.shape[:-1])
