"""Signature: the inputs and outputs of a graph, by names and types."""
from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from graphq.dtypes import DType
from graphq.ir.graph import Graph
from graphq.ir.tensor_type import TensorType


@dataclass(frozen=True)
class Parameter:
    """An input of a graph; `property` is oneDNN's, or "size" if shapes depend on its numbers (`model.open_shapes`)."""

    name: str
    type: TensorType
    property: str

    @builtins.property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype


class Signature(NamedTuple):
    """The name of a graph, its inputs in order, and the types of its outputs by name, in order."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: Mapping[str, TensorType]

    @classmethod
    def of(cls, graph: Graph) -> Signature:
        """The signature of a graph."""
        return cls(graph.name, tuple([Parameter(v.name or "", v.type, v.property) for v in graph.inputs]),
                   {name: v.type for name, v in zip(graph.output_names, graph.outputs, strict=True)})
