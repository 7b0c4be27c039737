"""Simplify a graph. Each function in KINDS yields functions that return a simpler graph, or raise GraphqError."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from graphq.ir import Graph, Node, TensorType, Value, copies
from graphq.validation.subgraphs import rebuilt, subgraph

Candidate: TypeAlias = Callable[[], Graph]


def fewer_outputs(graph: Graph) -> Iterator[Candidate]:
    """Keep only one output, or leave out one output."""
    many = range(len(graph.outputs))
    for k in many if len(many) > 1 else ():
        yield partial(_returning, graph, [k])
    for k in many if len(many) > 2 else ():
        yield partial(_returning, graph, [j for j in many if j != k])


def _returning(graph: Graph, outputs: list[int]) -> Graph:
    out = graph.copy()
    out.set_outputs([out.outputs[k] for k in outputs], [out.output_names[k] for k in outputs])
    out.prune()
    needed = {v for v in out.inputs if v.uses}
    return out if len(needed) == len(out.inputs) else _without_unused(out)


def _without_unused(graph: Graph) -> Graph:
    return subgraph(graph, graph.nodes)


def fewer_nodes(graph: Graph) -> Iterator[Candidate]:
    """Remove one node. An operand of the same type replaces the node's result, or the node's results become inputs."""
    for k, node in enumerate(graph.nodes):
        for operand, v in enumerate(node.inputs):
            if v is not None and len(node.outputs) == 1 and v.type == node.output.type:
                yield partial(_bypassed, graph, k, operand)
        yield partial(subgraph, graph, [n for n in graph.nodes if n is not node])


def _bypassed(graph: Graph, node: int, operand: int) -> Graph:
    out = graph.copy()
    instead = out.nodes[node].inputs[operand]
    assert instead is not None
    out.replace_uses(out.nodes[node].output, instead)
    out.prune()
    return _without_unused(out)


def smaller_bodies(graph: Graph) -> Iterator[Candidate]:
    """Keep only one partition, without one node of its body. The results of the removed node become operands."""
    for node in graph.nodes_of(("partition",)):
        for inner in node.attrs["body"].nodes:
            yield partial(_with_smaller_body, graph, node, inner)


def _with_smaller_body(graph: Graph, node: Node, inner: Node) -> Graph:
    body = subgraph(node.attrs["body"], [n for n in node.attrs["body"].nodes if n is not inner])
    given = {str(v.name): x for v, x in zip(node.attrs["body"].inputs, node.inputs, strict=True)}
    out = Graph(graph.name)
    operands: list[Value] = []
    for v in body.inputs:
        outside = given.get(str(v.name))
        if outside is not None and outside.data is not None:
            operands.append(out.add_constant(outside.data))
        else:
            operands.append(out.input(str(v.name), dtype=v.dtype, shape=v.shape))
    results = out.add_node(node.op, operands, {**node.attrs, "body": body})
    out.set_outputs(results, [f"out{k}" for k in range(len(results))])
    return out


def fewer_inputs(graph: Graph) -> Iterator[Candidate]:
    """Replace one input by another of the same type."""
    for k, v in enumerate(graph.inputs):
        for j in range(k):
            if graph.inputs[j].type == v.type:
                yield partial(_merged, graph, k, j)


def _merged(graph: Graph, gone: int, kept: int) -> Graph:
    out = graph.copy()
    out.replace_uses(out.inputs[gone], out.inputs[kept])
    return _without_unused(out)


def smaller_sizes(graph: Graph) -> Iterator[Candidate]:
    """Replace open dimensions by sizes; make a size smaller everywhere; make one axis of one input smaller."""
    for size in FIXED if any(None in (v.shape or ()) for v in graph.inputs) else ():
        yield partial(_resized, graph, None, size)
    arrays = [v.type for v in graph.inputs] + [n.output.type for n in graph.nodes_of(("constant",))]
    sizes = {d for t in arrays for d in t.shape or () if d is not None}
    for d in sorted(sizes, reverse=True):
        for new in _smaller(d):
            yield partial(_resized, graph, d, new)
    for k, v in enumerate(graph.inputs):
        for axis, dim in enumerate(v.shape or ()):
            for new in FIXED if dim is None else _smaller(dim):
                yield partial(_with_axis, graph, k, axis, new)


FIXED = (1, 2, 3, 8)
"""Sizes to try for open dimensions."""


def _smaller(size: int) -> list[int]:
    return sorted({n for n in (1, 2, 3, size // 2) if 0 < n < size})


def _with_axis(graph: Graph, which: int, axis: int, size: int) -> Graph:
    changed = graph.inputs[which]
    assert changed.shape is not None
    smaller = TensorType(changed.dtype, (*changed.shape[:axis], size, *changed.shape[axis + 1:]))
    return rebuilt(graph, types=lambda v: smaller if v is changed else v.type)


def _resized(graph: Graph, size: int | None, new: int) -> Graph:
    def types(v: Value) -> TensorType:
        return v.type if v.shape is None else TensorType(v.dtype, tuple(new if d == size else d for d in v.shape))

    return rebuilt(graph, types=types, attributes=lambda node: {k: _cut(x, size, new) for k, x in node.attrs.items()})


def _cut(attribute: Any, size: int | None, new: int) -> Any:
    if isinstance(attribute, Graph):
        return _resized(attribute, size, new)
    if isinstance(attribute, np.ndarray):
        return np.ascontiguousarray(attribute[tuple(slice(new) if d == size else slice(None) for d in attribute.shape)])
    if isinstance(attribute, tuple):
        first = attribute[:new] if size is not None and len(attribute) == size > new else attribute
        return tuple(new if isinstance(x, int) and not isinstance(x, bool) and x == size else x for x in first)
    return attribute


def simpler_attributes(graph: Graph) -> Iterator[Candidate]:
    """Set attributes and constants to defaults, ones or zeros; make per-channel parameters per-tensor."""
    for k, node in enumerate(graph.nodes):
        for changed in _simpler(node):
            yield partial(_with_attributes, graph, k, changed)


def _with_attributes(graph: Graph, which: int, changed: dict[str, Any]) -> Graph:
    node = graph.nodes[which]
    return rebuilt(graph, attributes=lambda n: {**n.attrs, **changed} if n is node else n.attrs)


def _simpler(node: Node) -> Iterator[dict[str, Any]]:
    a = node.attrs
    if a.get("qtype") == "per_channel" and "scales" in a:
        yield {"qtype": "per_tensor", "axis": 1, "scales": a["scales"][:1], "zps": a["zps"] and a["zps"][:1]}
    for name, attribute in node.op.attributes.items():
        value = a[name]
        if isinstance(value, np.ndarray):
            yield {name: np.ones_like(value)}
            yield {name: np.zeros_like(value)}
            continue
        if not attribute.required:
            yield {name: attribute.default}
        if isinstance(value, tuple) and all(isinstance(x, int | float) for x in value):
            yield from ({name: type(value)(type(x)(one) for x in value)} for one in (1, 0))
        elif isinstance(value, float):
            yield {name: 1.0}


def no_names(graph: Graph) -> Iterator[Candidate]:
    """Remove names of values and facts about nodes. Inputs become x0, x1, ... and outputs out0, out1, ..."""
    yield partial(_without_names, graph)


def _without_names(graph: Graph) -> Graph:
    _, inputs, nodes, outputs, _, facts = copies.flat(graph)
    return copies.rebuilt("graph", [(f"x{k}", type, property) for k, (_, type, property) in enumerate(inputs)],
                          [(op, operands, attrs, [None] * len(names), {}) for op, operands, attrs, names, _ in nodes],
                          outputs, [f"out{k}" for k in range(len(outputs))], facts)


KINDS: tuple[Callable[[Graph], Iterator[Candidate]], ...] = (
    fewer_outputs, smaller_sizes, fewer_nodes, smaller_bodies, fewer_inputs, simpler_attributes, no_names)
"""The simplifications, in the order in which they are tried. Early simplifications make later trials faster."""
