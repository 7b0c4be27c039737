"""The front end for PyTorch: `from_torch` makes a graph of a program, `compile` a model that is called with tensors.

It needs the packages torch and onnx (the extra `torch`). The first call is slow, because it imports the importers.
"""
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graphq.base.budget import collector_paused
from graphq.base.locks import late_imports
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from graphq.torch.model import TorchModel

__all__ = ["compile", "from_torch"]


@collector_paused()
def from_torch(program: "ExportedProgram") -> Graph:
    """Convert a program of `torch.export.export(module.eval(), example_inputs)` to a graph.

    Programs may have operators of raw ATen, as `export` returns them, or of core ATen (`run_decompositions()`), and
    quantized operators of PT2E and torchao. Inputs have the names of the placeholders, outputs the program's names
    (`program.graph_signature`). Dimensions that `dynamic_shapes` declares are open: each call of the compiled model
    sets them. Values are named by module and operator: `encoder.0.dropout.gelu`, or `encoder.0.fc` if the module has
    only one operator.

    Parameters and buffers become constants without a copy, so the graph shares their memory: do not train the module
    while the graph is in use. Tied weights become one constant. A buffer `k` or an input that the program changes is an
    input of the graph, and its new value is the output `k.new`.

    Raises GraphError for an operator that graphq lacks; the message names the operator, the module and the line of
    source. Raises GraphqError if the package torch or onnx is missing.
    """
    return _module("program").convert(program)


def compile(source: Any, example_inputs: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, *,
            dynamic_shapes: Any = None, **options: Any) -> "TorchModel":
    """Compile a module for calls with tensors; the results have the structure of the module's results.

    `source` is a module in eval mode with its `example_inputs` (a tuple), `kwargs` and `dynamic_shapes` as for
    `torch.export.export`; or an ExportedProgram; or a graph that `from_torch` or `quantization.quantize` made.
    `options` are passed to `graphq.compile`.

    Contiguous tensors on the CPU are not copied. Results have no gradients. A call changes the module's buffers, and
    tensors that it is given, as the module does. Raises GraphError as `from_torch`, and the
    errors of `torch.export.export` and `graphq.compile`.
    """
    return _module("model").compile_module(source, example_inputs, kwargs, dynamic_shapes, options)


def graph_of(source: Any) -> Graph:
    """The graph of a program in memory or in a .pt2 file; an error for a module has the lines that compile it."""
    return _module("model").graph_of(source)


def _module(name: str) -> ModuleType:
    try:
        with late_imports():
            return import_module(f"graphq.torch.{name}")
    except ModuleNotFoundError as e:
        if e.name not in ("onnx", "torch"):
            raise
        raise GraphqError(f"PyTorch programs need the package {e.name}: {how_to_install('torch')}") from None
