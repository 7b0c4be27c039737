"""save_onnx: write a Graph as an ONNX model, with partitions as local functions."""
from __future__ import annotations

import os
from importlib import import_module

import onnx
from onnx import ModelProto, helper

from graphq.base.paths import path_of
from graphq.errors import GraphError
from graphq.ir import Graph, Node
from graphq.onnx.exporters.writer import IR_VERSION, OPSET, GraphWriter, exports, names_of
from graphq.onnx.older import to_opset
from graphq.onnx.protos.checker import check_model
from graphq.onnx.protos.tensors import value_info

DOMAIN = "graphq.partition"
"""The domain of the local functions. A function's name is the partition's anchor and a number."""


@exports("partition")
def partition(w: GraphWriter, node: Node) -> None:
    """Write a local function and its call. Constant operands of the partition stay initializers of the model."""
    body: Graph = node.attrs["body"]
    name = f"{node.attrs['anchor']}_{len(w.functions)}"
    inner = GraphWriter(w.functions)
    inputs = [inner.claim(str(v.name)) for v in body.inputs]
    inner.names.update(zip(body.inputs, inputs, strict=True))
    for n in body.nodes:
        inner.write(n)
    outputs: list[str] = []
    for v in body.outputs:
        given = inner.name(v)
        outputs.append(inner.add("Identity", [given]) if given in (*inputs, *outputs) else given)
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in inner.initializers]
    types = [value_info(n, v.type) for n, v in zip([*inputs, *outputs], [*body.inputs, *body.outputs], strict=True)]
    w.functions.append(helper.make_function(
        DOMAIN, name, inputs, outputs, [*constants, *inner.nodes], [helper.make_opsetid("", OPSET)],
        doc_string=", ".join(n.op.name for n in body.nodes), value_info=types))
    w.node(node, name, domain=DOMAIN)


for _family in ("compute", "control", "move", "quant"):
    import_module(f"graphq.onnx.exporters.{_family}")  # on import, the module adds its exporters to EXPORTERS


def save_onnx(graph: Graph, path: str | os.PathLike[str], *, opset: int = OPSET) -> None:
    """Write `graph` as an ONNX model (see `graphq.save_onnx`)."""
    if not isinstance(graph, Graph):
        raise GraphError(f"save_onnx takes a Graph, got {graph!r}")
    data = to_model(graph, opset=opset).SerializeToString()
    path_of(path).write_bytes(data)


def to_model(graph: Graph, *, opset: int = OPSET) -> ModelProto:
    """Convert a graph to the ModelProto that `save_onnx` writes."""
    w = GraphWriter()
    w.of_values = names_of(graph)
    w.taken.update(graph.output_names)
    for v in graph.inputs:
        w.taken.discard(str(v.name))
        w.names[v] = w.claim(str(v.name))
    for v, name in zip(graph.outputs, graph.output_names, strict=True):
        if v.node is not None and v.data is None:
            w.names.setdefault(v, name)
    for node in graph.nodes:
        w.write(node)
    for v, name in zip(graph.outputs, graph.output_names, strict=True):
        if w.name(v) != name:
            if any(str(x.name) == name for x in graph.inputs):
                raise GraphError(f"save: output '{name}' has the name of another value, an input: rename one")
            w.add("Identity", [w.name(v)], [name])
    w.prune(graph.output_names)
    proto = helper.make_graph(w.nodes, graph.name, [value_info(str(v.name), v.type) for v in graph.inputs],
                              [value_info(n, v.type) for v, n in zip(graph.outputs, graph.output_names, strict=True)],
                              w.initializers)
    domains = {node.domain for node in w.nodes if node.domain} | ({DOMAIN} if w.functions else set())
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
    model = helper.make_model(proto, producer_name="graphq", ir_version=IR_VERSION, opset_imports=opsets,
                              functions=w.functions)
    to_opset(model, opset)
    try:
        check_model(model)
    except onnx.checker.ValidationError as e:
        raise GraphError(f"save: {e}") from None
    return model
