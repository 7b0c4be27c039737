"""Quantized weights: s8, symmetric, with a scale for each output channel.

Weights of 8 bits lie in [-127, 127], weights of 7 bits in [-64, 64]. Two products of a u8 activation and a weight of
7 bits sum to at most 2 * 255 * 64 = 32640, which fits in 16 bits. So vpmaddubsw, the x86 instruction that adds two
products in 16 bits and saturates, is exact for them; CPUs without VNNI have no faster instruction. PyTorch and ONNX
Runtime call these weights `reduce_range`.
"""
from __future__ import annotations

import numpy as np

from graphq.dtypes import s8
from graphq.quantization.products import Product
from graphq.quantization.ranges import SMALLEST, Parameters
from graphq.quantization.scheme import Scheme

LARGEST = {7: 64, 8: 127}
"""The largest magnitude of weights, by their bits."""


def quantized_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, Parameters]:
    """Weights as s8 integers in the range of `scheme.weight_bits`, and their scales.

    A scale maps the largest weight of its output channel, or of the tensor, to the largest integer. Nothing is clipped:
    at 8 bits clipping costs more than it gains. Over many products rounding errors cancel, but the parts that are cut
    off large weights add up (docs/quantization.md has figures).
    """
    axis = product.weight_axes()[0] if scheme.per_channel else None
    most = LARGEST[scheme.weight_bits]
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    top = np.abs(rows).max(axis=1, initial=0.0)
    scales = np.where(top < SMALLEST, 1.0, top / most).astype(np.float32)
    p = Parameters(s8, tuple(scales.tolist()), (0,) * len(scales), axis)
    along = scales.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
    return np.clip(np.rint(weights / along), -most, most).astype(np.int8), p


def dequantized_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The f32 weights that the quantized ones stand for."""
    q, p = quantized_weights(product, weights, scheme)
    along = [-1 if k == p.axis else 1 for k in range(weights.ndim)]
    return np.asarray(q.astype(np.float32) * np.array(p.scales, np.float32).reshape(along))


def rest_of_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The difference between the weights and what the quantized ones stand for."""
    return np.asarray(weights - dequantized_weights(product, weights, scheme))
