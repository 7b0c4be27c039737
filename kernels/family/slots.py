"""The slots of a step: words of its argument block that locate the operands and the output of a Store (epilogue)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphq.ir import Node
from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.family.lower import Lowered
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import Space, Walk, apart, broadcast_strides, dense, factor
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Slot

Strides: TypeAlias = tuple[int, ...]
Operand: TypeAlias = tuple[Ref, Strides]
"""The address of an operand and its byte strides along the output's dimensions; 0 along broadcast dimensions."""


def store_slots(b: PlanBuilder, node: Node, lowered: Lowered,
                own: Mapping[str, Callable[[OperandSource], Operand]] = {}, *,
                before: Sequence[Operand] = (), keep: int = 0) -> tuple[Space, list[Slot]]:
    """The iteration domain of a partition, and the slots of its Store: the operands, then the output.

    Operands from `before` come first. Some families compute operands themselves, such as column sums; `own` maps the
    origin of such a source to a function that returns the operand. The last `keep` dimensions are not merged (see
    `factor`).
    """
    operands = list(before)
    for s in lowered.sources:
        operands.append(own[s.origin](s) if s.origin in own else operand(b, node, s, lowered.out))
    item = STORAGE[lowered.store.dtype].itemsize
    operands.append((Ref(b.result(node.output)), tuple(b.strides.get(node.output) or dense(lowered.out, item))))
    space = space_of(b, lowered.out, operands, keep)
    return space, slots_of(b, operands, space)


def space_of(b: PlanBuilder, out: Sequence[int], operands: Sequence[Operand], keep: int) -> Space:
    """The iteration domain of an output of shape `out`, split into strips if the step runs strip by strip."""
    strides = [s for _, s in operands]
    if b.strips is None:
        return factor(out, strides, keep=keep)
    space = apart(out, strides, b.strips.m)
    walks = [in_room(b, ref.buffer) or walk for (ref, _), walk in zip(operands, space.walks, strict=True)]
    return space._replace(walks=tuple(walks))


def in_room(b: PlanBuilder, buffer: int) -> Walk | None:
    """The access map of a buffer that holds a single strip (a room); None if it holds a whole value."""
    if b.strips is None or buffer not in b.strips.rooms:
        return None
    return Walk(None, b.strips.rooms[buffer])


def operand(b: PlanBuilder, node: Node, source: OperandSource, out: tuple[int, ...]) -> Operand:
    """The buffer of a source (a new constant, or an input of `node`) and its byte strides, broadcast to `out`."""
    if source.origin in ("parameter", "table"):
        assert source.data is not None
        buffer = b.constant(source.data)
    else:
        buffer = b.of[node.operand(source.index)]
    return Ref(buffer), broadcast_strides(source.shape, out, STORAGE[source.dtype].itemsize)


def slots_of(b: PlanBuilder, operands: Sequence[Operand], space: Space) -> list[Slot]:
    """The slots of operands in an iteration domain. Their tables become constants of the plan."""
    return [(ref, b.table(walk.table), walk.row) for (ref, _), walk in zip(operands, space.walks, strict=True)]
