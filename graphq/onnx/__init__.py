"""Load and save ONNX models: `load_onnx` makes a graph of a model, `save_onnx` makes a model of a graph.

Both need the package onnx (the extra `onnx`). The first call is slow, because it imports onnx and the importers.
"""
import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from graphq.base.budget import collector_paused
from graphq.base.locks import late_imports
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph
from graphq.onnx import node

if TYPE_CHECKING:
    from onnx import ModelProto


__all__ = ["load_onnx", "node", "save_onnx", "to_model"]


@collector_paused()
def load_onnx(source: "str | os.PathLike[str] | bytes | ModelProto", *, memory: int | None = None) -> Graph:
    """Load an ONNX model from a path, the bytes of a file, or a ModelProto; returns its graph.

    Inputs and outputs keep their names and order. An input with an initializer becomes a constant. Symbolic dimensions
    are open: each call of the compiled model sets them. External data must lie in the model's folder. Calls of local
    functions are expanded. An If with a constant condition becomes the branch that the condition selects. If graphq has
    no operation for a node, ONNX's reference evaluator runs the node as an `onnx_node`; `explain()` lists these nodes.

    Raises ParseError if `source` is not a model or its data is missing. Raises GraphError, naming the node, if the
    model breaks a rule of ONNX or has types that graphq lacks (strings, maps, changing sequences). Raises
    CompileError if the constants would take more than `memory` bytes (None: half of the machine's memory), GraphqError
    if the package onnx is missing.
    """
    return _module("loading").load_onnx(source, memory=memory)


def save_onnx(graph: Graph, path: str | os.PathLike[str], *, opset: int = 21) -> None:
    """Write `graph` as an ONNX model of the operator set `opset`, from 13 on; older engines need a smaller set.

    Inputs and outputs keep their names. quantize and dequantize become QuantizeLinear and DequantizeLinear. A partition
    of a compiled model's graph (`save_onnx(model.graph, ...)`) becomes a local function of its operations: viewers show
    one node, and engines run the operations. If the model has open dimensions, the file is valid only for the sizes in
    the graph's types. Numbers do not depend on `opset`, with one exception: below opset 19, ONNX Runtime and
    `load_onnx` add the elements of an AveragePool in another order.

    Raises GraphError, naming the operation, if ONNX's operators cannot express the operation with the same numbers, or
    if this needs a newer operator set. A partition needs opset 21 or newer. Raises GraphqError if
    the package onnx is missing.
    """
    _module("saving").save_onnx(graph, path, opset=opset)


def to_model(graph: Graph, *, opset: int = 21) -> "ModelProto":
    """Convert `graph` to the ModelProto that `save_onnx` writes."""
    return _module("saving").to_model(graph, opset=opset)


def _module(name: str) -> ModuleType:
    try:
        with late_imports():
            return import_module(f"graphq.onnx.{name}")
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise GraphqError(f"ONNX models need the package onnx: {how_to_install('onnx')}") from None
