"""graphq as a backend for `onnx.backend.base`, the interface that the ONNX project's test runner uses."""
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.backend.base import Backend, BackendRep
from onnx.helper import make_node, make_tensor
from onnx.numpy_helper import from_array, to_array

from graphq.compile import compile
from graphq.dtypes import as_dtype
from graphq.errors import InputError
from graphq.ir.interpret import named_outputs
from graphq.model.compiled_graph import CompiledGraph
from graphq.onnx.loading import load_onnx
from graphq.onnx.protos.tensors import element_of


class GraphqRep(BackendRep):
    """A compiled model. Its `run` takes arrays or TensorProtos, in the order of the model's inputs or by name."""

    def __init__(self, model: CompiledGraph) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Run the model; returns the outputs in the model's order. Raises InputError if the inputs do not fit."""
        given = _by_name(self.model.names, inputs)
        protos = {as_dtype(to_array(x).dtype) for x in given.values() if isinstance(x, TensorProto)}
        every = bool(given) and all(isinstance(x, TensorProto) for x in given.values())
        result = self.model({k: to_array(x) if isinstance(x, TensorProto) else x for k, x in given.items()})
        return tuple(_given_back(name, x, every, as_dtype(x.dtype) in protos)
                     for name, x in named_outputs(self.model.source.output_names, result).items())


class ListsRep(BackendRep):
    """A model with sequences as inputs or outputs. Each run compiles it for the lengths of the lists."""

    def __init__(self, model: ModelProto, options: Mapping[str, Any]) -> None:
        self.model, self.options = model, options

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model, as GraphqRep does; a sequence is a list of arrays."""
        given, arrays = _by_name([v.name for v in self.model.graph.input], inputs), dict[str, Any]()
        model = ModelProto()
        model.CopyFrom(self.model)
        del model.graph.input[:]
        for v in self.model.graph.input:
            parts, x = [v], given.get(v.name)
            if isinstance(x, list):
                kind = (v.type.optional_type.elem_type if v.type.HasField("optional_type") else v.type).sequence_type
                parts = [ValueInfoProto(name=f"{v.name}[{k}]", type=kind.elem_type) for k in range(len(x))]
                made = make_node("SequenceConstruct" if x else "SequenceEmpty", [part.name for part in parts], [v.name])
                model.graph.node.insert(0, made)
            model.graph.input.extend(parts)
            arrays |= zip((part.name for part in parts), x if isinstance(x, list) else [x], strict=True)
        rep = GraphqRep(compile(load_onnx(model), **self.options))
        found = dict(zip(rep.model.source.output_names, rep.run(arrays), strict=True))
        return tuple(found[v.name] if v.name in found else [
            x for name, x in found.items() if name.rpartition("[")[0] == v.name] for v in model.graph.output)


def _by_name(names: Sequence[str], inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, dict):
        return inputs
    arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    if len(arrays) != len(names):
        raise InputError(f"the model takes {len(names)} inputs, {names}, got {len(arrays)}")
    return dict(zip(names, arrays, strict=True))


def _given_back(name: str, x: np.ndarray, every: bool, same: bool) -> Any:
    """Output `x`, as a TensorProto if all inputs were TensorProtos (`every`), or one of its dtype was (`same`)."""
    if every:
        return from_array(x, name)
    return make_tensor(name, element_of(as_dtype(x.dtype)), x.shape, x) if same else x


class GraphqBackend(Backend):
    """ONNX backend that runs models with graphq on the CPU; `options` are keywords of `graphq.compile`."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> GraphqRep | ListsRep:
        """Load and compile the model; a model with sequences is compiled when it runs."""
        if not all(v.type.HasField("tensor_type") for v in (*model.graph.input, *model.graph.output)):
            return ListsRep(model, options)
        return GraphqRep(compile(load_onnx(model), **options))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """Load, compile and run the model; returns its outputs."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is a CPU."""
        return device.split(":")[0] == "CPU"


prepare = GraphqBackend.prepare
run_model = GraphqBackend.run_model
supports_device = GraphqBackend.supports_device
