"""save_onnx: write a Graph as an ONNX model, with partitions as local functions, and convert it to older operator sets.

Nodes are written for operator set 21 or a newer set, and converted if the model is to have an older set. Each operator
must accept the types of its operands and results.

An older operator may lack attributes, take axes as an attribute instead of an operand, and accept fewer types. A node
that the older operator cannot express is refused, for example if an attribute that the operator lacks does not have its
default value.
"""
import os
from collections.abc import Iterator, Mapping
from importlib import import_module

import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphq.base.paths import path_of
from graphq.errors import GraphError
from graphq.ir import Graph, Node
from graphq.onnx.exporters.writer import OPSET, GraphWriter, exports, names_of
from graphq.onnx.protos.checker import check_model, without_data
from graphq.onnx.protos.fallback import bodies
from graphq.onnx.protos.tensors import value_info

DOMAIN = "graphq.partition"
"""The domain of the local functions. A function's name is the partition's anchor and a number."""


@exports("partition")
def partition(w: GraphWriter, node: Node) -> None:
    """Write a local function and its call. Constant operands of the partition stay initializers of the model."""
    body: Graph = node.attrs["body"]
    name = f"{node.attrs['anchor']}_{len(w.functions)}"
    inner = GraphWriter(w.opset, w.functions)
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
        DOMAIN, name, inputs, outputs, [*constants, *inner.nodes], [helper.make_opsetid("", w.opset)],
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
    newest = onnx.defs.onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not OLDEST <= opset <= newest:
        raise GraphError(f"save: opset must be from {OLDEST} to {newest}, got {opset!r}")
    w = GraphWriter(max(opset, OPSET))
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
    opsets = [helper.make_opsetid("", w.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
    model = helper.make_model(proto, producer_name="graphq", opset_imports=opsets, functions=w.functions)
    to_opset(model, opset, newest)
    try:
        check_model(model)
    except onnx.checker.ValidationError as e:
        raise GraphError(f"save: {e}") from None
    return model


OLDEST = 13
"""The oldest operator set of saved models: the first with per-channel scales."""
VALUES = {("Pad", "wrap"): 19, ("Resize", "half_pixel_symmetric"): 19, ("GridSample", "linear"): 20,
          ("GridSample", "cubic"): 20, ("ScatterElements", "min"): 18, ("ScatterElements", "max"): 18,
          ("ScatterND", "min"): 18, ("ScatterND", "max"): 18}
"""For an operator and a value of one of its attributes, the first operator set with that value."""
CHANGED = {"GroupNormalization": 21}
"""Operators whose operands changed their meaning, and the operator set of the change."""


def to_opset(model: ModelProto, opset: int, newest: int) -> None:
    """Convert a model of set 21 in place to an older set; raises GraphError with the set up to `newest` that it needs.

    Models of newer sets are only checked: each operator, in partitions as well, must accept the types of its operands.
    """
    if model.functions and opset < OPSET:
        raise GraphError(f"save: partitions need opset {OPSET}; save the graph before compilation")
    whole = onnx.inliner.inline_local_functions(without_data(model)) if model.functions else model
    graphs = list(_graphs(whole.graph))
    types, constants = _types(whole), {t.name: t for g in graphs for t in g.initializer}
    for node in (n for g in graphs for n in g.node):
        if node.domain:
            continue
        problem = _convert(node, opset, types, constants)
        if problem is not None:
            newer = (v for v in range(opset + 1, newest + 1) if _convert(node, v, types, constants) is None)
            needed = next((f"; it needs opset {v}" for v in newer), " or any other")
            raise GraphError(f"save: {node.op_type} '{node.output[0]}': {problem} in opset {opset}{needed}")
    read = {name for g in graphs for node in g.node for name in node.input} | {v.name for g in graphs for v in g.output}
    for g in graphs:
        kept = [t for t in g.initializer if t.name in read]
        del g.initializer[:]
        g.initializer.extend(kept)
    next(i for i in model.opset_import if not i.domain).version = opset
    model.ir_version = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all graphs inside it. In a saved model, names of values are unique across these graphs."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from _graphs(body)


def _types(model: ModelProto) -> dict[str, str]:
    graphs = list(_graphs(onnx.shape_inference.infer_shapes(without_data(model)).graph))
    numbers = {v.name: v.type.tensor_type.elem_type for g in graphs for v in (*g.input, *g.value_info, *g.output)}
    numbers |= {t.name: t.data_type for g in graphs for t in g.initializer}
    return {name: f"tensor({TensorProto.DataType.Name(k).lower()})" for name, k in numbers.items() if k}


def _convert(node: NodeProto, opset: int, types: Mapping[str, str], constants: Mapping[str, TensorProto]) -> str | None:
    """Convert a node to an operator set; returns the reason if that is impossible, else None."""
    try:
        new, old = (onnx.defs.get_schema(node.op_type, v) for v in (max(opset, OPSET), opset))
    except onnx.defs.SchemaError:
        return "there is no such operator"
    if opset < CHANGED.get(node.op_type, 0):
        return "the operator means something else"
    moved = "axes" in old.attributes and "axes" not in new.attributes
    axes = constants.get(node.input[1]) if len(node.input) == 2 and moved else None
    slots = [(k, name, old.inputs) for k, name in enumerate(node.input if axes is None else node.input[:1])]
    if len(slots) > old.max_input:
        return f"there is no operand '{new.inputs[old.max_input].name}'"
    allowed = {c.type_param_str: c.allowed_type_strs for c in old.type_constraints}
    for k, name, formal in (*slots, *((k, name, old.outputs) for k, name in enumerate(node.output))):
        kind = formal[min(k, len(formal) - 1)].type_str
        if name in types and types[name] not in allowed.get(kind, [kind]):
            return f"'{name}' cannot be {types[name]}"
    later = [a for a in node.attribute if a.name not in old.attributes]
    for a in later:
        default = new.attributes[a.name].default_value if a.name in new.attributes else None
        if a != default and not _without_effect(a.name, node, constants):
            return f"there is no attribute '{a.name}'"
    for a in node.attribute:
        if opset < VALUES.get((node.op_type, a.s.decode("utf-8", "replace")), 0):
            return f"'{a.name}' cannot be '{a.s.decode()}'"
    for a in later:
        node.attribute.remove(a)
    if axes is not None:
        node.input.pop()
        node.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(axes).tolist()))
    return None


def _without_effect(attribute: str, node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    """Whether the attribute is `allowzero` and has no effect, because the shape is a constant without zeros."""
    numbers = constants.get(node.input[1]) if len(node.input) > 1 else None
    return attribute == "allowzero" and numbers is not None and bool((numpy_helper.to_array(numbers) != 0).all())
