"""Attention with a cache of keys and values, in NumPy.

    scores   q @ k' * scale; with a cap, tanh(x / cap) * cap; plus bias; -inf at keys that the query does not see
    weights  softmax of a row of scores; a sink is one more score in front of the row, whose weight is dropped
    y        weights @ v over the keys that the query sees; the values of other keys may even be NaN

A cache can hold f16 or bf16; new keys and values are rounded before any token uses them. A cache can also hold integers
q of 8 or 4 bits: q = rint(x / scale) with ties to even, saturated, and 0 for NaN; kernels read q * scale. Integers of 4
bits are stored as q + 8, two in a byte, the first in the low half.

Products are summed in the order of `float_sums`, and powers of a softmax in the order of `rows`, from key 0 on.
"""
import numpy as np

from graphq.kernels.lanes.elementary import tanh
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import STORAGE, fused, load
from graphq.kernels.numbers.float_sums import BLOCK, float_sums
from graphq.kernels.numbers.rows import softmax

Array = np.ndarray

_SCORE, _CAP = load(0, "f32", "vector"), load(1, "f32", "vector")
CAPPED = tanh(_SCORE / _CAP) * _CAP


def by_heads(x: Array, count: int) -> Array:
    """View x [batch, tokens, width] as [batch, tokens, heads, size], with `count` heads."""
    return x.reshape(*x.shape[:2], count, -1)


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate pairs of elements in each row of x by angles; rows of `cos` and `sin` broadcast.

    If `interleaved`, a pair is two neighboring elements. Otherwise it is an element of the first half of the rotated
    elements and its counterpart in the second half. n angles rotate the first 2 * n elements of a row.
    """
    half = cos.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else \
        (slice(half), slice(half, 2 * half))
    a, b, y = x[..., first], x[..., second], x.copy()
    with np.errstate(all="ignore"):
        y[..., first], y[..., second] = cos * a - sin * b, sin * a + cos * b
    return y


def packed(x: Array, scale: Array | None, kept: str) -> Array:
    """Convert x [batch, tokens, groups, size] to a cache's dtype `kept`; integers need a `scale` [groups, size]."""
    if scale is None:
        with np.errstate(over="ignore"):
            return x.astype(STORAGE[kept], copy=False)
    half = {"s8": 128, "s4": 8}[kept]
    with np.errstate(all="ignore"):
        q = np.rint(x / scale)
    q = np.clip(np.where(np.isnan(q), np.float32(0), q), -half, half - 1).astype(np.int8)
    if kept == "s8":
        return q
    pairs = (q + 8).astype(np.uint8)
    return pairs[..., ::2] | pairs[..., 1::2] << 4


def unpacked(cache: Array, scale: Array | None, kept: str) -> Array:
    """The f32 values of the elements of a cache [batch, groups, rows, ...]."""
    if scale is None:
        return cache.astype(np.float32, copy=False)
    if kept == "s4":
        cache = np.stack([cache & 15, cache >> 4], axis=-1).reshape(*cache.shape[:-1], -1).astype(np.int8) - np.int8(8)
    return cache.astype(np.float32) * scale[:, None]


def written(past: Array | None, new: Array, before: Array, capacity: int) -> Array:
    """Make the cache [batch, groups, capacity, size] of old and new tokens.

    Each batch element has `before` tokens of `past`, then the `new` tokens [batch, tokens, groups, size], then zeros.
    """
    batch, tokens, groups, size = new.shape
    out = np.zeros((batch, groups, capacity, size), new.dtype)
    for n, start in enumerate(before):
        if past is not None:
            out[n, :, :start] = past[n, :, :start]
        out[n, :, start:start + tokens] = new[n].swapaxes(0, 1)
    return out


def attended(q: Array, k: Array, v: Array, before: Array, ends: Array, bias: Array | None, sinks: Array | None, *,
             scale: float, softcap: float, window: int, causal: bool) -> Array:
    """The attention output for queries q [batch, tokens, heads, size] and caches k, v [batch, groups, capacity, size].

    `before` is the number of earlier tokens, per batch element. If `causal`, a token sees the keys up to its own,
    otherwise the first `ends` keys. A `window` above 0 limits them to the last `window` keys. The result has the shape
    of q.
    """
    batch, tokens, heads, size = q.shape
    groups, n = k.shape[1], int(before.max(initial=0)) + tokens
    k, v = k[:, :, :n], v[:, :, :n]
    places, columns = before[:, None] + np.arange(tokens), np.arange(n)
    last = (places + 1 if causal else np.broadcast_to(ends[:, None], places.shape))[..., None]
    seen = (columns < last) & (columns >= (last - window if window > 0 else 0))
    seen = seen[:, None]  # [batch, 1, tokens, keys]

    def grouped(x: Array) -> Array:
        return x.reshape(batch, groups, -1, x.shape[-1])

    with np.errstate(all="ignore"):
        x = float_sums(grouped(q.swapaxes(1, 2)), k.swapaxes(2, 3)).reshape(batch, heads, tokens, n) * np.float32(scale)
        if softcap:
            x = evaluate(CAPPED, None, [x, np.float32(softcap)])
        if bias is not None:
            x = x + bias[..., :n]
        x = np.where(seen, x, np.float32(-np.inf))
        if sinks is not None:
            x = np.concatenate([np.broadcast_to(sinks[:, None, None], (*x.shape[:3], 1)), x], axis=3)
        weights = softmax(x, inf_as_zero=False)[..., 0 if sinks is None else 1:]
    y = _sums(grouped(weights), v, grouped(np.broadcast_to(seen, weights.shape)))
    return y.reshape(batch, heads, tokens, size).swapaxes(1, 2)


def _sums(weights: Array, v: Array, seen: Array) -> Array:
    """Compute weights @ v in the order of `float_sums`. Values of keys that a query does not see count as 0."""
    out = np.zeros((*weights.shape[:3], v.shape[3]), np.float32)
    for start in range(0, v.shape[2], BLOCK):
        chain = np.zeros_like(out)
        for k in range(start, min(start + BLOCK, v.shape[2])):
            chain = fused(weights[..., k, None], np.where(seen[..., k, None], v[:, :, k, None], np.float32(0)), chain)
        out += chain
    return out
