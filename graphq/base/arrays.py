"""Fill arrays up with zeros, and deduplicate equal ones: weights of several operations are packed and stored once."""
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from graphq.base.sizes import plain

LINE = 64
"""The alignment of packed weights in bytes: the width of the widest vector that kernels load."""
SAMPLE = 64
"""The hash of an array covers about this many of its elements."""


def padded(w: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pad array `w` with zeros at the end of each axis, up to `shape`; returns `w` itself if it has this shape."""
    if w.shape == shape:
        return w
    out = np.zeros(shape, w.dtype)
    out[tuple(slice(d) for d in w.shape)] = w
    return out


class Content(tuple[Any, ...]):
    """An array as a dict key. Equality compares dtype, shape and all bits; the hash covers a sample of the elements."""

    bits: np.ndarray
    __hash__ = tuple.__hash__
    __ne__ = object.__ne__  # the opposite of __eq__ below

    def __new__(cls, array: np.ndarray) -> "Content":
        """Make the key of an array."""
        bits = array.view(f"u{array.itemsize}")
        own = super().__new__(cls, (array.dtype.name, array.shape, bits.flat[::max(1, bits.size // SAMPLE)].tobytes()))
        own.bits = bits
        return own

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content) or not tuple.__eq__(self, other):
            return False
        x, y = self.bits, other.bits
        return x.ctypes.data == y.ctypes.data and x.strides == y.strides or np.array_equal(x, y)


class Arrays:
    """The arrays of a model without duplicates, held by weak references. The arrays must not change.

    Several threads may use one object; in rare cases, a duplicate array then remains.
    """

    def __init__(self) -> None:
        self._known: dict[Any, list[weakref.ref[np.ndarray]]] = {}
        self._made: dict[Any, tuple[weakref.ref[np.ndarray], ...]] = {}

    @property
    def empty(self) -> bool:
        """Whether there are no arrays yet."""
        return not self._known

    def one_for(self, array: np.ndarray, *, aligned: bool = False) -> np.ndarray:
        """An equal array that was added before, else `array`, which is added.

        If `aligned`, the result is contiguous and aligned to LINE bytes, so it may be a copy of `array`.
        """
        array = np.ascontiguousarray(array) if aligned else array
        own = Content(array)
        kind = tuple(own)
        alike = [x for ref in tuple(self._known.get(kind, ())) if (x := ref()) is not None]
        for x in alike:
            if not (aligned and x.ctypes.data % LINE) and (x is array or own == Content(x)):
                return x
        if aligned and array.ctypes.data % LINE:
            room = np.empty(array.nbytes + LINE, np.uint8)
            copy = room[-room.ctypes.data % LINE:][:array.nbytes].view(array.dtype).reshape(array.shape)
            copy[...] = array
            array = copy
        self._known.setdefault(kind, []).append(weakref.ref(array, partial(_forget, self._known, kind)))
        return array

    def made(self, make: Callable[..., np.ndarray], array: np.ndarray, *args: Any) -> np.ndarray:
        """The aligned result of `make(array, *args)`; calls with equal arguments return the same array.

        `make` must use nothing but its arguments. Open sizes (`base.sizes`) among `args` become plain numbers, because
        all plans of a model share the result.
        """
        array, args = self.one_for(array), plain(args)
        key = make, id(array), args
        if (known := self._made.get(key)) is not None:
            source, result = known[0](), known[1]()
            if source is array and result is not None:
                return result
        result = self.one_for(make(array, *args), aligned=True)
        self._made[key] = weakref.ref(array, lambda _: self._made.pop(key, None)), weakref.ref(result)
        return result


def _forget(known: dict[Any, list[weakref.ref[np.ndarray]]], kind: Any, ref: weakref.ref[np.ndarray]) -> None:
    alike = [x for x in known.get(kind, ()) if x is not ref]
    if alike:
        known[kind] = alike
    else:
        known.pop(kind, None)
