"""Memory of packed weights and arenas: aligned, writeable, and refused where there is too little."""
from __future__ import annotations

import numpy as np
import pytest

from graphq.kernels.jit.memory import LINE, aligned_empty


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 5_000_001])
def test_aligned(nbytes: int) -> None:
    room = aligned_empty(nbytes)
    assert room.dtype == np.uint8 and room.shape == (nbytes,) and room.flags.writeable
    assert room.ctypes.data % LINE == 0
    room[:] = 7
    assert room.sum() == 7 * nbytes


@pytest.mark.parametrize("nbytes", [1 << 46, 1 << 62, (1 << 63) - 1, 1 << 80])
def test_too_much(nbytes: int) -> None:
    with pytest.raises(MemoryError):
        aligned_empty(nbytes)
