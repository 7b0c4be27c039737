"""ONNX models: `load_onnx` makes a graph of an ONNX model, `save_onnx` writes a graph as an ONNX model.

Both need the package onnx (the extra `onnx`) and tables of operators. Importing these takes long, so it is done at the
first call.
"""
from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from graphq.base.collector import collector_paused
from graphq.base.locks import late_imports
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph
from graphq.onnx import node

if TYPE_CHECKING:
    from onnx import ModelProto


__all__ = ["load_onnx", "node", "save_onnx", "to_model"]


@collector_paused()
def load_onnx(source: str | os.PathLike[str] | bytes | ModelProto, *, memory: int | None = None) -> Graph:
    """The graph of an ONNX model: a path, the bytes of a file, or a ModelProto.

    Inputs and outputs keep their names and order; an input with an initializer is that constant. Symbolic dimensions
    are open: compiled models take them from the arrays. External data must lie in the model's folder. Local functions
    are expanded, and so is an If of a constant condition. A node for which graphq has no operation becomes an
    `onnx_node`, which runs ONNX's reference; `explain()` lists these nodes.

    Raises ParseError if `source` is not a model or lacks its data, GraphError, naming the node, if it breaks a rule of
    ONNX or has types that graphq does not have (strings, sequences, maps, optionals), CompileError if the constants
    would take more than `memory` bytes (None: half of the machine's memory), GraphqError if the package onnx is
    missing.
    """
    return _module("loading").load_onnx(source, memory=memory)


def save_onnx(graph: Graph, path: str | os.PathLike[str], *, opset: int = 21) -> None:
    """Write `graph` as an ONNX model, of the operator set `opset`: 13 to 21.

    Inputs and outputs keep their names. quantize and dequantize become QuantizeLinear and DequantizeLinear. A partition
    of a compiled model's graph (`save_onnx(model.graph, ...)`) becomes a local function of its operations, so that
    viewers show it as one node; other engines, and `load_onnx`, run the operations. If the model's shapes are open, the
    file is for the shapes in the graph's types. A smaller `opset` is for engines that know no newer one. The numbers
    are the same, except that ONNX Runtime and `load_onnx` let AveragePool add in another order below opset 19.

    Raises GraphError, naming the operation, for forms of oneDNN that ONNX's operators cannot express with the same
    numbers, and for what `opset` does not have, with the operator set that has it; a partition needs 21. Raises
    GraphqError if the package onnx is missing.
    """
    _module("saving").save_onnx(graph, path, opset=opset)


def to_model(graph: Graph, *, opset: int = 21) -> ModelProto:
    """`graph` as the ModelProto that `save_onnx` writes."""
    return _module("saving").to_model(graph, opset=opset)


def _module(name: str) -> ModuleType:
    try:
        with late_imports():
            return import_module(f"graphq.onnx.{name}")
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise GraphqError(f"ONNX models need the package onnx: {how_to_install('onnx')}") from None
