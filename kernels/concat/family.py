"""The kernel family of concats: its record, and the plan steps, one for each concatenated operand."""
from __future__ import annotations

from dataclasses import replace
from math import prod

from graphq.ir import Node
from graphq.kernels.concat.lower import Concat, ResultSlice, lower_concat
from graphq.kernels.eltwise import family as eltwise
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.family.slots import operand, slots_of
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.moves.transpose import plan_row_copy
from graphq.kernels.operands.space import broadcast_strides, factor
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref


def concat_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add one step per part that is not empty: a copy of rows, or a loop over the part's lane-wise operations."""
    assert isinstance(lowered, Concat)
    strides = broadcast_strides(lowered.out, lowered.out, STORAGE[lowered.store.dtype].itemsize)
    out = b.result(node.output)
    for part in lowered.parts:
        if 0 in part.lowered.out:
            continue
        inner = prod(lowered.out[lowered.axis + 1:]) * STORAGE[lowered.store.dtype].itemsize
        target = Ref(out, part.start * inner)
        if part.copies:
            source = node.operand(part.inputs[part.lowered.sources[0].index])
            size = part.lowered.out[lowered.axis] * inner
            step = plan_row_copy(prod(lowered.out[:lowered.axis]), size, size, lowered.out[lowered.axis] * inner,
                                 b.target)
            b.run(step, {"source": Ref(b.of[source]), "target": target})
        else:
            _computed(b, node, part, target, strides)


def _computed(b: PlanBuilder, node: Node, part: ResultSlice, target: Ref, strides: tuple[int, ...]) -> None:
    x = part.lowered
    operands = [operand(b, node, replace(s, index=part.inputs[s.index]) if s.origin == "input" else s, x.out)
                for s in x.sources]
    operands.append((target, tuple(0 if d == 1 else s for d, s in zip(x.out, strides, strict=True))))
    # Rows must be contiguous. They run along `last`, the last axis of size above 1. If this axis is not contiguous in
    # the output, each row is one element.
    last = max((k for k, d in enumerate(x.out) if d != 1), default=0)
    dense = strides[last] == STORAGE[x.store.dtype].itemsize
    space = factor(x.out, [s for _, s in operands], keep=0 if dense else 1)
    step = eltwise.plan_eltwise(x.store, space, b.target)
    b.run(step, {}, slots_of(b, operands, space))


CONCAT = Family("concat", ("concat",), lower_concat, concat_steps, any_operands("concat"))
