"""Observations of a tensor for quantization: its range for u8, and its histogram.

The highest 14 bits of an f32 (sign, exponent and 5 bits of the fraction) are the index of its bin. Each power of two
thus has 32 bins of equal width, so the relative distance of a number from the edge of its bin is at most 1/32. DDSketch
(Masson et al., 2019, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees") is similar,
but its bins have equal width in the logarithm.
"""
import numpy as np


def u8_range(x: np.ndarray) -> tuple[np.float32, np.uint8]:
    """The scale (f32) and zero point (u8) of f32 `x`, as the operation dynamic_range defines them."""
    zero = np.float32(0)
    with np.errstate(all="ignore"):
        top, low = np.maximum(zero, x.max(initial=0)), np.minimum(zero, x.min(initial=0))
        scale = np.float32(1 if top == low else top - low) / np.float32(255)
        zp = np.rint(np.clip(zero - low / scale, 0, 255))
        return np.float32(scale), np.uint8(np.nan_to_num(zp))


SHIFT = 18
"""The number of low bits of an f32 that do not affect its bin."""
BINS = 1 << (32 - SHIFT)
"""The number of bins, including one for NaN and one for each infinity."""
INFINITY, NAN = 0x7F800000, 0x7FC00000
"""The bits of infinity, and those that stand for every NaN: CPUs differ in a NaN's sign."""


def ordered(x: np.ndarray) -> np.ndarray:
    """Map the bits of f32 (s32) to s32 that compare in the order -inf < -0 < 0 < inf < NaN.

    For NaN as the bits NAN, this is totalOrder of IEEE 754. The function is its own inverse.
    """
    return x ^ ((x >> 31) & 0x7FFFFFFF)


def histogram(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The counts of bins, s32, and the extremes by `ordered`, f32 [least, greatest]; [inf, -inf] if `x` is empty."""
    bits = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.int32)
    bits = np.where(bits & 0x7FFFFFFF > INFINITY, np.int32(NAN), bits)
    counts = np.bincount(bits.view(np.uint32) >> SHIFT, minlength=BINS).astype(np.int32)
    none = ordered(np.array([np.inf, -np.inf], np.float32).view(np.int32))
    keys = ordered(bits)
    extremes = np.array([keys.min(initial=none[0]), keys.max(initial=none[1])], np.int32)
    return counts, ordered(extremes).view(np.float32)
