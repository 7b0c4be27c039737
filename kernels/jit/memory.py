"""Memory of packed weights and arenas, which kernels read and write by whole cache lines, and addresses of arrays."""
from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress

import numpy as np

LINE = 64
"""Bytes of a cache line, and of the widest vector register."""
PAGE = 1 << 21
"""Bytes of a huge page."""
CHUNK = 8 * PAGE
"""Bytes that small lasting arrays are cut from; they return to the system together, with the last of these arrays."""

_begun: list[tuple[weakref.ref[np.ndarray], int]] = []
"""Chunks, and how many of their bytes are taken.

Who cuts an array from a chunk takes it out, so that nobody else has it then, neither another thread nor the handler of
a signal.
"""


def aligned_empty(nbytes: int) -> np.ndarray:
    """An uninitialised u8 array of `nbytes`, aligned to LINE; raises MemoryError."""
    try:
        room = np.empty(nbytes + LINE, np.uint8)
    except ValueError:  # more bytes than an array can have
        raise MemoryError(f"no array has {nbytes} bytes") from None
    return room[-room.ctypes.data % LINE:][:nbytes]  # two slices: one that is empty would start where `room` does


def lasting_empty(nbytes: int) -> np.ndarray:
    """The same for an array that lives as long as a model: it lies on huge pages where the system has them.

    A run reads all weights of a plan once, and on pages of 4 KB it waits for the entries of most pages: ResNet-50 takes
    3 % longer (virtual machine on Zen 5).
    """
    if nbytes > CHUNK // 2:
        return _mapped(nbytes)
    chunk, used = None, 0
    with suppress(IndexError):
        begun, used = _begun.pop()
        chunk = begun()
    if chunk is None or used + nbytes > CHUNK:
        chunk, used = _mapped(CHUNK), 0
    _begun.append((weakref.ref(chunk), used + -(-nbytes // LINE) * LINE))
    return chunk[used:used + nbytes]


def _mapped(nbytes: int) -> np.ndarray:
    """Fresh memory of the system, from the start of a huge page on."""
    try:
        pages = mmap.mmap(-1, nbytes + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise MemoryError(f"the system has no {nbytes} bytes") from None
    with suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, nbytes, -np.frombuffer(pages, np.uint8).ctypes.data % PAGE)


class _Interface(ctypes.Structure):
    """The first fields of NumPy's PyArrayInterface."""

    _fields_ = (("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p))


_interface = ctypes.PYFUNCTYPE(ctypes.POINTER(_Interface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def address_of(array: np.ndarray) -> int:
    """The address of an array's data, by NumPy's interface for C: in a fifth of the time that `array.ctypes` takes."""
    address: int = _interface(array.__array_struct__, None)[0].data
    return address
