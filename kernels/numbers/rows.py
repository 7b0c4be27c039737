"""The formulas of softmax, norms and reductions in NumPy: they map f32 rows [..., n], with n at least 1.

    softmax      e * (1 / sum(e)),  e = exp(x - max(x)); stepwise (each step rounded, for example to f16): e / sum(e)
    log_softmax  x - max(x) - log(sum(e))
    layer_norm   d * (1 / sqrt(sum(d * d) / n + epsilon)),  d = x - mean(x), the mean in f64, rounded once
    rms_norm     x * (1 / sqrt(sum(x * x) / n + epsilon))
    reduce_*     one number per row

Except for the mean of layer_norm, everything is computed in f32, one IEEE operation at a time. Sums have the order of
ONNX Runtime 1.31 on AVX2 and AVX-512 (softmax: on AVX-512), found by experiment. Rows of 8 elements and more therefore
give ONNX Runtime's results bit for bit, with three exceptions: log_softmax, whose logarithm differs; reduce_l1 and
reduce_l2; and reduce_sum of rows whose length is not a multiple of 8.

Zeros at the end of a row change no bit of the sum of softmax's powers, nor of reduce_sum, _l1 and _l2. These sums start
from +0, and the place of an element alone decides to which partial sum it is added.

If the sum of squares overflows, norms are 0, as in ONNX Runtime. If all squares underflow and epsilon is 0, norms are
infinite. The reference computes its sums in f64, so it has neither limit (docs/onnx.md).
"""
from collections.abc import Callable

import numpy as np

from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import Expr, fused, load, maximum, op, select
from graphq.kernels.lanes.expression import minimum as least
from graphq.kernels.numbers.mean_sums import row_totals

Array = np.ndarray
X, Y = load(0, "f32", "vector"), load(1, "f32", "vector")
POWER = elementary.exp(X - Y)
"""exp(X - Y), the power that softmax sums, for an element X and the maximum Y of its row."""
ROUNDED: dict[str, Callable[[Expr], Expr]] = {"bf16": elementary.round_bf16, "f16": lambda x: op("round_f16", x)}
"""Expressions that round a step of softmax to a dtype."""
LOGARITHM = elementary.log(X)
LANES = 16
"""The number of partial sums and maxima in softmax, and of partial f64 sums in the mean of layer_norm."""
EXTREME_LANES = 4 * LANES
"""The number of partial maxima or minima of a reduction."""
GROUP = 8
"""The number of partial sums of squares and reductions."""


def _either(chosen: Expr) -> Expr:
    return select(op("ne", X, X), X, chosen)


EXTREMES = {"max": _either(maximum(X, Y)), "min": _either(least(X, Y))}
"""Expressions of the new maximum or minimum, from an element X and the extreme so far, Y.

If X equals Y, the result is Y. If X or Y is NaN, the result is NaN.
"""
TERMS = {"sum": X, "mean": X, "l1": op("abs", X), "l2": X * X}


def folded(x: Array, take: Callable[[Array, Array], Array], *, pairs: bool = False) -> Array:
    """Fold the last axis, whose size is a power of 2, to one element.

    Each round combines the first half with the second half or, with `pairs`, each element with its neighbor.
    """
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = take(x[..., ::2], x[..., 1::2]) if pairs else take(x[..., :half], x[..., half:])
    return x[..., 0]


def by_lanes(x: Array, lanes: int, start: float, take: Callable[[Array, Array], Array]) -> Array:
    """Reduce the last axis to `lanes` partial results: lane l combines the elements l, l + lanes, l + 2 * lanes, ..."""
    total = np.full((*x.shape[:-1], lanes), start, x.dtype)
    for k in range(0, x.shape[-1], lanes):
        part = x[..., k:k + lanes]
        total[..., :part.shape[-1]] = take(total[..., :part.shape[-1]], part)
    return total


def extreme(how: str, x: Array) -> Array:
    """The maximum or minimum of each row; NaN if the row has a NaN."""
    def take(have: Array, new: Array) -> Array:
        return evaluate(EXTREMES[how], None, [new, have])

    return folded(by_lanes(x, EXTREME_LANES, -np.inf if how == "max" else np.inf, take), take)


def top(x: Array) -> Array:
    """The maximum of each row for softmax. NaN is ignored: the sum of a row with a NaN becomes NaN later."""
    def take(have: Array, new: Array) -> Array:
        return np.where(new > have, new, have)

    return folded(by_lanes(x, LANES, -np.inf, take), take)


def rounded_power(dtype: str) -> Expr:
    """POWER whose difference and result are rounded to `dtype`, a key of ROUNDED."""
    return ROUNDED[dtype](elementary.exp(ROUNDED[dtype](X - Y)))


def powers(x: Array, highest: Array, power: Expr = POWER) -> tuple[Array, Array]:
    """The powers exp(x - highest) and their sums: 16 partial sums, folded by halves, then by neighbors."""
    e = evaluate(power, None, [x, highest[..., None]])
    lanes = by_lanes(e, LANES, 0, np.add)
    return e, folded(lanes[..., :LANES // 2] + lanes[..., LANES // 2:], np.add, pairs=True)


def softmax(x: Array, *, inf_as_zero: bool) -> Array:
    """softmax of rows. A row whose elements are all -inf gives NaN, or 0 with `inf_as_zero`."""
    highest = top(x)
    if inf_as_zero:
        highest = np.where(highest == -np.inf, np.float32(0), highest)
    e, total = powers(x, highest)
    if inf_as_zero:
        total = np.where(total == 0, np.float32(1), total)
    return np.asarray(e * (np.float32(1) / total)[..., None])


def stepwise_softmax(x: Array, dtype: str) -> Array:
    """softmax of rows as e / sum(e); all steps but the last are rounded to `dtype`."""
    e, total = powers(x, top(x), rounded_power(dtype))
    return np.asarray(e / evaluate(ROUNDED[dtype](X), None, [total])[..., None])


def log_softmax(x: Array) -> Array:
    """log_softmax of rows."""
    highest = top(x)
    log = evaluate(LOGARITHM, None, [powers(x, highest)[1]])
    return np.asarray((x - highest[..., None]) - log[..., None])


def squares(d: Array) -> Array:
    """The sum of d * d: 8 chains of fused multiply-adds, folded by halves.

    The last n % 8 elements are added one by one. If they are four or more, the first four squares are rounded before
    they are added.
    """
    whole = d.shape[-1] // GROUP * GROUP
    total = folded(by_lanes(d[..., :whole], GROUP, 0, lambda have, new: fused(new, new, have)), np.add)
    rest = d[..., whole:]
    unfused = rest.shape[-1] & 4
    for k in range(rest.shape[-1]):
        x = rest[..., k]
        total = total + x * x if k < unfused else fused(x, x, total)
    return total


def _inverse(total: Array, n: int, epsilon: float) -> Array:
    return np.asarray(np.float32(1) / np.sqrt(total / np.float32(n) + np.float32(epsilon)))[..., None]


def layer_norm(x: Array, epsilon: float) -> Array:
    """layer_norm of rows, without gamma and beta: the epilogue applies both by one fused multiply-add."""
    n = x.shape[-1]
    total = folded(by_lanes(x.astype(np.float64), LANES, -0.0, np.add), np.add)
    d = x - (total / n).astype(np.float32)[..., None]
    return np.asarray(d * _inverse(squares(d), n, epsilon))


def rms_norm(x: Array, epsilon: float) -> Array:
    """rms_norm of rows, without gamma: the epilogue applies it."""
    return np.asarray(x * _inverse(squares(x), x.shape[-1], epsilon))


def reduced(how: str, x: Array) -> Array:
    """Reduce each row to one number; `how` is sum, mean, l1, l2, max or min."""
    if how in EXTREMES:
        return extreme(how, x)
    terms = evaluate(TERMS[how], None, [x])
    if how == "mean":
        return np.asarray(row_totals(terms) / np.float32(x.shape[-1]))
    total = folded(by_lanes(terms, GROUP, 0.0, np.add), np.add)
    return np.sqrt(total) if how == "l2" else total
