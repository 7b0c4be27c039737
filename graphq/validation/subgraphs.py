"""Make graphs from a subset of a graph's nodes, or from all nodes with other input types and attributes."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from graphq.ir import Graph, Node, TensorType, Value
from graphq.ir.copies import add_copy


def subgraph(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """A graph of only these nodes: values from other nodes become inputs, and values used elsewhere become outputs.

    Constants among the nodes stay constants, and other constants become inputs. Nodes, inputs and outputs keep their
    names and their order. A path between two of the nodes may go through other nodes.
    """
    kept = set(nodes)
    taken = {v.name for v in graph.values}
    out = Graph(graph.name)
    out.meta = graph.meta
    new: dict[Value, Value] = {}
    needed = {v for n in kept for v in n.operands if v.node not in kept}
    for v in graph.values:
        if v in needed:
            new[v] = out.input(v.name or _free("x", taken), dtype=v.dtype, shape=v.shape, property=v.property)
    for node in graph.nodes:
        if node in kept:
            operands = [None if v is None else new[v] for v in node.inputs]
            new.update(zip(node.outputs, add_copy(out, node, operands), strict=True))
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
            attributes: Callable[[Node], Mapping[str, Any]] = lambda node: node.attrs) -> Graph:
    """A copy with other input types and attributes. Raises GraphError if these do not fit the operations."""
    out = Graph(graph.name)
    out.meta = graph.meta
    new: dict[Value, Value] = {}
    for v in graph.inputs:
        t = types(v)
        new[v] = out.input(str(v.name), dtype=t.dtype, shape=t.shape, property=v.property)
    for node in graph.nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        new.update(zip(node.outputs, add_copy(out, node, operands, attributes(node)), strict=True))
    out.set_outputs([new[v] for v in graph.outputs], graph.output_names)
    return out


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph, each followed by the nodes of its bodies."""
    for node in graph.nodes:
        yield node
        for x in node.attrs.values():
            if isinstance(x, Graph):
                yield from all_nodes(x)


def _free(prefix: str, taken: set[str | None]) -> str:
    name = next(n for k in count() if (n := f"{prefix}{k}") not in taken)
    taken.add(name)
    return name
