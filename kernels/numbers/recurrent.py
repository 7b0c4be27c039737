"""The formulas of recurrent layers, in NumPy and as expressions that kernels compute lane by lane.

x [T, B, gates * H] are the products of inputs and weights. s are the products of the previous state and the recurrent
weights, summed as in `float_sums`. For integer weights, the state is quantized by DynamicQuantizeLinear, as a whole or
row by row, and s is an exact integer sum times an f32 scale. Each gate has H columns of x and s; x and s below are the
columns of the gate that is computed. The gates come in the listed order; ONNX's names for g and n are c and h.

    lstm (i, o, f, g):  c' = f * c + i * g,  h' = o * tanh(c')    i, o, f = sigmoid(x + s),  g = tanh(x + s)
    rnn:                h' = tanh(x + s)
    gru (z, r, n):      h' = (1 - z) * n + z * h    z, r = sigmoid(x + s),  n = tanh(x + r * (s + bias))
"""
from collections.abc import Iterator

import numpy as np

from graphq.errors import GraphError
from graphq.kernels.lanes.elementary import sigmoid, tanh
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import Expr, load
from graphq.kernels.numbers.float_sums import float_sums
from graphq.kernels.numbers.observed import u8_range


def _given(k: int) -> Expr:
    return load(k, "f32", "vector")


CELL = (sigmoid(_given(0) + _given(1)) * _given(6) + sigmoid(_given(2) + _given(3)) * tanh(_given(4) + _given(5)))
"""The new cell c' of an LSTM, from x and s of its gates f, i and g, and the old cell c."""
OUTPUT = sigmoid(_given(0) + _given(1)) * tanh(_given(2))
"""The new state h' of an LSTM, from x and s of its gate o, and the new cell c'."""
UPDATE = sigmoid(_given(0) + _given(1))
"""A gate of a GRU, from its x and s."""
PLAIN = tanh(_given(0) + _given(1))
"""The new state h' of an RNN, from x and s."""
CANDIDATE = tanh(_given(0) + _given(1) * (_given(2) + _given(3)))
"""The candidate state n of a GRU, from x, the gate r, s and the bias."""
BLEND = (1.0 - _given(0)) * _given(1) + _given(0) * _given(2)
"""The new state h' of a GRU, from the gate z, the candidate n and the old state h."""


def state_sums(h: np.ndarray, recurrent: np.ndarray, scales: np.ndarray | None = None,
               by_row: bool = False) -> np.ndarray:
    """Multiply the state [B, H] by weights [gates * H, H]; with `scales`, the weights are integers."""
    if scales is None:
        return float_sums(h, recurrent.T)
    if by_row and len(h) > 1:
        return np.concatenate([state_sums(row, recurrent, scales) for row in h[:, None]])
    units, scale = quantized(h)
    total = units.astype(np.int64) @ recurrent.T.astype(np.int64)
    return np.asarray(total.astype(np.int32).astype(np.float32) * (scale * scales))


def offset_of(weights: np.ndarray) -> int:
    """Find the number nearest to 0 that makes the weights fit s8 if it is subtracted. Raises GraphError without one."""
    low, high = int(weights.min()), int(weights.max())
    if high - low > 255:
        raise GraphError(f"integer weights must have 8 bits, got {low} to {high}")
    return min(low + 128, 0) or max(high - 127, 0)


def quantized(h: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Quantize the state to u8, NaN to 0; returns the integers minus the zero point (as f32), and the scale."""
    scale, zp = u8_range(h)
    with np.errstate(all="ignore"):
        q = np.rint(h / scale) + np.float32(zp)
        return np.where(q > 0, np.minimum(q, np.float32(255)), np.float32(0)) - np.float32(zp), scale


def lstm(gates: np.ndarray, recurrent: np.ndarray, h: np.ndarray, c: np.ndarray, scales: np.ndarray | None,
         lengths: np.ndarray | None, peepholes: np.ndarray | None,
         reverse: bool, by_row: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states of all steps, the last state, and the last cell.

    `peepholes` has one row for each of the gates i, o and f; the cell times this row is added to the gate's x + s.
    """
    states = np.zeros((len(gates), *h.shape), np.float32)
    pi, po, pf = np.split(np.zeros(3 * h.shape[1], np.float32) if peepholes is None else peepholes, 3)
    for t, active in _order(states, lengths, reverse):
        xi, xo, xf, xc = np.split(gates[t], 4, axis=1)
        si, so, sf, sc = np.split(state_sums(h, recurrent, scales, by_row), 4, axis=1)
        if peepholes is not None:
            si, sf = si + pi * c, sf + pf * c
        new = evaluate(CELL, None, (xf, sf, xi, si, xc, sc, c))
        if peepholes is not None:
            so = so + po * new
        c = np.where(active, new, c)
        states[t] = np.where(active, evaluate(OUTPUT, None, (xo, so, new)), 0)
        h = np.where(active, states[t], h)
    return states, h, c


def gru(gates: np.ndarray, recurrent: np.ndarray, h: np.ndarray, bias: np.ndarray, lengths: np.ndarray | None,
        linear_before_reset: bool, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """The states of all steps, and the last state.

    The reset gate r multiplies s or, without `linear_before_reset`, the state before the multiplication by weights.
    """
    size = h.shape[1]
    states = np.zeros((len(gates), *h.shape), np.float32)
    for t, active in _order(states, lengths, reverse):
        xz, xr, xh = np.split(gates[t], 3, axis=1)
        sz, sr = np.split(state_sums(h, recurrent[:2 * size]), 2, axis=1)
        z, r = evaluate(UPDATE, None, (xz, sz)), evaluate(UPDATE, None, (xr, sr))
        given = h if linear_before_reset else r * h
        sh = state_sums(given, recurrent[2 * size:])
        n = evaluate(CANDIDATE, None, (xh, r if linear_before_reset else np.ones_like(r), sh, bias))
        states[t] = np.where(active, evaluate(BLEND, None, (z, n, h)), 0)
        h = np.where(active, states[t], h)
    return states, h


def rnn(gates: np.ndarray, recurrent: np.ndarray, h: np.ndarray, lengths: np.ndarray | None,
        reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """The states of all steps, and the last state."""
    states = np.zeros((len(gates), *h.shape), np.float32)
    for t, active in _order(states, lengths, reverse):
        states[t] = np.where(active, evaluate(PLAIN, None, (gates[t], state_sums(h, recurrent))), 0)
        h = np.where(active, states[t], h)
    return states, h


def _order(states: np.ndarray, lengths: np.ndarray | None, reverse: bool) -> Iterator[tuple[int, np.ndarray]]:
    """The steps in the order of computation, each with a mask [B, 1] of the batch elements that have the step."""
    steps, rows = states.shape[:2]
    whole = np.full(rows, steps) if lengths is None else lengths
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        yield t, t < whole[:, None]
