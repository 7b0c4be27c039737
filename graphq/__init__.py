"""graphq: a oneDNN-Graph-style operator graph compiler in Python."""
import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if not os.path.isdir(os.path.join(__path__[0], "kernels")):  # an unpacked archive may lack the symbolic links
    __path__.append(os.path.dirname(os.path.abspath(__path__[0])))  # kernels/ and passes/ lie next to graphq/

from graphq import dtypes, errors, ops
from graphq.base.locks import late_imports as _late_imports
from graphq.base.platform import untested as _untested
from graphq.compile import compile
from graphq.dtypes import DType
from graphq.errors import CompileError, GraphError, GraphqError, InputError, KernelError, ParseError, VerifyError
from graphq.ir import Graph, Node, TensorType, Value, reference, to_text
from graphq.ir.operations import add_method
from graphq.ir.text import parse
from graphq.model import files
from graphq.onnx import load_onnx, save_onnx

if TYPE_CHECKING:
    from graphq import passes, quantization, testing
    from graphq.model.compiled_graph import CompiledGraph
    from graphq.model.kept import load_compiled
    from graphq.onednn.files import load_onednn_json, save_onednn_json
    from graphq.onednn.partitions import Partition
    from graphq.scoring.predictor import Predictor
    from graphq.torch import from_torch

__version__ = "0.1.0"
if (_problem := _untested()) is not None:
    warnings.warn(_problem, RuntimeWarning, stacklevel=2)


def _partitions(self: Graph) -> "list[Partition]":
    """The partitions that oneDNN Graph would make, in topological order.

    Each operation is in exactly one partition. `partition.compile()` compiles a single partition.
    """
    from graphq.onednn.partitions import partitions

    return partitions(self)


def _repr_html_(self: Graph) -> str:
    from graphq.report.page import graph_html

    return graph_html(self, repr(self))


# Readers are added here, because graphq.model may not import graphq.onnx.
files.READERS.update({".onnx": load_onnx, ".json": lambda path: __getattr__("load_onednn_json")(path),
                      ".pt2": lambda program: __getattr__("torch").graph_of(program)})
# Methods are added here, because graphq.ir may not import the modules that they use.
add_method("partitions", _partitions)
add_method("_repr_html_", _repr_html_)

__all__ = ["CompileError", "CompiledGraph", "DType", "Graph", "GraphError", "GraphqError", "InputError", "KernelError",
           "Node", "ParseError", "Partition", "Predictor", "TensorType", "Value", "VerifyError", "compile", "dtypes",
           "errors", "from_torch", "load_compiled", "load_onednn_json", "load_onnx", "ops", "parse", "passes",
           "quantization", "reference", "save_onednn_json", "save_onnx", "testing", "to_text"]

_MODULES = {"CompiledGraph": "model.compiled_graph", "Partition": "onednn.partitions", "Predictor": "scoring.predictor",
            "from_torch": "torch", "load_compiled": "model.kept", "load_onednn_json": "onednn.files",
            "passes": "passes", "quantization": "quantization", "save_onednn_json": "onednn.files",
            "testing": "testing",
            "torch": "torch"}
"""Public names and the modules that define them. A module is imported when its name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'graphq' has no attribute {name!r}")
    with _late_imports(f"graphq.{name}"):
        module = import_module(f"graphq.{_MODULES[name]}")
    return module if name == _MODULES[name] else getattr(module, name)


def __dir__() -> list[str]:
    """The public names, without submodules that happen to be imported."""
    return sorted({*__all__, *(name for name in list(globals()) if name.startswith("__"))})
