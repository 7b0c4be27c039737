"""Memory of packed weights and arenas, which kernels read and write by whole cache lines."""
from __future__ import annotations

import numpy as np

LINE = 64
"""Bytes of a cache line, and of the widest vector register."""


def aligned_empty(nbytes: int) -> np.ndarray:
    """An uninitialised u8 array of `nbytes`, aligned to LINE; raises MemoryError.

    NumPy asks the system for huge pages if an array has 4 MB or more.
    """
    try:
        room = np.empty(nbytes + LINE, np.uint8)
    except ValueError:  # more bytes than an array can have
        raise MemoryError(f"no array has {nbytes} bytes") from None
    return room[-room.ctypes.data % LINE:][:nbytes]  # two slices: one that is empty would start where `room` does
