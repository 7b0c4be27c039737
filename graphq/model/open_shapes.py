"""Open dimensions of a graph's inputs, the classes of their sizes, and arrays that plans for them share."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from graphq.ir import Graph

Sizes: TypeAlias = tuple[int, ...]
"""The sizes of the open dimensions of all inputs, in their order."""

EXAMPLES = {0: (0,), 1: (1,), 2: (12, 10, 14, 6, 9), 3: (52, 76, 92, 116, 44), 4: (352, 544, 416, 608, 736)}
"""Example sizes of each class. They are rare in models, so that none equals another number by chance.

Sizes of images are multiples of 32, since networks that halve an image five times need that.
"""


def size_class(size: int) -> int:
    """The class of a size: 0 and 1 have their own, class 2 are sizes up to 15, 3 up to 127, and so on by factors of 8.

    Plans of one class differ little in speed: tiles and shares of threads are chosen for one size of it.
    """
    return size if size < 2 else 2 + (size.bit_length() - 2) // 3


def range_of(of: int) -> str:
    """The range of sizes of the class `of`, as text."""
    return str(of) if of < 2 else f"{2 << 3 * (of - 2)} to {(2 << 3 * (of - 1)) - 1}"


def examples(sizes: Sequence[int]) -> Sizes:
    """An example for each size, of its class.

    Equal sizes get the same example, different ones different examples if possible.
    """
    chosen: dict[int, int] = {}
    for size in sizes:
        of = size_class(size)
        known = EXAMPLES.get(of) or tuple(n * 8 ** (of - 4) for n in EXAMPLES[4])
        free = [n for n in known if n not in chosen.values()]
        if size not in chosen:
            chosen[size] = free[0] if free else known[0] if of < 2 else size
    return tuple(chosen[size] for size in sizes)


class Dimension(NamedTuple):
    """An open dimension of an input; `name` is its name in the file, or tells its place."""

    input: str
    axis: int
    name: str


def open_dimensions(graph: Graph) -> list[Dimension]:
    """The open dimensions of all inputs, in order; names come from `graph.meta`, if the file had any."""
    names = graph.meta.get("dimensions", {})
    return [Dimension(str(v.name), k, names.get((v.name, k)) or f"{v.name}.{k}")
            for v in graph.inputs for k, d in enumerate(v.shape or ()) if d is None]


class Shared:
    """Shares equal arrays between plans. The arrays of the first plan are not compared among themselves."""

    def __init__(self) -> None:
        self._first: list[np.ndarray] | None = None
        self._known: dict[tuple[object, ...], list[np.ndarray]] = {}

    @property
    def empty(self) -> bool:
        """Whether there has been no plan yet."""
        return self._first is None

    def of(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """A plan's arrays, replaced by equal ones of earlier plans, so that the plan can free its own."""
        if self._first is None:
            self._first = arrays
            return arrays
        made = [self._one_for(x) for x in (*self._first, *arrays)][len(self._first):]
        self._first = []
        return made

    def _one_for(self, array: np.ndarray) -> np.ndarray:
        """The first array that was seen with these bits, or this array itself."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sample = data[::max(1, data.size // 64)].tobytes()
        alike = self._known.setdefault((array.dtype.str, array.shape, sample), [])
        for known in alike:
            if known is array or np.array_equal(np.ascontiguousarray(known).reshape(-1).view(np.uint8), data):
                return known
        alike.append(array)
        return array
