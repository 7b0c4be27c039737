"""The step of a plan that runs a kernel: a block function, its argument block by names, and how its blocks are shared.

A family's plan function makes the step, `PlanBuilder.run` adds it to a plan with the addresses of its operands, and
`runtime.OpenPlan` makes the numbers of its argument block. Tests run a step by itself.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.jit.isa import Level
from graphq.kernels.jit.modules import Function, FunctionTable
from graphq.kernels.jit.records import filled


class Target(NamedTuple):
    """What steps are planned for: the ISA level, the threads that share blocks, and whether code is kept on disk."""

    level: Level
    threads: int = 1
    cache: bool = True


class Ref(NamedTuple):
    """A word of an argument block: the address of a buffer of the plan plus bytes."""

    buffer: int
    offset: int = 0


Word: TypeAlias = int | Ref | Function | FunctionTable
"""A word of an argument block: a function stands for its address, which is known once it is compiled."""
Slot: TypeAlias = tuple[Word, Word, Word]
"""Where an operand of a Store, or its output, lies: the words of `records.SLOT`."""


class Step(NamedTuple):
    """Run `function(argument block, i)` for each i in range(blocks); all may be open sizes but the function.

    `words` are the first words of the argument block by the names of its record, in order; `slots` come after
    HEADER_WORDS. The blocks are cut into so many `pieces`, which threads share; 0: one thread runs them all.
    `macs` are the multiply-accumulates that the result asks for. `exact` is the share of products that vpmaddubsw
    takes, where weights are sorted by that. `aligned`: a run copies an input that is the operand `a` where its array
    does not start at a multiple of 64 bytes.

    A plan fills in these words where an argument block has them:

        rooms                 `room_count` rooms of `room_bytes`: each piece of the blocks writes in its own
        ahead, ahead_bytes    the constant weights `w` of the next step with these words: what to prefetch
    """

    kernel: str
    function: Function
    words: Mapping[str, Word]
    blocks: int
    pieces: int = 0
    slots: tuple[Slot, ...] = ()
    macs: int = 0
    exact: float | None = None
    aligned: bool = False

    def filled(self, words: Mapping[str, Word], slots: Sequence[Slot] = ()) -> Step:
        """The step with these words, and more slots. Raises KernelError for a word that the argument block has not."""
        return self._replace(words=filled(self.words, words), slots=(*self.slots, *slots))

    @property
    def room(self) -> int:
        """Bytes of all rooms."""
        words: Mapping[str, Any] = self.words
        return words["room_bytes"] * words["room_count"] if "rooms" in words else 0

    @property
    def block(self) -> list[Word]:
        """The argument block."""
        return [*self.words.values(), *[0] * (HEADER_WORDS - len(self.words)), *(w for s in self.slots for w in s)]

    def arguments(self, words: Mapping[str, Word], slots: Sequence[Slot] = ()) -> np.ndarray:
        """The argument block with these addresses as numbers, for tests and self-tests; rooms follow it."""
        block: Sequence[Any] = self.filled(words, slots).block
        out = np.array([*map(int, block), *[0] * -(-self.room // 8)], np.int64)
        if self.room:
            out[list(self.words).index("rooms")] = out.ctypes.data + 8 * len(block)
        return out

    def run(self, args: np.ndarray) -> None:
        """Run all blocks one after another, by way of ctypes: for tests and self-tests."""
        for index in range(self.blocks):
            self.function(args.ctypes.data, index)
