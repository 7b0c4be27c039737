"""Delta debugging: the smallest part of a list that still fails (Zeller and Hildebrandt, TSE 2002, algorithm ddmin)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items`, in their order, that fails, and from which no single item can be left out.

    `items` as a whole must fail; that is not tested. The list is split into more and more chunks; a chunk that fails by
    itself, or the list without a chunk if that fails, replaces the list. This takes O(n^2) trials at worst, O(log n) if
    one chunk holds the cause.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        chunks = _split(kept, parts)
        rests = [[x for other in chunks if other is not chunk for x in other] for chunk in chunks]
        smaller = next((part for part in chunks if fails(part)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        smaller = next((part for part in rests if parts > 2 and fails(part)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


def _split(items: list[T], parts: int) -> list[list[T]]:
    """`parts` lists of nearly the same length; none is empty, as there are at least as many items."""
    bounds = [k * len(items) // parts for k in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]
