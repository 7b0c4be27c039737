"""Importers of If, Loop and Scan. Their inner graphs become bodies: graphs that are attributes of an operation."""
from collections.abc import Sequence
from itertools import count

import numpy as np
from onnx import GraphProto, ValueInfoProto, helper

from graphq.dtypes import boolean, s64
from graphq.ir import Graph, TensorType, Value
from graphq.onnx.importers.composed import standard
from graphq.onnx.importers.importer import Call, Outputs, Scope, import_graph, imports
from graphq.onnx.protos.fallback import bodies, outer_names
from graphq.onnx.protos.tensors import array_of
from graphq.ops.control import common_type
from graphq.ops.rules import with_axis


@imports("If")
def if_(c: Call) -> Outputs:
    """Import If; with a constant condition, import only the chosen branch."""
    branches = [c.attr("then_branch"), c.attr("else_branch")]
    cond = c.data(0)
    if cond is not None:
        branch = branches[0 if cond.any() else 1]
        scope = Scope(c.scope.opsets, {**c.scope.values}, c.scope.folder)
        return import_graph(c.graph, branch, _initialized(c, branch, c.graph, scope))
    then_body, else_body = (_body(c, branch, []) for branch in branches)
    return c.graph.if_else(c.input(0), *_captured(c).values(), then_body=then_body, else_body=else_body)


@imports("Loop")
def loop(c: Call) -> Outputs:
    """Import Loop. If the body changes a dimension of a state, the dimension becomes unknown."""
    trips, cond = (c.graph.add_constant(np.asarray(default)) if given is None else given for given, default
                   in ((c.optional(0), np.iinfo(np.int64).max), (c.optional(1), True)))
    states = [c.input(k) for k in range(2, len(c.inputs))]
    body = _settled(c, [TensorType(s64, ()), TensorType(boolean, ())], states, [], 1)
    return c.graph.loop(trips, cond, *states, *_captured(c).values(), body=body, states=len(states))


@imports("Scan")
def scan(c: Call) -> Outputs:
    """Import Scan. Version 8 has batches: it is a Scan over the batch of Scans."""
    body, scanned = c.attr("body"), c.attr("num_scan_inputs")
    if c.version < 9:
        if c.has(0):
            c.refuse("a Scan with sequence lengths is not supported")
        names, results = ([f"{end}{k}" for k in range(n)] for end, n in (("in", len(c.inputs) - 1), ("out", c.outputs)))
        inner = helper.make_node("Scan", names, results, body=body, num_scan_inputs=scanned,
                                 scan_input_directions=c.attr("directions", [0] * scanned))
        ends = ([ValueInfoProto(name=n) for n in side] for side in (names, results))
        batch = helper.make_graph([inner], "batch", next(ends), next(ends))
        return standard(c, "Scan", c.inputs[1:], c.outputs, opset=9, body=batch, num_scan_inputs=len(names))
    values = [c.input(k) for k in range(len(c.inputs))]
    if not 0 <= scanned <= len(values):
        c.refuse(f"num_scan_inputs must be in [0, {len(values)}], the number of operands, got {scanned}")
    states = values[:len(values) - scanned]
    outputs = len(body.output) - len(states)
    axes = list(c.attr("scan_input_axes", [0] * scanned))
    parts = [with_axis(v.type, axis) for v, axis in zip(values[len(states):], axes, strict=True)]
    return c.graph.scan(
        *values, *_captured(c).values(), body=_settled(c, [], states, parts, 0), states=len(states), scanned=scanned,
        input_axes=axes, reverse_inputs=[bool(d) for d in c.attr("scan_input_directions", [0] * scanned)],
        output_axes=list(c.attr("scan_output_axes", [0] * outputs)),
        reverse_outputs=[bool(d) for d in c.attr("scan_output_directions", [0] * outputs)])


EXACT = 4
"""How many times `_settled` builds a loop's body before all sizes of states become unknown."""


def _settled(c: Call, before: Sequence[TensorType], states: Sequence[Value], after: Sequence[TensorType],
             first: int) -> Graph:
    """Build a loop's body for types of the states that hold in every iteration.

    The body takes values of the types `before`, the states, and values of the types `after`. Its outputs from number
    `first` on are the new states. The first build uses the types of the initial states. If the body changes a dimension
    of a state, the body is built again with this dimension unknown. This repeats, because the size of one state may
    depend on another state.
    """
    types = [v.type for v in states]
    for k in count(1):
        body = _body(c, c.attr("body"), [*before, *types, *after])
        common = [common_type(a, v.type) for a, v in zip(types, body.outputs[first:first + len(types)], strict=True)]
        if common == types:
            break
        types = common if k < EXACT else [TensorType(t.dtype, None if t.shape is None or k > EXACT else
                                                     (None,) * len(t.shape)) for t in common]
    return body


def _captured(c: Call) -> dict[str, Value]:
    """The values by name that the node's inner graphs read from the outer graph, except for constants."""
    values = {name: c.scope.values[name] for body in bodies(c.node) for name in outer_names(body)}
    return {name: value for name, value in values.items() if value.data is None}


def _body(c: Call, proto: GraphProto, types: Sequence[TensorType]) -> Graph:
    """Import `proto` as a graph. Its inputs are `proto`'s inputs, with these types, then the captured values."""
    if len(types) != len(proto.input):
        c.refuse(f"the graph '{proto.name}' takes {len(proto.input)} values, got {len(types)}")
    graph = Graph(proto.name or "body")
    scope = Scope(c.scope.opsets, folder=c.scope.folder)
    for name, value in c.scope.values.items():
        if value.data is not None:
            scope.values[name] = graph.add_constant(value.data)
    for name, value in _captured(c).items():
        scope.values[name] = graph.input(name, dtype=value.dtype, shape=value.shape)
    _initialized(c, proto, graph, scope)
    inner = [graph.input(v.name, dtype=t.dtype, shape=t.shape) for v, t in zip(proto.input, types, strict=True)]
    scope.values.update(zip((v.name for v in proto.input), inner, strict=True))
    graph.inputs = [*inner, *(v for v in graph.inputs if v not in inner)]
    outputs = import_graph(graph, proto, scope)
    graph.set_outputs(outputs, [f"out{k}" for k in range(len(outputs))])
    graph.prune()
    return graph


def _initialized(c: Call, proto: GraphProto, graph: Graph, scope: Scope) -> Scope:
    for tensor in proto.initializer:
        scope.values[tensor.name] = graph.add_constant(array_of(tensor, c.scope.folder, f"initializer '{tensor.name}'"))
    return scope
