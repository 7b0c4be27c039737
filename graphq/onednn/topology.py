"""Find the order of a oneDNN document's operations, the document's tensors, and its inputs and outputs."""
from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from graphq.errors import GraphError
from graphq.ir.tensor_type import shapes_agree
from graphq.onednn.document import FileOp, GraphFile, LogicalTensor


def in_order(file: GraphFile, where: str) -> list[FileOp]:
    """Sort the ops, producers first. Raises GraphError for equal ids, two producers of a tensor, or a cycle."""
    ops: dict[int, FileOp] = {}
    for op in file.ops:
        if op.id in ops:
            raise GraphError(f"{where}: {op.label}: id: taken by {ops[op.id].label}")
        ops[op.id] = op
    made = _producers(file, where)
    needs = {op.id: [made[t.id].id for t in op.inputs if t.id in made] for op in file.ops}
    seen: set[int] = set()
    for op in file.ops:
        if not seen.issuperset(needs[op.id]):
            break
        seen.add(op.id)
    else:
        return list(file.ops)
    try:
        return [ops[k] for k in TopologicalSorter(needs).static_order()]
    except CycleError as e:
        members = [ops[k].label for k in e.args[1]]
        shown = members if len(members) < 9 else [*members[:4], "...", *members[-4:]]
        raise GraphError(f"{where}: graph: a cycle: {' -> '.join(shown)}") from None


def _producers(file: GraphFile, where: str) -> dict[int, FileOp]:
    made: dict[int, FileOp] = {}
    for op in file.ops:
        for k, t in enumerate(op.outputs):
            if t.id in made:
                raise GraphError(f"{where}: {op.label}: outputs[{k}].id: tensor {t.id} is computed by "
                                 f"{made[t.id].label} already")
            made[t.id] = op
    return made


def tensors(file: GraphFile, where: str) -> dict[int, LogicalTensor]:
    """The logical tensors by id, as declared by the producer or, without a producer, by the first user.

    Raises GraphError if two declarations of a tensor differ in dtype or shape. One difference is allowed: a user may
    declare 1 for a larger dimension of the producer, as in oneDNN's int8_maxpool_add_mul_fusion.
    """
    out = {t.id: t for op in file.ops for t in op.outputs}
    made = set(out)
    for op in file.ops:
        for k, t in enumerate(op.inputs):
            first = out.setdefault(t.id, t)
            place = f"{where}: {op.label}: inputs[{k}]"
            if t.dtype != first.dtype:
                raise GraphError(f"{place}.dtype: tensor {t.id} is {first.dtype} elsewhere, here {t.dtype}")
            if not shapes_agree(t.shape, first.shape, ones=t.id in made):
                raise GraphError(f"{place}.shape: tensor {t.id} is {first.type} elsewhere, here {t.type}")
    return out


def interface(file: GraphFile, where: str) -> tuple[list[int], list[int]]:
    """The ids of the graph's inputs and outputs; ports that the file lists come first.

    Outputs are the listed tensors, the tensors that no op uses, and the tensors that an End uses. Listed ids of tensors
    that do not exist are ignored (int8_softmax_add has one). Raises GraphError for a listed input that an op computes,
    and for a listed output that no op computes.
    """
    made = dict.fromkeys(t.id for op in file.ops for t in op.outputs)
    used = dict.fromkeys(t.id for op in file.ops for t in op.inputs)
    ended = {t.id for op in file.ops if op.kind == "End" for t in op.inputs}
    inner = {t.id for op in file.ops if op.kind != "End" for t in op.inputs}
    ports = {side: file.header.get(f"{side}_ports", ()) for side in ("input", "output")}
    for k in ports["input"]:
        if k in made:
            raise GraphError(f"{where}: input_ports: tensor {k} is computed by an op")
    for k in ports["output"]:
        if k in used and k not in made:
            raise GraphError(f"{where}: output_ports: tensor {k} is computed by no op")
    inputs = _listed_first(ports["input"], [k for k in used if k not in made])
    outputs = _listed_first(ports["output"], [k for k in made if k not in inner or k in ended], among=made)
    return inputs, outputs


def _listed_first(listed: Iterable[int], all_: list[int], among: Iterable[int] | None = None) -> list[int]:
    known = set(all_ if among is None else among)
    return list(dict.fromkeys([*(k for k in listed if k in known), *all_]))
