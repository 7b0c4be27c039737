"""Deduplicate equal arrays: weights that several operations or plans use are packed once and stored once."""
from __future__ import annotations

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


class Content:
    """An array as a dict key. Equality compares dtype, shape and all bits; the hash covers a sample of the elements."""

    __slots__ = ("array", "hash", "kind")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.view(f"u{array.itemsize}")
        self.kind = array.dtype.name, array.shape, self.array.flat[::max(1, array.size // SAMPLE)].tobytes()
        self.hash = hash(self.kind)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content) or self.kind != other.kind:
            return False
        x, y = self.array, other.array
        return _address(x) == _address(y) and x.strides == y.strides or np.array_equal(x, y)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


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

    def one_for(self, array: np.ndarray, multiple: int = 1) -> np.ndarray:
        """An equal array that was added before, else `array`, which is added. Addresses are multiples of `multiple`."""
        own = Content(array)
        alike = [x for ref in tuple(self._known.get(own.kind, ())) if (x := ref()) is not None]
        for x in alike:
            if _address(x) % multiple == 0 and (x is array or own == Content(x)):
                return x
        array = array if multiple == 1 else _aligned(array)
        self._known.setdefault(own.kind, []).append(weakref.ref(array, partial(_forget, self._known, own.kind)))
        return array

    def aligned(self, array: np.ndarray) -> np.ndarray:
        """Like `one_for`, but the result is contiguous and aligned to LINE bytes, so it may be a copy of `array`."""
        return self.one_for(np.ascontiguousarray(array), LINE)

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
        result = self.aligned(make(array, *args))
        self._made[key] = weakref.ref(array, partial(_drop, self._made, key)), weakref.ref(result)
        return result


def _aligned(array: np.ndarray) -> np.ndarray:
    if _address(array) % LINE == 0:
        return array
    room = np.empty(array.nbytes + LINE, np.uint8)
    out = room[-_address(room) % LINE:][:array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def _forget(known: dict[Any, list[weakref.ref[np.ndarray]]], kind: Any, ref: weakref.ref[np.ndarray]) -> None:
    alike = [x for x in known.get(kind, ()) if x is not ref]
    if alike:
        known[kind] = alike
    else:
        known.pop(kind, None)


def _drop(made: dict[Any, Any], key: Any, _: object) -> None:
    made.pop(key, None)
