"""ONNX models: `load_onnx` makes a graph of one, `save_onnx` writes a graph as one.

Both need the package onnx (the extra `onnx`) and tables of operators, which take long to import; so they are imported
at the first call.
"""
from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from graphq.base.locks import importing
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph
from graphq.onnx import node

if TYPE_CHECKING:
    from onnx import ModelProto


__all__ = ["load_onnx", "node", "save_onnx", "to_model"]


def load_onnx(source: str | os.PathLike[str] | bytes | ModelProto, *, memory: int | None = None) -> Graph:
    """The graph of an ONNX model: a path, the bytes of a file, or a ModelProto; see graphq.onnx.loading.

    Inputs and outputs keep their names and order, symbolic dimensions are open. Raises ParseError if `source` is not a
    model, GraphError, naming the node, if it breaks a rule, CompileError if the constants would take more than `memory`
    bytes (None: half of the machine's memory), GraphqError if the package onnx is missing.
    """
    return _module("loading").load_onnx(source, memory=memory)


def save_onnx(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` as an ONNX model, opset 21; see graphq.onnx.saving.

    Raises GraphError, naming the operation, if ONNX cannot express it with the same numbers, GraphqError if the package
    onnx is missing.
    """
    _module("saving").save_onnx(graph, path)


def to_model(graph: Graph) -> ModelProto:
    """`graph` as the ModelProto that `save_onnx` writes."""
    return _module("saving").to_model(graph)


def _module(name: str) -> ModuleType:
    try:
        with importing.hold:
            return import_module(f"graphq.onnx.{name}")
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise GraphqError(f"ONNX models need the package onnx: {how_to_install('onnx')}") from None
