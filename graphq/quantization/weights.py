"""Quantized weights: s8, symmetric, with a scale for each output channel."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import s8
from graphq.quantization.products import Product
from graphq.quantization.ranges import SMALLEST, Parameters


def quantized_weights(product: Product, weights: np.ndarray, *, per_channel: bool) -> tuple[np.ndarray, Parameters]:
    """s8 weights in [-127, 127] and their scales, by the largest weight of each output channel, or of all.

    Clipping is left out: of 8 bits it costs more than it gains, since what is cut off one weight adds up over all
    products, where rounding errors cancel (docs/quantization.md has figures).
    """
    axis = product.weight_axes()[0] if per_channel else None
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    top = np.abs(rows).max(axis=1, initial=0.0)
    scales = np.where(top < SMALLEST, 1.0, top / 127).astype(np.float32)
    p = Parameters(s8, tuple(scales.tolist()), (0,) * len(scales), axis)
    along = scales.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
    return np.clip(np.rint(weights / along), -127, 127).astype(np.int8), p


def dequantized_weights(product: Product, weights: np.ndarray, *, per_channel: bool) -> np.ndarray:
    """The f32 weights that the quantized ones stand for."""
    q, p = quantized_weights(product, weights, per_channel=per_channel)
    along = [-1 if k == p.axis else 1 for k in range(weights.ndim)]
    return np.asarray(q.astype(np.float32) * np.array(p.scales, np.float32).reshape(along))


def rest_of_weights(product: Product, weights: np.ndarray, *, per_channel: bool) -> np.ndarray:
    """What the quantized weights leave over."""
    return np.asarray(weights - dequantized_weights(product, weights, per_channel=per_channel))
