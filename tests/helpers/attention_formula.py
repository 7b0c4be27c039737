"""Attention to caches of keys and values by its definition, query by query, in f64."""
import numpy as np


def attended(q, k, v, before, ends, bias=None, sinks=None, *, scale=1.0, softcap=0.0, window=0, causal=True):
    """The output [batch, tokens, heads, size] for queries of this shape and caches [batch, groups, capacity, size]."""
    batch, tokens, heads, _ = q.shape
    y = np.zeros(q.shape)
    for n, i, h in np.ndindex(batch, tokens, heads):
        last = before[n] + i + 1 if causal else ends[n]
        first = max(last - window, 0) if window > 0 else 0
        keys, values = (x[n, h * k.shape[1] // heads, first:last].astype(float) for x in (k, v))
        scores = keys @ q[n, i, h].astype(float) * scale
        if softcap:
            scores = np.tanh(scores / softcap) * softcap
        if bias is not None:
            scores = scores + bias[n % len(bias), h % bias.shape[1], i, first:last]
        powers = np.exp(scores)
        y[n, i, h] = powers @ values / (powers.sum() + (0 if sinks is None else np.exp(float(sinks[h]))))
    return y


def rotated(x, angles, interleaved):
    """Each pair of the first elements of x [..., size] times exp(i * angle), for angles [..., pairs]."""
    pairs = 2 * angles.shape[-1]
    parts = (x[..., 0:pairs:2], x[..., 1:pairs:2]) if interleaved else np.split(x[..., :pairs], 2, axis=-1)
    turned = (parts[0] + 1j * parts[1].astype(float)) * np.exp(1j * angles)
    both = np.stack([turned.real, turned.imag], axis=-1 if interleaved else -2).reshape(*x.shape[:-1], pairs)
    return np.concatenate([both, x[..., pairs:]], axis=-1)
