"""The range for dynamic quantization: the scale and zero point with which u8 covers a tensor."""
from __future__ import annotations

import numpy as np


def u8_range(x: np.ndarray) -> tuple[np.float32, np.uint8]:
    """The scale (f32) and zero point (u8) of f32 `x`, as the operation dynamic_range defines them."""
    zero = np.float32(0)
    with np.errstate(all="ignore"):
        top, low = np.maximum(zero, x.max(initial=0)), np.minimum(zero, x.min(initial=0))
        scale = np.float32(1 if top == low else top - low) / np.float32(255)
        zp = np.rint(np.clip(zero - low / scale, 0, 255))
        return np.float32(scale), np.uint8(np.nan_to_num(zp))
