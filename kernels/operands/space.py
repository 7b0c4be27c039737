"""Iteration spaces: any broadcast elementwise computation as (batch, m rows, n columns).

Neighbouring dimensions merge when every operand walks through both with one stride, so that most work becomes long
rows; what does not merge becomes batch elements, whose operand offsets come from a table.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.base.budget import reserve
from graphq.base.sizes import later


class Walk(NamedTuple):
    """How one operand is walked: its byte offset per batch element (None: 0 for all) and per row."""

    table: np.ndarray | None
    row: int


class Space(NamedTuple):
    """`batch` x `m` x `n` outputs and a walk for each operand; rows of the output are contiguous."""

    batch: int
    m: int
    n: int
    walks: tuple[Walk, ...] = ()


def broadcast_strides(shape: Sequence[int], out: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a dense array of `shape` along the dimensions of `out`, 0 where it is broadcast."""
    dense, step = [], itemsize
    for d in reversed(shape):
        dense.append(0 if d == 1 else step)
        step *= d
    dense += [0] * (len(out) - len(shape))
    return tuple(reversed(dense))


def every(batch: int, step: int) -> np.ndarray | None:
    """The table of the offsets of `batch` elements that follow each other `step` bytes apart; None for one."""
    return later(_every, batch, step) if batch > 1 else None


def _every(batch: int, step: int) -> np.ndarray:
    return np.arange(batch, dtype=np.int64) * step


def factor(out: Sequence[int], strides: Sequence[Sequence[int]], *, keep: int = 0) -> Space:
    """The space of an output of shape `out` for operands of the given byte strides along it.

    `keep`: this many of the last dimensions (2 at most) stay apart, an anchor's columns and rows, though dimensions
    before them may still join the rows. Dimensions of size 1 vanish, except kept ones.
    """
    none = (0,) * len(strides)
    dims = [(d, tuple(s[k] for s in strides)) for k, d in enumerate(out)]
    dims = [(1, none)] * (2 - len(dims)) + dims
    free = [x for x in dims[:len(dims) - keep] if x[0] != 1]
    kept = dims[len(dims) - keep:]
    columns = kept[-1] if keep else _merge_last(free or [(1, none)])
    free += kept[:-1]
    rows = _merge_last(free or [(1, none)])
    tables = (_table([(d, s[k]) for d, s in free]) for k in range(len(strides)))
    return Space(prod(d for d, _ in free), rows[0], columns[0],
                 tuple(Walk(t, rows[1][k]) for k, t in enumerate(tables)))


def _merge_last(dims: list[tuple[int, tuple[int, ...]]]) -> tuple[int, tuple[int, ...]]:
    """Take the last dimension, and all before it that merge with it, off `dims`; as one."""
    size, step = dims.pop()
    while dims and all(outer == inner * size for outer, inner in zip(dims[-1][1], step, strict=True)):
        size *= dims.pop()[0]
    return size, step


def _table(dims: list[tuple[int, int]]) -> np.ndarray | None:
    """Byte offsets of all batch elements in order; None when all are 0."""
    if not any(step for _, step in dims):
        return None
    return later(offsets, tuple(dims))


def offsets(dims: Sequence[tuple[int, int]]) -> np.ndarray:
    """The byte offsets of all elements of dimensions of (size, step), in row-major order."""
    reserve(8 * prod(size for size, _ in dims), f"the offsets of {[size for size, _ in dims]} matrices")
    out = np.zeros(1, np.int64)
    for size, step in dims:
        out = (out[:, None] + np.arange(size, dtype=np.int64) * step).ravel()
    return out
