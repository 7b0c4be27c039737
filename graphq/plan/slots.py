"""Slots of plan steps: where the operands of a Store and its output lie, and the words that say so."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphq.base.sizes import later
from graphq.ir import Node
from graphq.kernels.family.epilogue import Source
from graphq.kernels.family.lower import Lowered
from graphq.kernels.jit.registry import Step
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import Space, Walk, broadcast_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Argument, Ref

Strides = tuple[int, ...]


def operand_slot(b: PlanBuilder, node: Node, source: Source, out: tuple[int, ...]) -> tuple[Ref, Strides]:
    """Where an operand lies, and its byte strides along the output."""
    if source.origin in ("parameter", "table"):
        assert source.data is not None
        buffer = b.constant(source.data)
    else:
        value = node.inputs[source.index]
        assert value is not None
        buffer = b.of[value]
    return Ref(buffer), broadcast_strides(source.shape, out, STORAGE[source.dtype].itemsize)


def output(buffer: int, space: Space, lowered: Lowered) -> tuple[Ref, Walk]:
    """The output's slot: dense rows, dense batch elements."""
    row = space.n * STORAGE[lowered.store.dtype].itemsize
    return Ref(buffer), Walk(every(space.batch, row * space.m), row)


def every(batch: int, step: int) -> np.ndarray | None:
    """The table of the offsets of `batch` elements that follow each other `step` bytes apart; None for one."""
    return later(_every, batch, step) if batch > 1 else None


def _every(batch: int, step: int) -> np.ndarray:
    return np.arange(batch, dtype=np.int64) * step


def table(b: PlanBuilder, walk: Walk) -> int | Ref:
    """The word of a walk's table of offsets."""
    return 0 if walk.table is None else Ref(b.constant(walk.table))


def run(b: PlanBuilder, step: Step, words: Mapping[str, Argument], slots: Sequence[tuple[Ref, Walk]]) -> None:
    """Add a kernel's step: its fields with `words` filled in, then (pointer, table, row stride) of each slot."""
    block: list[Argument] = step.filled(words)
    for ref, walk in slots:
        block += [ref, table(b, walk), walk.row]
    b.native(step, block)
