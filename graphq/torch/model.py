"""TorchModel: a compiled program that is called with tensors, as the module that it was made from."""
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphq.compile import compile
from graphq.errors import GraphError, GraphqError, InputError, ParseError
from graphq.ir import Graph
from graphq.ir.interpret import named_outputs
from graphq.onnx import load_onnx
from graphq.torch.calling import CALLING, Calling
from graphq.torch.operators.importer import array_of, tensor_of
from graphq.torch.program import convert

HOW = """a module needs example inputs. Write
    program = torch.export.export(module.eval(), (example_input,))
    graphq.compile(graphq.from_torch(program))         # called with arrays, or
    graphq.torch.compile(module, (example_input,))     # called with tensors"""

RECURRENT = {
    "specialized": "torch.export fixes the length of LSTM, GRU and RNN: leave the length out of dynamic_shapes, and "
                   "compile a model for each length",
    "FakeTensor": "torch.export cannot trace packed sequences: pass padded sequences, or use "
                  'torch.compile(module, backend="graphq")'}
"""What to do about errors of torch.export for modules with recurrent layers, by a word of PyTorch's message."""


class TorchModel:
    """A compiled program: `model(*args, **kwargs)` takes and returns tensors, in the structure of the example inputs.

    Contiguous tensors on the CPU are not copied, nor are results. Results have no gradients. `compiled` is the
    CompiledGraph, for `explain`, `profile` and other methods, and `calling` the structure of arguments and results.
    """

    def __init__(self, graph: Graph, **options: Any) -> None:
        if CALLING not in graph.meta:
            raise GraphError(f"graph '{graph.name}' was not made by from_torch: its structure of inputs is not known")
        self.calling: Calling = graph.meta[CALLING]
        self.compiled = compile(graph, **options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model, then change the tensors that the program changes.

        Raises InputError for arguments that do not have the structure of the example inputs.
        """
        calling, leaves = self.calling, args
        if kwargs or len(args) != len(calling.arguments) or not all(isinstance(x, torch.Tensor) for x in args):
            try:
                leaves = calling.in_spec.flatten_up_to((args, kwargs))
            except (TypeError, ValueError) as e:
                raise InputError(f"the arguments do not have the structure of the example inputs: {e}") from None
        taken = [x for k, x in enumerate(leaves) if calling.takes(k, x)]
        found = self.compiled(*map(array_of, (*calling.buffers, *taken)))
        arrays = iter(named_outputs(self.compiled.outputs, found).values())
        for target in calling.changed:
            old = leaves[target] if isinstance(target, int) else target
            old.detach().copy_(tensor_of(next(arrays)))
        return calling.out_spec.unflatten([None if kind is None else tensor_of(next(arrays)) if kind == "tensor" else
                                           next(arrays).item() for kind in calling.results])


def compile_module(source: Any, example_inputs: Sequence[Any] | None, kwargs: Mapping[str, Any] | None,
                   dynamic_shapes: Any, options: Mapping[str, Any]) -> TorchModel:
    """Compile a module, a program or a graph of `from_torch` (see `graphq.torch.compile`)."""
    if isinstance(source, torch.nn.Module) and example_inputs is not None:
        if source.training:
            raise GraphError(f"{type(source).__name__} is in training mode: call its method eval() first")
        if torch.is_autocast_enabled("cpu"):
            raise GraphError("autocast is on, and a program does not state it: write `with torch.autocast` in the "
                             "module's forward, or use torch.compile(module, backend=\"graphq\")")
        try:
            with torch.no_grad():
                source = torch.export.export(source, tuple(example_inputs), dict(kwargs or {}),
                                             dynamic_shapes=dynamic_shapes)
        except (RuntimeError, TypeError) as e:
            why = next((text for word, text in RECURRENT.items() if word in str(e)), None)
            if why is not None and any(isinstance(m, torch.nn.RNNBase) for m in source.modules()):
                raise GraphError(why) from e
            raise
    elif example_inputs is not None or kwargs is not None or dynamic_shapes is not None:
        raise GraphError(f"example inputs and dynamic shapes belong to a module, got {type(source).__name__}")
    return TorchModel(source if isinstance(source, Graph) else graph_of(source), **options)


def graph_of(source: Any) -> Graph:
    """The graph of an ExportedProgram, of the path of a .pt2 file, or of an ONNXProgram.

    Raises GraphError for a module, with the lines that compile it, and for any other object.
    """
    if isinstance(source, str | os.PathLike):
        os.stat(source)  # the reader logs a traceback for a missing file
        try:
            return convert(torch.export.load(source))
        except (OSError, GraphqError):
            raise
        except Exception as e:  # the reader raises errors of many classes
            raise ParseError(f"{source}: not a program of torch.export.save: {str(e)[:200]}") from None
    if isinstance(source, torch.export.ExportedProgram):
        return convert(source)
    if hasattr(source, "model_proto"):
        return load_onnx(source.model_proto)
    why = HOW if isinstance(source, torch.nn.Module) else "this object of PyTorch has no graph"
    raise GraphError(f"compile got {type(source).__name__}: {why}")
