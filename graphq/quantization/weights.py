"""Quantized weights: s8 with a scale for each output channel, and 4 bits in blocks along the sum."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import s8
from graphq.quantization.products import Product
from graphq.quantization.ranges import SMALLEST, Parameters

FACTORS = np.linspace(1.0, 0.7, 16)
"""By which the largest magnitude is tried as the end of the range."""


def quantized_weights(product: Product, weights: np.ndarray, *, per_channel: bool = True,
                      importance: np.ndarray | None = None) -> tuple[np.ndarray, Parameters]:
    """s8 weights, symmetric in [-127, 127], and their scales: those of least squared error of each channel.

    `importance` is what an input channel's errors count for, the mean square of its activations; without it all count
    alike. (Nagel et al., 2021, "A white paper on neural network quantization", 3.1.)
    """
    axis = product.weight_axes()[0]
    rows = _rows(weights, axis) if per_channel else weights.reshape(1, -1)
    factor = _importances(product, weights, importance)
    factor = None if factor is None else _rows(factor, axis) if per_channel else factor.reshape(1, -1)
    top = np.abs(rows).max(axis=1, initial=0.0)
    best, scales = np.full(len(rows), np.inf), np.maximum(top / 127, SMALLEST)
    for f in FACTORS:
        tried = np.maximum((top * f / 127).astype(np.float32), np.float32(SMALLEST))[:, None]
        error = np.square(rows - tried * np.clip(np.rint(rows / tried), -127, 127))
        loss = (error if factor is None else error * factor).sum(axis=1)
        better = loss < best
        best[better], scales[better] = loss[better], tried[better, 0]
    scales = np.where(top < SMALLEST, 1.0, scales).astype(np.float32)
    p = Parameters(s8, tuple(scales.tolist()), (0,) * len(scales), axis if per_channel else None)
    return rounded(weights, p), p


def rounded(weights: np.ndarray, p: Parameters) -> np.ndarray:
    """Weights to the nearest integers."""
    return np.clip(np.rint(weights / along(p, weights.ndim)), -127, 127).astype(np.int8)


def along(p: Parameters, rank: int) -> np.ndarray:
    """The scales so that they broadcast with a tensor of this rank."""
    return np.asarray(p.scales, np.float32).reshape([-1 if k == p.axis else 1 for k in range(rank)])


def _rows(x: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def _importances(product: Product, weights: np.ndarray, importance: np.ndarray | None) -> np.ndarray | None:
    """`importance` of input channels for each element of the weights; None where channels do not fit."""
    if importance is None:
        return None
    out, into = product.weight_axes()
    if product.groups == 1 and len(importance) == weights.shape[into]:
        shape = [-1 if k == into else 1 for k in range(weights.ndim)]
        return np.broadcast_to(importance.reshape(shape), weights.shape)
    return None
