"""Place a plan's buffers in an arena, the memory for values between steps, and reuse arenas in later runs."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from graphq.errors import CompileError
from graphq.kernels.jit.memory import LINE, aligned_empty
from graphq.kernels.threads.count import process_cores

Clashes: TypeAlias = Mapping[int, tuple[int, ...]]
"""Maps each buffer in the arena to the buffers that must not share its memory, because the lifetimes overlap."""


Lives: TypeAlias = Mapping[int, tuple[int, int]]
"""The lifetime of each buffer, by the buffer's index in the plan: the first and the last step that touch it."""


class Allocation(NamedTuple):
    """A buffer in the arena: its index in the plan, its offset and size in bytes, its first and last step."""

    buffer: int
    offset: int
    nbytes: int
    first: int
    last: int


def find_lives(touched: Iterable[Iterable[int]]) -> Lives:
    """The lifetimes of all buffers. `touched` has the indices of the buffers that each step touches."""
    lives: dict[int, tuple[int, int]] = {}
    for k, buffers in enumerate(touched):
        for b in buffers:
            lives[b] = (lives.get(b, (k, k))[0], k)
    return lives


def find_clashes(lives: Lives) -> Clashes:
    """Find the buffers whose lifetimes overlap."""
    return {b: tuple(o for o, (begin, end) in lives.items() if o != b and begin <= last and first <= end)
            for b, (first, last) in lives.items()}


def plan_arena(sizes: Mapping[int, int], clashes: Clashes) -> tuple[dict[int, int], int]:
    """The offsets of buffers of these `sizes` in the arena, and the arena's size, all in bytes.

    Buffers that do not clash may share memory. Buffers are placed from the largest to the smallest, each at the lowest
    offset that is free during its lifetime.
    """
    spans: dict[int, tuple[int, int]] = {}
    for b in sorted(sizes, key=lambda b: (-sizes[b], b)):
        at, size = 0, -(-sizes[b] // LINE) * LINE
        for begin, end in sorted([spans[o] for o in clashes[b] if o in spans]):
            if at + size <= begin:
                break
            if end > at:
                at = end
        spans[b] = at, at + size
    return {b: at for b, (at, _) in spans.items()}, max([end for _, end in spans.values()], default=0)


PATIENCE = 64
"""An arena is freed after this many runs in a row that did not use it."""


class Arena:
    """The memory of one run: an array of bytes, its address, and the index of the last run that used the memory."""

    __slots__ = ("address", "array", "last")

    def __init__(self, nbytes: int) -> None:
        try:
            self.array = aligned_empty(nbytes)
        except MemoryError:
            raise CompileError(f"not enough memory: values between inputs and outputs need {nbytes} bytes") from None
        self.address: int = self.array.ctypes.data
        self.last = 0


class Arenas:
    """The arenas of one model, for all its shapes and callers.

    Each concurrent run has an arena of its own. If the arena of an earlier run is too small, a larger one replaces it.
    At most one idle arena per core is kept, and an arena that `PATIENCE` runs did not use is freed.
    """

    def __init__(self) -> None:
        self.idle: list[Arena] = []
        self._runs = 0
        self.most = len(process_cores())

    def take(self, nbytes: int) -> Arena:
        """An arena of at least `nbytes` bytes. It belongs to the caller until `give_back`."""
        try:
            arena = self.idle.pop()
        except IndexError:
            return Arena(nbytes)
        return arena if arena.array.size >= nbytes else Arena(nbytes)

    def give_back(self, arena: Arena) -> None:
        """Return an arena to the idle arenas."""
        arena.last = self._runs = self._runs + 1  # not atomic: if two runs end at once, one may not be counted
        idle = self.idle
        idle.append(arena)
        first = idle[:1]  # a slice instead of idle[0], because another thread may empty the list
        if len(idle) > 1 and (len(idle) > self.most or first and first[0].last < self._runs - PATIENCE):
            del idle[:1]
