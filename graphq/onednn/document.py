"""Python records for the JSON documents that ONEDNN_GRAPH_DUMP writes, and their conversion to JSON text."""
import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from graphq.dtypes import ONEDNN
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, shapes_agree

UNKNOWN = -(2**63)
"""oneDNN's mark of an unknown dimension or stride; a shape with only this mark has an unknown rank."""


class FileAttribute(NamedTuple):
    """An attribute in the file: its declared type, and its value (a tuple for a list)."""

    type: str
    value: Any


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """A tensor at a port of an op. An unknown dimension is None; with an unknown rank, `shape` is None."""

    id: int
    dtype: str
    shape: tuple[Dim, ...] | None
    stride: tuple[int, ...]
    layout_type: str = "strided"
    property_type: str = "undef"

    @property
    def type(self) -> TensorType:
        """The element type and shape of the tensor."""
        return TensorType(ONEDNN[self.dtype], self.shape)


@dataclass(frozen=True, slots=True)
class FileOp:
    """An operation in the file; `attrs` is None if the file has no such field."""

    id: int
    name: str
    kind: str
    attrs: Mapping[str, FileAttribute] | None
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]

    @property
    def label(self) -> str:
        """The op's label in errors."""
        return f"op {self.id} {shown(self.name)} ({shown(self.kind)[1:-1]})"


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A document; `header` has all fields except "graph", in the file's order."""

    header: Mapping[str, Any]
    ops: tuple[FileOp, ...]

    def with_ops(self, ops: Sequence[FileOp]) -> "GraphFile":
        """A copy of the document with these operations."""
        return replace(self, ops=tuple(ops))

    def in_order(self, where: str) -> list[FileOp]:
        """Sort the ops, producers first. Raises GraphError for equal ids, two producers of a tensor, or a cycle."""
        ops: dict[int, FileOp] = {}
        for op in self.ops:
            if op.id in ops:
                raise GraphError(f"{where}: {op.label}: id: taken by {ops[op.id].label}")
            ops[op.id] = op
        made: dict[int, FileOp] = {}
        for op in self.ops:
            for k, t in enumerate(op.outputs):
                if t.id in made:
                    raise GraphError(f"{where}: {op.label}: outputs[{k}].id: tensor {t.id} is computed by "
                                     f"{made[t.id].label} already")
                made[t.id] = op
        needs = {op.id: [made[t.id].id for t in op.inputs if t.id in made] for op in self.ops}
        seen: set[int] = set()
        for op in self.ops:
            if not seen.issuperset(needs[op.id]):
                break
            seen.add(op.id)
        else:
            return list(self.ops)
        try:
            return [ops[k] for k in TopologicalSorter(needs).static_order()]
        except CycleError as e:
            members = [ops[k].label for k in e.args[1]]
            few = members if len(members) < 9 else [*members[:4], "...", *members[-4:]]
            raise GraphError(f"{where}: graph: a cycle: {' -> '.join(few)}") from None

    def tensors(self, where: str) -> dict[int, LogicalTensor]:
        """The logical tensors by id, as declared by the producer or, without a producer, by the first user.

        Raises GraphError if two declarations of a tensor differ in dtype or shape. One difference is allowed: a user
        may declare 1 for a larger dimension of the producer, as in oneDNN's int8_maxpool_add_mul_fusion.
        """
        out = {t.id: t for op in self.ops for t in op.outputs}
        made = set(out)
        for op in self.ops:
            for k, t in enumerate(op.inputs):
                first = out.setdefault(t.id, t)
                place = f"{where}: {op.label}: inputs[{k}]"
                if t.dtype != first.dtype:
                    raise GraphError(f"{place}.dtype: tensor {t.id} is {first.dtype} elsewhere, here {t.dtype}")
                if not shapes_agree(t.shape, first.shape, ones=t.id in made):
                    raise GraphError(f"{place}.shape: tensor {t.id} is {first.type} elsewhere, here {t.type}")
        return out

    def interface(self, where: str) -> tuple[list[int], list[int]]:
        """The ids of the graph's inputs and outputs; ports that the file lists come first.

        Outputs are the listed tensors, the tensors that no op uses, and the tensors that an End uses. Listed ids of
        tensors that do not exist are ignored (int8_softmax_add has one). Raises GraphError for a listed input that an
        op computes, and for a listed output that no op computes.
        """
        made = dict.fromkeys(t.id for op in self.ops for t in op.outputs)
        used = dict.fromkeys(t.id for op in self.ops for t in op.inputs)
        ended = {t.id for op in self.ops if op.kind == "End" for t in op.inputs}
        inner = {t.id for op in self.ops if op.kind != "End" for t in op.inputs}
        ports = {side: self.header.get(f"{side}_ports", ()) for side in ("input", "output")}
        for k in ports["input"]:
            if k in made:
                raise GraphError(f"{where}: input_ports: tensor {k} is computed by an op")
        for k in ports["output"]:
            if k in used and k not in made:
                raise GraphError(f"{where}: output_ports: tensor {k} is computed by no op")
        inputs = _listed_first(ports["input"], [k for k in used if k not in made])
        outputs = _listed_first(ports["output"], [k for k in made if k not in inner or k in ended], among=made)
        return inputs, outputs


def shown(x: Any) -> str:
    """A value from a file, shortened for an error message."""
    return _SHORT.repr(x)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlist = _SHORT.maxtuple = 12
_SHORT.maxlong = 40


def dense_stride(shape: tuple[Dim, ...] | None) -> tuple[int, ...]:
    """Row-major strides in elements; UNKNOWN for each dimension if the shape is not known."""
    if shape is None or None in shape:
        return (UNKNOWN,) * (1 if shape is None else len(shape))
    return strides_in_order(shape, range(len(shape)))


def strides_in_order(shape: Sequence[Dim], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in memory in this order, outermost first."""
    out, size = [0] * len(shape), 1
    for k in reversed(order):
        out[k] = size
        size *= max(shape[k] or 0, 1)
    return tuple(out)


def to_json(file: GraphFile) -> str:
    """The document as oneDNN writes it, with two spaces for each level."""
    document = {**{k: list(v) if isinstance(v, tuple) else v for k, v in file.header.items()},
                "graph": [_op_document(op) for op in file.ops]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _op_document(op: FileOp) -> dict[str, Any]:
    out: dict[str, Any] = {"id": op.id, "name": op.name, "kind": op.kind}
    if op.attrs is not None:
        out["attrs"] = {k: {"type": a.type, "value": list(a.value) if isinstance(a.value, tuple) else a.value}
                        for k, a in op.attrs.items()}
    return {**out, "inputs": [_tensor_document(t) for t in op.inputs],
            "outputs": [_tensor_document(t) for t in op.outputs]}


def _tensor_document(t: LogicalTensor) -> dict[str, Any]:
    shape = [UNKNOWN] if t.shape is None else [UNKNOWN if d is None else d for d in t.shape]
    return {"id": t.id, "dtype": t.dtype, "shape": shape, "stride": list(t.stride), "layout_type": t.layout_type,
            "property_type": t.property_type}


def _listed_first(listed: Iterable[int], all_: list[int], among: Iterable[int] | None = None) -> list[int]:
    known = set(all_ if among is None else among)
    return list(dict.fromkeys([*(k for k in listed if k in known), *all_]))
