"""load_onnx and save_onnx without the package onnx until they are called: `import graphq` does not need it."""
from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from graphq.errors import GraphqError
from graphq.ir import Graph

if TYPE_CHECKING:
    from onnx import ModelProto


def load_onnx(source: str | os.PathLike[str] | bytes | ModelProto) -> Graph:
    """The graph of an ONNX model: a path, the bytes of a file, or a ModelProto; see graphq.onnx.loading.

    Inputs and outputs keep their names and order, symbolic dimensions are open. Raises ParseError for what is not a
    model, GraphError, naming the node, for one that breaks a rule, GraphqError when the package onnx is missing.
    """
    return _front_end().load_onnx(source)


def save_onnx(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` as an ONNX model, opset 21; see graphq.onnx.saving.

    Raises GraphError, naming the operation, for what ONNX cannot say with the same numbers, GraphqError when the
    package onnx is missing.
    """
    _front_end().save_onnx(graph, path)


def _front_end() -> ModuleType:
    try:
        from graphq import onnx
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise GraphqError("ONNX models need the package onnx: pip install graphq[onnx]") from None
    return onnx
