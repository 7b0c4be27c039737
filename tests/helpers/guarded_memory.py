"""Memory whose end is guarded."""
import ctypes
import mmap

import numpy as np


def guarded(data):
    """A copy of an array that ends where unreadable memory begins."""
    data = np.ascontiguousarray(data)
    pages = max(1, -(-data.nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    room = mmap.mmap(-1, pages + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    out = np.frombuffer(room, data.dtype, data.size, pages - data.nbytes).reshape(data.shape)
    out[...] = data
    return out


FENCE = 4096
"""The bytes before and behind an array of `fenced`."""


def fenced(shape, dtype):
    """An array between two fences, and the bytes of both and of the array."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.full(2 * FENCE + nbytes, 0xA5, np.uint8)
    return room[FENCE:FENCE + nbytes].view(dtype).reshape(shape), room


def is_intact(room):
    """Whether nothing was written to the fences of `fenced`."""
    return bool((room[:FENCE] == 0xA5).all() and (room[-FENCE:] == 0xA5).all())
