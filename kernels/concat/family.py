"""The kernel family of concats: the lowering, the plan steps, and the record.

Each operand's slice of the result, called a part, gets a lane-wise expression and a step:

    result[part k] = f(dequantize?(x_k))        f: the epilogue of the concat, with the scales of this part's channels

A part is a plain copy if its elements do not change, for example if the result is quantized with the parameters that
dequantize the operand.
"""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.eltwise import family as eltwise
from graphq.kernels.family.lower import Arrays, Lowered, lower_eltwise, result_dims
from graphq.kernels.family.record import Family, any_operands, operand, slots_of
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.moves.transpose import plan_strided_copy
from graphq.kernels.operands.space import broadcast_strides, merged_space
from graphq.kernels.target.level import Level
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref


class ResultSlice(NamedTuple):
    """A slice of the result from index `start` on. `lowered` computes it from the partition's inputs `inputs`."""

    start: int
    lowered: Lowered
    inputs: tuple[int, ...]

    @property
    def copies(self) -> bool:
        """Whether the slice is a plain copy of the operand."""
        epilogue = self.lowered.epilogue
        return epilogue.expr.op == "load" and epilogue.expr.value[1] == epilogue.dtype \
            and self.lowered.sources[0].shape == self.lowered.out


@dataclass(frozen=True, eq=False)
class Concat(Lowered):
    """A lowered concat along `axis`, with its parts in order."""

    axis: int = 0
    parts: tuple[ResultSlice, ...] = ()

    def tabulated(self, constants: Arrays, level: Level) -> "Concat":
        """Replace operations on single bytes by table look-ups in each part, like `Lowered.tabulated`."""
        parts = (p._replace(lowered=p.lowered.tabulated([constants[k] for k in p.inputs], level)) for p in self.parts)
        return replace(self, parts=tuple(parts))

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The concatenated results of the parts, in NumPy."""
        return np.concatenate([inputs[p.inputs[0]].reshape(p.lowered.out) if p.copies
                               else p.lowered.formula([inputs[k] for k in p.inputs]) for p in self.parts], self.axis)


def lower_concat(body: Graph, constants: Arrays = ()) -> Concat:
    """Lower a body of dequantizes, a concat and an epilogue. Raises Unsupported."""
    out = result_dims(body)
    node = next(n for n in body.nodes if n.op.name == "concat")
    if node.output.type.dims != out:
        raise Unsupported("the epilogue changes the shape of {made} to {stored}",
                          "quantize before the operation that changes the shape",
                          made=node.output, stored=body.outputs[0])
    axis, start, parts = node.attrs["axis"] % len(out), 0, []
    own = {v.node for v in node.operands}
    rest = [n for n in body.nodes if n not in own]
    numbers = {v: k for k, v in enumerate(body.inputs)}
    for value in node.operands:
        parts.append(_part(rest, node, value, numbers, body.outputs[0], axis, start))
        start += value.type.dims[axis]
    return Concat(out, parts[0].lowered.epilogue, (), None, axis=axis, parts=tuple(parts))


def _part(rest: Sequence[Node], node: Node, source: Value, numbers: Mapping[Value, int], result: Value, axis: int,
          start: int) -> ResultSlice:
    """Make the part of operand `source`: a copy of the body that reads the operand instead of the concat.

    `rest` are the body's nodes, without the nodes that compute the concat's operands. `numbers` maps each input of the
    body to its index.
    """
    nodes = [*([] if source.node is None else [source.node]), *rest]
    read = {source, *(v for n in nodes if n is not node for v in n.operands)}
    part, new = Graph("part"), dict[Value, Value]()
    for v in sorted((v for v in read if v in numbers), key=numbers.__getitem__):
        new[v] = part.input(str(v.name), dtype=v.dtype, shape=v.type.dims)
    inputs = tuple(numbers[v] for v in new)
    after: set[Value] = {node.output}
    for n in nodes:
        if n is node:
            new[n.output] = new[source]
            continue
        if after.intersection(n.operands):
            after.add(n.output)
            _check_operands(n, after, node.output, axis)
        attrs = _sliced(n, axis, start, source.type.dims[axis]) if n.output in after else n.attrs
        operands = [None if v is None else new[v] for v in n.inputs]
        new[n.output] = part.add_node(n.op, operands, attrs)[0]
    part.output(new[result], name="out")
    return ResultSlice(start, lower_eltwise(part), inputs)


def _check_operands(node: Node, after: set[Value], joined: Value, along: int) -> None:
    """Refuse epilogue operands that vary along the concat's axis: each part would need a slice of them."""
    rank = len(node.output.type.dims)
    for v in node.operands:
        shape = v.type.dims
        k = along - (rank - len(shape))
        channels = len(shape) == 1 and node.attrs.get("data_format") == "NCX"  # if so, v varies along dimension 1
        if v not in after and v.type.size != 1 and (channels or k >= 0 and shape[k] != 1):
            raise Unsupported(f"an operand of {node.op.name}, " + "{other}, varies along {own}, the axis of the concat",
                              f"quantize and dequantize the concat before the {node.op.name}",
                              other=v, own=Axes(joined, (along,)))


def _sliced(node: Node, axis: int, start: int, size: int) -> dict:
    attrs = dict(node.attrs)
    if attrs.get("qtype") == "per_channel" and attrs["axis"] % len(node.output.type.dims) == axis:
        attrs |= {name: x[start:start + size] for name in ("scales", "zps") if (x := attrs[name]) is not None}
    return attrs


def concat_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add one step per part that is not empty: a copy of rows, or a loop over the part's lane-wise operations."""
    assert isinstance(lowered, Concat)
    item = STORAGE[lowered.epilogue.dtype].itemsize
    strides, inner = broadcast_strides(lowered.out, lowered.out, item), prod(lowered.out[lowered.axis + 1:]) * item
    out = b.result(node.output)
    for part in lowered.parts:
        x, target = part.lowered, Ref(out, part.start * inner)
        if 0 in x.out:
            continue
        if part.copies:
            size, line = x.out[lowered.axis] * inner, lowered.out[lowered.axis] * inner
            step = plan_strided_copy((prod(lowered.out[:lowered.axis]), size), (size, 1), 1, b.target, (line, 1))
            source = node.operand(part.inputs[x.sources[0].index])
            b.run(step, {"source": Ref(b.of[source]), "target": target})
            continue
        operands = [operand(b, node, replace(s, index=part.inputs[s.index]) if s.origin == "input" else s, x.out)
                    for s in x.sources]
        operands.append((target, tuple(0 if d == 1 else s for d, s in zip(x.out, strides, strict=True))))
        # Rows must be contiguous. They run along `last`, the last axis of size above 1. If this axis is not contiguous
        # in the output, each row is one element.
        last = max((k for k, d in enumerate(x.out) if d != 1), default=0)
        space = merged_space(x.out, [s for _, s in operands], keep=0 if strides[last] == item else 1)
        b.run(eltwise.plan_eltwise(x.epilogue, space, b.target), {}, slots_of(b, operands, space))


CONCAT = Family("concat", ("concat",), lower_concat, concat_steps, any_operands("concat"))
