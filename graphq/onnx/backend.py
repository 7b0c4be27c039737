"""graphq as a backend for `onnx.backend.base`, the interface that the ONNX project's test runner uses."""
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.backend.base import Backend, BackendRep
from onnx.helper import make_tensor
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
        names = self.model.names
        if not isinstance(inputs, dict):
            arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
            if len(arrays) != len(names):
                raise InputError(f"the model takes {len(names)} inputs, {names}, got {len(arrays)}")
            inputs = dict(zip(names, arrays, strict=True))
        protos = {as_dtype(to_array(x).dtype) for x in inputs.values() if isinstance(x, TensorProto)}
        every = bool(inputs) and all(isinstance(x, TensorProto) for x in inputs.values())
        result = self.model({k: to_array(x) if isinstance(x, TensorProto) else x for k, x in inputs.items()})
        return tuple(_given_back(name, x, every, as_dtype(x.dtype) in protos)
                     for name, x in named_outputs(self.model.source.output_names, result).items())


def _given_back(name: str, x: np.ndarray, every: bool, same: bool) -> Any:
    """Output `x`, as a TensorProto if all inputs were TensorProtos (`every`), or one of its dtype was (`same`)."""
    if every:
        return from_array(x, name)
    return make_tensor(name, element_of(as_dtype(x.dtype)), x.shape, x) if same else x


class GraphqBackend(Backend):
    """ONNX backend that runs models with graphq on the CPU; `options` are keywords of `graphq.compile`."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> GraphqRep:
        """Load and compile the model."""
        return GraphqRep(compile(load_onnx(model), **options))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[np.ndarray, ...]:
        """Load, compile and run the model; returns its outputs."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is a CPU."""
        return device.split(":")[0] == "CPU"


prepare = GraphqBackend.prepare
run_model = GraphqBackend.run_model
supports_device = GraphqBackend.supports_device
