"""The definitions that ONNX gives for some operators as functions of simpler ones."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.protos.types import value_info


def body_of(node: NodeProto, opset: int, inputs: Sequence[Value | None], prefix: str) -> FunctionProto | None:
    """The function by which ONNX defines `node`'s operator; None if ONNX has none for these operands.

    Its names begin with `prefix`, and attributes of `node` to which the function refers are replaced by their values.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)  # the type stub lacks these methods
    function = FunctionProto()
    fixed, dependent = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    if fixed:  # a body for each of some operator sets: any will do, as it names the operator set that it uses
        function.ParseFromString(schema.get_function_with_opset_version(min(fixed)))
    elif dependent:
        types = [b"" if v is None else value_info("", v.type).type.SerializeToString() for v in inputs]
        try:
            function.ParseFromString(schema.get_context_dependent_function_with_opset_version(
                min(dependent), node.SerializeToString(), types))
        except Exception as e:  # pybind raises C++ exceptions as these, if no body fits the operands
            raise GraphError(f"ONNX's function: {str(e).strip()[:300]}") from None
    if not function.node:
        return None
    given = {a.name: a for a in (*(a.default_value for a in schema.attributes.values()), *node.attribute) if a.name}
    for inner in function.node:
        name_within(inner, prefix)
        _fill(inner, given)
    for names in (function.input, function.output):
        names[:] = [prefix + name for name in names]
    return function


def name_within(node: NodeProto, prefix: str) -> None:
    """Put the prefix before the names of the node and its values, also in graphs among the node's attributes."""
    for names in (node.input, node.output):
        names[:] = [prefix + name if name else "" for name in names]
    node.name = prefix + node.op_type
    for a in node.attribute:
        for graph in (*a.graphs, *([a.g] if a.HasField("g") else [])):
            for named in (*graph.input, *graph.output, *graph.initializer):
                named.name = prefix + named.name
            for inner in graph.node:
                name_within(inner, prefix)


def leave_out(node: NodeProto, absent: Collection[str]) -> None:
    """Remove the inputs whose names are in `absent`, also in graphs among the node's attributes."""
    node.input[:] = ["" if name in absent else name for name in node.input]
    for a in node.attribute:
        for graph in (*a.graphs, *([a.g] if a.HasField("g") else [])):
            for inner in graph.node:
                leave_out(inner, absent)


def _fill(node: NodeProto, given: dict[str, AttributeProto]) -> None:
    """Replace references to attributes by the values in `given`; drop references to attributes without a value."""
    own = list(node.attribute)
    del node.attribute[:]
    for a in own:
        if not a.ref_attr_name:
            node.attribute.append(a)
        elif a.ref_attr_name in given:
            node.attribute.add().CopyFrom(given[a.ref_attr_name])
            node.attribute[-1].name = a.name
