"""Where the operands of a Store and its output lie, in the words of a step."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphq.ir import Node
from graphq.kernels.family.epilogue import Source
from graphq.kernels.family.lower import Lowered
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import Space, Walk, broadcast_strides, factor, table
from graphq.plan.builder import PlanBuilder
from graphq.plan.step import Ref, Slot

Strides: TypeAlias = tuple[int, ...]
Operand: TypeAlias = tuple[Ref, Strides]
"""Where an operand lies, and its byte strides along the dimensions of the output, 0 where it is broadcast."""


def store_slots(b: PlanBuilder, node: Node, lowered: Lowered, own: Mapping[str, Callable[[Source], Operand]] = {}, *,
                before: Sequence[Operand] = (), keep: int = 0) -> tuple[Space, list[Slot]]:
    """The iteration space of a partition, and the slots of its Store: its operands, then the output, which is dense.

    `own[origin](source)` gives the operand of a source whose origin is one of those that the family itself computes,
    as column sums. Operands `before` the Store's have walks and slots, too, which come first: those of the product
    whose sums the Store takes. `keep` dimensions stay apart (`factor`).
    """
    operands = list(before)
    for s in lowered.sources:
        operands.append(own[s.origin](s) if s.origin in own else operand(b, node, s, lowered.out))
    space = factor(lowered.out, [strides for _, strides in operands], keep=keep)
    row = space.n * STORAGE[lowered.store.dtype].itemsize
    dense = Walk(table([(space.batch, row * space.m)]), row)
    slots = [slot(b, ref, walk) for (ref, _), walk in zip(operands, space.walks, strict=True)]
    return space, [*slots, slot(b, Ref(b.result(node.output)), dense)]


def operand(b: PlanBuilder, node: Node, source: Source, out: tuple[int, ...]) -> Operand:
    """The buffer of a source (a new constant, or an input of `node`), and its strides broadcast to shape `out`."""
    if source.origin in ("parameter", "table"):
        assert source.data is not None
        buffer = b.constant(source.data)
    else:
        buffer = b.of[node.operand(source.index)]
    return Ref(buffer), broadcast_strides(source.shape, out, STORAGE[source.dtype].itemsize)


def slot(b: PlanBuilder, ref: Ref, walk: Walk) -> Slot:
    """The slot of what lies at `ref` and is walked so; the table of the walk becomes a constant of the plan."""
    return ref, b.table(walk.table), walk.row
