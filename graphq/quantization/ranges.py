"""Turn statistics into scales and zero points.

A method gives a range (low, high); scale and zero point follow from the range. min-max and percentiles give one range;
MSE proposes many, and picks the range of least squared error.

Each bin of a histogram is assumed to be filled evenly. Under this assumption the mean squared error of a range is
exact. Rounding x to multiples of s costs the integral of (x - s rint(x / s))**2, and clipping at T costs the integral
of (x - T)**2. Both have closed forms.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import TensorStatistics

SMALLEST = float(np.float32(2.0**-100))
"""The smallest scale of an activation; smaller ranges are not quantized (`holds`)."""
LEAST, MOST = 2.0**-126, float(np.finfo(np.float32).max)
"""The smallest normal number of f32, and the largest number."""


def scales_of(top: np.ndarray, most: int) -> np.ndarray:
    """The f32 scales that map numbers up to `top` to integers up to `most`; the scale is 1 if `top` is 0.

    A subnormal scale has few digits. It is rounded up, so that nothing is clipped. A scale whose largest multiple would
    be infinite is rounded down.
    """
    scales = (top / most).astype(np.float32)
    largest = scales.astype(np.float64) * most
    scales = np.where((scales < LEAST) & (largest < top), np.nextafter(scales, np.float32(np.inf)), scales)
    scales = np.where(largest > MOST, np.nextafter(scales, np.float32(0)), scales)
    return np.where(top > 0, scales, np.float32(1))


@dataclass(frozen=True)
class Parameters:
    """How a tensor is quantized: the dtype of its integers, scales and zero points; several scales lie along `axis`."""

    dtype: DType
    scales: tuple[float, ...]
    zps: tuple[int, ...]
    axis: int | None = None

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of quantize and dequantize."""
        per_channel = self.axis is not None
        return {"qtype": "per_channel" if per_channel else "per_tensor", "axis": self.axis if per_channel else 1,
                "scales": list(self.scales), "zps": list(self.zps) if any(self.zps) else None}

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest number that a tensor with one scale can represent."""
        s, z = self.scales[0], self.zps[0]
        return (int(self.dtype.min) - z) * s, (int(self.dtype.max) - z) * s


def parameters(t: TensorStatistics, scheme: Scheme, dtype: DType, name: str = "") -> Parameters:
    """Scale and zero point of a tensor: from the scheme's limits for its name, otherwise by the scheme's method."""
    limits = dict(scheme.limits).get(name)
    if limits is not None:
        return from_range(*limits, dtype, scheme.symmetric)
    key = scheme.method, scheme.percentile, scheme.symmetric, dtype, t.size
    if key not in t.ranges:
        t.ranges[key] = chosen_range(t, scheme, dtype)
    low, high = t.ranges[key]
    return from_range(low * scheme.headroom, high * scheme.headroom, dtype, scheme.symmetric)


def from_range(low: float, high: float, dtype: DType, symmetric: bool) -> Parameters:
    """The parameters whose integers cover [low, high] and represent 0 exactly.

    Jacob et al., 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only inference".
    """
    low, high = min(low, 0.0), max(high, 0.0)
    least, most = int(dtype.min), int(dtype.max)
    if symmetric and (low < 0 or least < 0):
        middle = (least + most + 1) // 2
        scale, zp = max(-low, high) / (most - middle), middle
    else:
        scale = (high - low) / (most - least)
        zp = 0 if scale < SMALLEST else int(np.clip(np.rint(least - low / scale), least, most))
    scale = float(np.float32(scale))
    return Parameters(dtype, (scale if scale >= SMALLEST else 1.0,), (zp,))


def holds(t: TensorStatistics, p: Parameters) -> bool:
    """Whether the integers can represent the tensor. They cannot if its range is so small that all numbers become 0."""
    top = max(-t.low, t.high)
    return top == 0 or top >= p.scales[0] / 2


def chosen_range(t: TensorStatistics, scheme: Scheme, dtype: DType) -> tuple[float, float]:
    """The range of a tensor by the scheme's method."""
    match scheme.method:
        case "min_max":
            return t.low, t.high
        case _ if not t.size:
            raise GraphError(f"method {scheme.method} needs histograms: call calibrate with histograms=True")
        case "percentile":
            return percentile_range(t, scheme.percentile)
    return mse_range(t, dtype, scheme.symmetric)


def percentile_range(t: TensorStatistics, percentile: float) -> tuple[float, float]:
    """The range without the (100 - percentile) % of elements of largest magnitude.

    Wu et al., 2020, "Integer quantization for deep learning inference: principles and empirical evaluation". The bounds
    of the histogram's bins put the threshold within 1/32 of the exact threshold.
    """
    lower, upper, counts = t.bins()
    magnitude = np.maximum(np.abs(lower), np.abs(upper))
    order = np.argsort(magnitude, kind="stable")
    inside = np.cumsum(counts[order])
    limit = magnitude[order[np.searchsorted(inside, percentile / 100 * inside[-1])]]
    return max(t.low, -limit), min(t.high, limit)


def mse_range(t: TensorStatistics, dtype: DType, symmetric: bool, steps: int = 25) -> tuple[float, float]:
    """The range of least mean squared error; the search alternates between both ends until nothing changes.

    Sung et al., 2015, "Resiliency of deep neural networks under quantization", choose the step by this error; Banner
    et al., 2019, "Post-training 4-bit quantization of convolution networks", choose the clipping threshold by it.
    """
    low, high = min(t.low, 0.0), max(t.high, 0.0)
    factors, bins = np.linspace(1, 0.28, steps), t.bins()

    def best(ranges: list[tuple[float, float]]) -> tuple[float, float]:
        candidates = [from_range(*r, dtype, symmetric) for r in ranges]
        return ranges[int(np.argmin(squared_errors(bins, candidates)))]

    if symmetric or low == 0 or high == 0:
        top = max(-low, high)
        return best([(max(low, -top * f), min(high, top * f)) for f in factors])
    before: tuple[float, ...] = ()
    while before != (low, high):
        before = low, high
        low, high = best([(low, high * f) for f in factors])
        low, high = best([(low * f, high) for f in factors])
    return low, high


def squared_errors(bins: tuple[np.ndarray, np.ndarray, np.ndarray], candidates: Sequence[Parameters]) -> np.ndarray:
    """The sum of (x - dequantize(quantize(x)))**2 per candidate; values are uniform within a bin of the histogram."""
    lower, upper, counts = bins
    s = np.array([p.scales[0] for p in candidates])[:, None]
    least, most = np.array([p.limits for p in candidates]).T[:, :, None]
    start, end = np.clip(lower, least, most), np.clip(upper, least, most)
    inside = s**3 * (_sawtooth(end / s) - _sawtooth(start / s))
    beyond = (np.maximum(upper - most, 0)**3 - np.maximum(lower - most, 0)**3
              + np.maximum(least - lower, 0)**3 - np.maximum(least - upper, 0)**3) / 3
    width = upper - lower
    single = (lower - s * np.rint(start / s))**2  # for bins of width 0, which hold a single number
    mean = np.where(width > 0, (inside + beyond) / np.maximum(width, 1e-300), single)
    return np.asarray(mean @ counts)


def _sawtooth(u: np.ndarray) -> np.ndarray:
    """The integral of (v - rint(v))**2 from 0 to u."""
    n = np.rint(u)
    r = u - n
    return n / 12 + r * r * r / 3
