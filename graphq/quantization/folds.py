"""Folds: use some calibration batches for statistics, and hold out the others to compare settings."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_COMPARED = 8
"""The largest number of held-out batches that a fold compares."""
FEW = 8
"""The largest number of batches with which losses are also measured on changed copies. With more batches, the only
copies are batches multiplied by SIZES. Copies decide between settings only if there is a single batch."""


class Fold(NamedTuple):
    """A split of batches: `seen` batches give statistics, and settings are compared on `held_out` batches.

    The changed `copies` of held-out batches only show how reliable the loss is. All three hold indices in `Extended`.
    """

    seen: tuple[int, ...]
    held_out: tuple[int, ...]
    copies: tuple[int, ...] = ()


def folds(count: int) -> list[Fold]:
    """The folds of `count` batches.

    A single batch gives statistics; settings are compared on this batch and on its changed copy. With two or three
    batches, each batch is held out in turn. With four or more batches there are two folds: one holds out the last
    quarter, the other the first quarter. With at most FEW batches, the folds also have the changed copies of the
    held-out batches.
    """
    every = tuple(range(count))
    if count == 1:
        return [Fold(every, (0, 1))]
    if count <= 3:
        return [Fold(every[:k] + every[k + 1:], (k,), (count + k,)) for k in reversed(every)]
    part = count // 4
    made = [Fold(every[:-part], few(every[-part:])), Fold(every[part:], few(every[:part]))]
    return made if count > FEW else [f._replace(copies=tuple(count + k for k in f.held_out)) for f in made]


def judged(count: int) -> list[Fold]:
    """The folds that show how reliable a loss is. With 4 to FEW batches, each batch is held out once."""
    if not 4 <= count <= FEW:
        return folds(count)
    every, part = tuple(range(count)), count // 4
    parts = [every[k:k + part] for k in range(0, count, part)]
    return [Fold(tuple(k for k in every if k not in out), out, tuple(count + k for k in out)) for out in parts]


def few(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """At most MOST_COMPARED of the numbers, evenly spread."""
    size = min(len(numbers), MOST_COMPARED)
    return tuple(numbers[int(k)] for k in np.linspace(0, len(numbers) - 1, size))
