"""Tiles of the integer matmul as plain loops, for any CPU."""
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from graphq.kernels.intrinsics import load_s8, load_s32, load_s64, load_u8, store_s32


def scalar_tile(shift: int) -> Any:
    """Make the tile function of one panel; activations are bytes xor `shift` (128 for s8)."""

    @njit(error_model="numpy")
    def tile(address: int) -> None:
        frame = np.intp(address)
        a, lda, w, k = load_s64(frame), load_s64(frame + 8), load_s64(frame + 16), load_s64(frame + 24)
        rows, acc = load_s64(frame + 32), load_s64(frame + 48)
        for i in range(rows):
            for c in range(16):
                store_s32(acc + 64 * i + 4 * c, 0)
            for j in range(k):
                x = load_u8(a + i * lda + j) ^ shift
                line = w + j // 4 * 64 + j % 4
                for c in range(16):
                    at = acc + 64 * i + 4 * c
                    store_s32(at, load_s32(at) + x * load_s8(line + 4 * c))

    return tile
