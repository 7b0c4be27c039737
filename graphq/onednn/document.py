"""Python records for the JSON documents that ONEDNN_GRAPH_DUMP writes, and their conversion to JSON text."""
from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graphq.dtypes import ONEDNN
from graphq.ir.tensor_type import Dim, TensorType

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

    def with_ops(self, ops: Sequence[FileOp]) -> GraphFile:
        """A copy of the document with these operations."""
        return replace(self, ops=tuple(ops))


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
