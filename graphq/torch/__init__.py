"""The front end for PyTorch: `from_torch` makes a graph of a `torch.export.ExportedProgram`.

It needs the packages torch and onnx (the extra `torch`). The first call is slow, because it imports the importers.
"""
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from graphq.base.budget import collector_paused
from graphq.base.locks import late_imports
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["from_torch"]


@collector_paused()
def from_torch(program: "ExportedProgram") -> Graph:
    """Convert a program of `torch.export.export(module.eval(), example_inputs)` to a graph.

    Programs may have operators of raw ATen, as `export` returns them, or of core ATen (`run_decompositions()`), and
    quantized operators of PT2E and torchao. Inputs have the names of the placeholders, outputs the program's names
    (`program.graph_signature`). Dimensions that `dynamic_shapes` declares are open: each call of the compiled model
    sets them. Values are named by module and operator: `encoder.0.dropout.gelu`, or `encoder.0.fc` if the module has
    only one operator.

    Parameters and buffers become constants without a copy, so the graph shares their memory: do not train the module
    while the graph is in use. Tied weights become one constant.

    Raises GraphError for an operator that graphq lacks, and for buffers or inputs that the program changes; the message
    names the operator, the module and the line of source. Raises GraphqError if the package torch or onnx is missing.
    """
    return _module("program").convert(program)


def _module(name: str) -> ModuleType:
    try:
        with late_imports():
            return import_module(f"graphq.torch.{name}")
    except ModuleNotFoundError as e:
        if e.name not in ("onnx", "torch"):
            raise
        raise GraphqError(f"PyTorch programs need the package {e.name}: {how_to_install('torch')}") from None
