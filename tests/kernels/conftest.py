"""Memory whose end is guarded, for tests of kernels."""
import ctypes
import mmap

import numpy as np
import pytest


def _guarded(data):
    """A copy of an array that ends where unreadable memory begins."""
    pages = max(1, -(-data.nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    room = mmap.mmap(-1, pages + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    out = np.frombuffer(room, data.dtype, data.size, pages - data.nbytes).reshape(data.shape)
    out[...] = data
    return out


@pytest.fixture
def guarded():
    """The function that copies an array to the end of readable memory."""
    return _guarded
