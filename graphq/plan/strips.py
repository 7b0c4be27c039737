"""Steps that run strip by strip: each block of rows goes through all steps before the next block does.

A value between two steps then takes memory only for the rows of a strip.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from graphq.base.sizes import assumed, largest, later, number
from graphq.kernels.jit import modules
from graphq.kernels.threads.strips import STRIPS, strips_module
from graphq.plan.step import Part, Ref, Slot, Step, Target, Word, pieces, rows_of_block

ROOM = 600_000
"""The most bytes that the values between the steps of a strip take.

It is about half of an L2 cache of 1 MiB, since the other operands of the steps need room, too. Measured on Zen 5 with
attention over 2,048 keys in f32: half of this limit takes 1 to 8 % longer, and twice as much never takes less.
"""
UNITS = (48, 24, 16, 8)
"""Divisors of the number of rows of a strip, so that strips are cut into whole tiles of matrix products.

The number of rows that fit into ROOM is rounded down to a multiple of the first of these numbers that does not exceed
it.
"""


class Strips(NamedTuple):
    """Steps that run strip by strip: a strip is `each` of the `m` rows of one of `batch` elements.

    Threads share the strips in `pieces` pieces; 0 means that one thread runs them all. `rooms` maps the buffer of each
    value between two steps to the bytes between its rows; the buffer has memory for one strip (a room) for each piece.
    `steps` are the steps that were added so far.
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
        """Whether an argument block with these words and slots has the address of a value between two of the steps."""
        return any(isinstance(w, Ref) and w.buffer in self.rooms for w in chain(words.values(), *slots))

    def add(self, step: Step) -> None:
        """Add a step. Its blocks must be the strips."""
        assert assumed(step.blocks) == assumed(self.blocks)
        self.steps.append(step)

    def step(self, target: Target) -> Step:
        """The step that takes each strip through all steps that were added."""
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
    """The distance in bytes between rows of `nbytes` bytes in a strip's memory: an odd multiple of 64.

    If the distance were a multiple of 4096, the rows of a tile would share a few sets of the L1 cache. For attention
    scores of 4,096 keys in u8 and in f32 the odd multiple takes 2 to 4 % less time (Zen 5).
    """
    return 64 * (-(-nbytes // 64) | 1)


def plan_strips(rows: tuple[int, int], strides: Sequence[int], threads: int) -> tuple[int, int]:
    """The number of rows of a strip, and the number of pieces, for `rows` = (batch, m).

    `strides` has for each value between two steps the bytes between its rows.
    """
    batch, m = rows
    each = number(_strip, batch, m, sum(strides), threads)
    return each, pieces(batch * -(-m // each), threads, threads)


def _strip(batch: int, m: int, stride: int, threads: int) -> int:
    most = ROOM // max(1, stride)
    unit = next((unit for unit in UNITS if unit <= most), UNITS[-1])
    return min(max(unit, most // unit * unit), rows_of_block(m, batch, threads, UNITS[-1]))
