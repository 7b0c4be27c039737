"""The slots of a family's steps: the words of an argument block that locate an epilogue's operands and output."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphq.ir import Node
from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.family.lower import Lowered
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import Space, Walk, broadcast_strides, dense, merged_space, strip_space
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Slot

Operand: TypeAlias = tuple[Ref, tuple[int, ...]]
"""The address of an operand and its byte strides along the output's dimensions; 0 along broadcast dimensions."""


def epilogue_operands(b: PlanBuilder, node: Node, lowered: Lowered,
                      own: Mapping[str, Callable[[OperandSource], Operand]] = {},
                      placed: Callable[[Operand], Operand] = lambda x: x) -> list[Operand]:
    """The operands of a partition's epilogue, then its output.

    Some families compute operands themselves, such as column sums; `own` maps the origin of such a source to a function
    that returns the operand. `placed` converts all others, and the output, to another iteration domain than the result.
    """
    operands = [own[s.origin](s) if s.origin in own else placed(operand(b, node, s, lowered.out))
                for s in lowered.sources]
    strides = b.strides.get(node.output) or dense(lowered.out, STORAGE[lowered.epilogue.dtype].itemsize)
    return [*operands, placed((Ref(b.result(node.output)), tuple(strides)))]


def epilogue_slots(b: PlanBuilder, node: Node, lowered: Lowered, keep: int = 0) -> tuple[Space, list[Slot]]:
    """The iteration domain of a partition, and the slots of its epilogue. The last `keep` dimensions are not merged."""
    operands = epilogue_operands(b, node, lowered)
    space = space_of(b, lowered.out, operands, keep)
    return space, slots_of(b, operands, space)


def space_of(b: PlanBuilder, out: Sequence[int], operands: Sequence[Operand], keep: int) -> Space:
    """The iteration domain of an output of shape `out`, split into strips if the step runs strip by strip.

    The last `keep` dimensions are not merged (see `merged_space`).
    """
    strides = [s for _, s in operands]
    if b.strips is None:
        return merged_space(out, strides, keep=keep)
    space = strip_space(out, strides, b.strips.m)
    walks = [in_room(b, ref.buffer) or walk for (ref, _), walk in zip(operands, space.walks, strict=True)]
    return space._replace(walks=tuple(walks))


def in_room(b: PlanBuilder, buffer: int) -> Walk | None:
    """The access map of a buffer that holds a single strip (a room); None if it holds a whole value."""
    rooms = {} if b.strips is None else b.strips.rooms
    return Walk(None, rooms[buffer]) if buffer in rooms else None


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
