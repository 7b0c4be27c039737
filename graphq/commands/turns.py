"""Times several calls in turns, in one process, so that ratios hold even if the machine's speed drifts."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from graphq.base.progress import progress

ROUNDS = 8
"""The number of turns of each side. The first call of a turn, with the other side's data in caches, is not counted."""
PAUSE = 0.05
"""Seconds between turns, so that a side's idle worker threads stop spinning before the next side's turn."""


def alternate(calls: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """The milliseconds of each run of each call; `seconds` is the time that all turns together take."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in progress(range(ROUNDS), "rounds"):
        for call, out in zip(calls, times, strict=True):
            time.sleep(PAUSE)
            call()
            end = time.perf_counter() + seconds / (len(calls) * ROUNDS)
            begin = 0.0
            while begin < end:
                begin = time.perf_counter()
                call()
                out.append(1e3 * (time.perf_counter() - begin))
    return times


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two arrays as f64 vectors: 0 if one is all zeros, 1 if both are."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else float(np.array_equal(x, y))


def difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference: in steps for integers, else as a part of the largest number of `y`."""
    wide = [a.astype(np.float64) for a in (x, y)]
    most = float(np.abs(wide[0] - wide[1]).max(initial=0))
    return most if np.issubdtype(x.dtype, np.integer) else most / max(float(np.abs(wide[1]).max(initial=0)), 1e-30)
