"""load_onnx: from a checked ONNX model to a Graph."""
from __future__ import annotations

import os
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from graphq.base.budget import budget
from graphq.errors import CompileError, GraphError
from graphq.ir import Graph, TensorType
from graphq.onnx.importers.importer import DOMAINS, Scope, import_graph
from graphq.onnx.protos.tensors import array_of, dense
from graphq.onnx.protos.types import agree, tensor_type
from graphq.onnx.reading import Source, read_model


def load_onnx(source: Source, *, memory: int | None = None) -> Graph:
    """The graph of an ONNX model (see `graphq.load_onnx`)."""
    with budget(memory):
        try:
            model, folder, where = read_model(source)
            return _loaded(model, folder, where)
        except MemoryError as e:
            name = source if isinstance(source, str | os.PathLike) else "model"
            raise CompileError(f"{name}: not enough memory{f': {e}' if str(e) else ''}") from None


def _loaded(model: ModelProto, folder: str | None, where: str) -> Graph:
    try:
        return _graph(model, folder, where)
    except (GraphError, CompileError) as e:
        raise type(e)(f"{where}: {e}") from None
    except RecursionError:
        raise GraphError(f"{where}: nested too deeply") from None


def _graph(model: ModelProto, folder: str | None, where: str) -> Graph:
    proto = model.graph
    graph = Graph(proto.name or Path(where).stem or "graph")
    scope = Scope({DOMAINS.get(i.domain, i.domain): i.version for i in model.opset_import}, folder=folder)
    for tensor in proto.initializer:
        what = f"initializer '{tensor.name}'"
        scope.values[tensor.name] = graph.add_constant(array_of(tensor, folder, what), name=tensor.name)
    for sparse in proto.sparse_initializer:
        name = sparse.values.name
        scope.values[name] = graph.add_constant(dense(sparse, f"initializer '{name}'"), name=name)
    dimensions: dict[tuple[str, int], str] = {}
    for v in proto.input:
        if v.name not in scope.values:
            names = [d.dim_param for d in v.type.tensor_type.shape.dim]
            dimensions |= {(v.name, k): name for k, name in enumerate(names) if name}
            t = tensor_type(v.type, f"input '{v.name}'")
            scope.values[v.name] = graph.input(v.name, dtype=t.dtype, shape=t.shape)
    outputs = import_graph(graph, proto, scope)
    for declared, value in zip(proto.output, outputs, strict=True):
        _check_output(declared, value.type)
    graph.set_outputs(outputs, [v.name for v in proto.output])
    graph.prune()
    graph.meta = {"dimensions": dimensions} if dimensions else {}
    return graph


def _check_output(declared: ValueInfoProto, got: TensorType) -> None:
    """Raise GraphError if the type that the model declares for an output contradicts the type that its nodes give."""
    if declared.type.WhichOneof("value") is None:
        return
    said = tensor_type(declared.type, f"output '{declared.name}'")
    if not agree(said, got):
        raise GraphError(f"output '{declared.name}': the model says {said}, its nodes give {got}")
