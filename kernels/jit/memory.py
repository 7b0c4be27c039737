"""Allocate memory for weights and temporary buffers, aligned to cache lines, and find the addresses of arrays."""
import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from operator import index

import numpy as np

from graphq.base.platform import mapped_pages

LINE = 64
"""Bytes of a cache line, and of the widest vector register."""
PAGE = 1 << 21
"""Bytes of a huge page."""
CHUNK = 8 * PAGE
"""Bytes of a chunk. Small arrays that live long share a chunk. The chunk is freed together with the last of them."""

chunks: list[tuple[weakref.ref[np.ndarray], int]] = []
"""Chunks with free bytes, and how many bytes of each are in use.

A thread removes a chunk from the list while it cuts an array from the chunk. No other thread or signal handler can then
use the chunk at the same time.
"""


def aligned_empty(nbytes: int) -> np.ndarray:
    """Make an uninitialized u8 array of `nbytes`, aligned to LINE. Raises MemoryError."""
    try:
        room = np.empty(nbytes + LINE, np.uint8)
    except ValueError:  # NumPy raises this if no array can have so many bytes
        raise MemoryError(f"an array cannot have {nbytes} bytes") from None
    # Slice twice: a single slice of 0 bytes would have the address of `room`, perhaps not aligned.
    return room[-room.ctypes.data % LINE:][:nbytes]


def lasting_empty(nbytes: int) -> np.ndarray:
    """Like `aligned_empty`, for data that lives as long as a model. Uses huge pages if the system has them.

    Each run reads all weights of a plan once. With pages of 4 KB, most pages would miss in the TLB: ResNet-50 takes 3 %
    longer (virtual machine on Zen 5).
    """
    nbytes = index(nbytes)  # a plain int, not the open size of one model, because all models share `chunks`
    if nbytes > CHUNK // 2:
        return mapped(nbytes)
    chunk, used = None, 0
    with suppress(IndexError):
        begun, used = chunks.pop()
        chunk = begun()
    if chunk is None or used + nbytes > CHUNK:
        chunk, used = mapped(CHUNK), 0
    chunks.append((weakref.ref(chunk), used + -(-nbytes // LINE) * LINE))
    return chunk[used:used + nbytes]


def mapped(nbytes: int) -> np.ndarray:
    """Map `nbytes` bytes of zeros. Raises MemoryError if the system refuses."""
    try:
        pages = mapped_pages(nbytes + PAGE)
    except (OSError, OverflowError):
        raise MemoryError(f"the system cannot map {nbytes} bytes") from None
    return np.frombuffer(pages, np.uint8, nbytes, -np.frombuffer(pages, np.uint8).ctypes.data % PAGE)


class _Interface(ctypes.Structure):
    """The first fields of NumPy's PyArrayInterface."""

    _fields_ = (("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p))


_byte: Callable[..., ctypes.c_char] = ctypes.c_char.from_buffer
_interface = ctypes.PYFUNCTYPE(ctypes.POINTER(_Interface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def address_of(array: np.ndarray) -> int:
    """The address of the data of a contiguous array.

    The buffer protocol takes a quarter of the time of `array.ctypes`, but does not work for empty and read-only arrays.
    NumPy's C interface works for these as well, and takes half of the buffer protocol's time.
    """
    try:
        return ctypes.addressof(_byte(array))
    except (TypeError, ValueError):
        address: int = _interface(array.__array_struct__, None)[0].data
        return address
