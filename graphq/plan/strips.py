"""Steps that run strip by strip, so that what lies between them takes memory for some rows and not for all."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from graphq.base.sizes import assumed, largest, later, number
from graphq.kernels.jit import modules
from graphq.kernels.threads.strips import STRIPS, strips_module
from graphq.plan.step import Part, Ref, Slot, Step, Target, Word, pieces, rows_of_block

ROOM = 600_000
"""Bytes that a strip may have between its steps, some half of L2: what they read beside it takes the rest.

With half of that attention over 2,048 keys in f32 takes 1 to 8 % longer, with twice as much none takes less (Zen 5).
"""
UNITS = (48, 24, 16, 8)
"""A strip's rows are a multiple of the first of these that it has: so they are whole tiles of products."""


class Strips(NamedTuple):
    """Steps on strips of `each` of the `m` rows of `batch` elements, which threads share in so many `pieces`, or 0.

    `rooms` are the buffers of what one step leaves for the next, with the bytes between rows: each piece has a room of
    `each` rows in each of them. `steps` are those that were added so far.
    """

    batch: int
    m: int
    each: int
    pieces: int
    rooms: Mapping[int, int]
    steps: list[Step]

    @property
    def blocks(self) -> int:
        """The number of strips."""
        return self.batch * -(-self.m // self.each)

    def touched_by(self, words: Mapping[str, Word], slots: Sequence[Slot]) -> bool:
        """Whether an argument block with these words and slots names a buffer with rooms."""
        return any(isinstance(w, Ref) and w.buffer in self.rooms for w in chain(words.values(), *slots))

    def add(self, step: Step) -> None:
        """Add a step, whose blocks are the strips."""
        assert assumed(step.blocks) == assumed(self.blocks)
        self.steps.append(step)

    def step(self, target: Target) -> Step:
        """The step that takes strips through all steps that were added."""
        block = modules.load("strips", strips_module, cache=target.cache).block
        parts = [Part(step, tuple([(k, self.rooms[w.buffer]) for k, w in enumerate(step.block)
                                   if isinstance(w, Ref) and w.buffer in self.rooms])) for step in self.steps]
        words = STRIPS.named({
            "steps": len(parts), "batch": self.batch, "m": self.m, "each": self.each,
            "room_count": largest(1, self.pieces), "room_bytes": 8 * max(len(step.block) for step in self.steps)})
        return Step(later(_joined, [step.kernel for step in self.steps]), block, words, self.blocks, self.pieces,
                    macs=sum(step.macs for step in self.steps), parts=tuple(parts))


def _joined(names: Sequence[str]) -> str:
    return " + ".join(names)


def row_stride(nbytes: int) -> int:
    """The bytes between rows of `nbytes` in a room: an odd multiple of 64.

    Rows of a tile would be in the same few sets of L1 where these are multiples of 4096: scores of 4,096 keys, in u8
    and in f32, take 2 to 4 % less time so (Zen 5).
    """
    return 64 * (-(-nbytes // 64) | 1)


def plan_strips(rows: tuple[int, int], strides: Sequence[int], threads: int) -> tuple[int, int]:
    """The rows of a strip, and the pieces, for `rows` (batch, m) of values with so many bytes between rows."""
    batch, m = rows
    each = number(_strip, batch, m, sum(strides), threads)
    return each, pieces(batch * -(-m // each), threads, threads)


def _strip(batch: int, m: int, stride: int, threads: int) -> int:
    most = ROOM // max(1, stride)
    unit = next((unit for unit in UNITS if unit <= most), UNITS[-1])
    return min(max(unit, most // unit * unit), rows_of_block(m, batch, threads, UNITS[-1]))
