"""Parts and variants of a graph: some of its nodes alone, or all of them with other types of inputs and attributes."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from graphq.ir import Graph, Node, TensorType, Value


def subgraph(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """These nodes alone: what they take from other nodes becomes inputs, what is used elsewhere becomes outputs.

    Constants stay constants where they are among the nodes, and become inputs where they are not. Nodes, inputs and
    outputs keep their names and their order. A value that leaves the nodes and comes back through others becomes an
    input of its own, so the nodes need not be convex.
    """
    kept = set(nodes)
    taken = {v.name for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outputs))}
    out = Graph(graph.name)
    out.meta = graph.meta
    new: dict[Value, Value] = {}
    needed = {v for n in kept for v in n.operands if v.node not in kept}
    for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outputs)):
        if v in needed:
            new[v] = out.input(v.name or _free("x", taken), dtype=v.dtype, shape=v.shape, property=v.property)
    for node in graph.nodes:
        if node in kept:
            operands = [None if v is None else new[v] for v in node.inputs]
            new.update(zip(node.outputs, _again(out, node, operands, node.attrs), strict=True))
    results = dict(zip(graph.output_names, graph.outputs, strict=True))
    outputs = {name: new[v] for name, v in results.items() if v.node in kept}
    for node in (n for n in graph.nodes if n in kept):
        for v in node.outputs:
            if not v.is_output and any(u.node not in kept for u in v.uses):
                name = v.name if v.name and v.name not in outputs else _free("out", {*taken, *outputs})
                outputs[name] = new[v]
    out.set_outputs(list(outputs.values()), list(outputs))
    return out


def rebuilt(graph: Graph, *, types: Callable[[Value], TensorType] = lambda v: v.type,
            attributes: Callable[[Node], Mapping[str, Any]] = lambda node: node.attrs, named: bool = True) -> Graph:
    """A copy with other types of inputs and attributes of nodes; all other types are inferred.

    `named`: whether values keep their names; otherwise inputs are called x0, x1 and so on. Raises GraphError where
    attributes or types do not fit the operations.
    """
    out = Graph(graph.name if named else "graph")
    out.meta = graph.meta
    new: dict[Value, Value] = {}
    for k, v in enumerate(graph.inputs):
        t = types(v)
        new[v] = out.input(str(v.name) if named else f"x{k}", dtype=t.dtype, shape=t.shape, property=v.property)
    for node in graph.nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        new.update(zip(node.outputs, _again(out, node, operands, attributes(node), named=named), strict=True))
    names = graph.output_names if named else [f"out{k}" for k in range(len(graph.outputs))]
    out.set_outputs([new[v] for v in graph.outputs], names)
    return out


def _again(graph: Graph, node: Node, operands: list[Value | None], attrs: Mapping[str, Any], *,
           named: bool = True) -> tuple[Value, ...]:
    """The node in `graph`, on these operands; the body of a partition follows them."""
    body = attrs.get("body")
    if node.op.name == "partition" and isinstance(body, Graph):
        given = {str(v.name): x.type for v, x in zip(body.inputs, operands, strict=True) if x is not None}
        if any(v.type != given[str(v.name)] for v in body.inputs):
            attrs = {**attrs, "body": body.specialise(given)}
    outs = graph.add_node(node.op, operands, attrs)
    for value, old in zip(outs, node.outputs, strict=True):
        if named and old.name is not None:
            graph.rename(value, old.name)
    graph.nodes[-1].meta = node.meta if named else {}
    return outs


def _free(prefix: str, taken: set[str | None]) -> str:
    """A name that is not taken, which it is from now on."""
    name = next(n for k in count() if (n := f"{prefix}{k}") not in taken)
    taken.add(name)
    return name
