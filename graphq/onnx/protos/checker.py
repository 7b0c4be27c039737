"""Run ONNX's checker also on models with large tensors, and with inputs and outputs of undeclared types."""
from math import prod
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

LARGE = 1 << 12
"""Tensors of at least this many elements are hidden from ONNX's checker; `array_of` checks their data."""


def check_model(model: ModelProto) -> None:
    """Run ONNX's checker on a copy of the model; large tensors and tensors in other files become inputs of the copy.

    Otherwise the data of large tensors would be in memory three times, because the checker parses a serialized model.
    """
    onnx.checker.check_model(_with_types(without_data(model)))


def without_data(model: ModelProto) -> ModelProto:
    """A copy of the model whose large tensors, and tensors in other files, are inputs."""
    checked, graph = ModelProto(), model.graph
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(checked, field.name, value)
    for field, value in graph.ListFields():
        if field.name != "initializer":
            _copy(checked.graph, field.name, value)
    inputs = {v.name for v in graph.input}
    for t in graph.initializer:
        if t.data_location != TensorProto.EXTERNAL and prod(t.dims) < LARGE:
            checked.graph.initializer.append(t)
        elif t.name not in inputs:
            inputs.add(t.name)
            checked.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return checked


def _with_types(model: ModelProto) -> ModelProto:
    """Add the types and shapes that the checker requires and graphq does not."""
    graph = model.graph
    for v in graph.output:
        if v.type.WhichOneof("value") is None:
            v.type.tensor_type.elem_type = TensorProto.FLOAT
    for v in (*graph.input, *graph.output):
        if v.type.WhichOneof("value") == "tensor_type":
            v.type.tensor_type.shape.SetInParent()
    return model


def _copy(message: Any, name: str, value: Any) -> None:
    if hasattr(value, "MergeFrom"):
        getattr(message, name).MergeFrom(value)
    else:
        setattr(message, name, value)
