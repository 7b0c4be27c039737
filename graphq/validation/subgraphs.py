"""Make graphs from parts of a graph or with other types and attributes, and find the part that a pass has changed."""
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from graphq.ir import Graph, Node, TensorType, Value, add_copies, makers_of, readers_of


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
            new[v] = out.add_input(v.name or _free("x", taken), v.type, v.property)
    add_copies(out, (n for n in graph.nodes if n in kept), new)
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
    add_copies(out, graph.nodes, new, attributes)
    out.set_outputs([new[v] for v in graph.outputs], graph.output_names)
    return out


def changed(chosen: Node | None, attrs: Mapping[str, Any], node: Node) -> Mapping[str, Any]:
    """The attributes of `node` in `rebuilt`, with `attrs` for the node `chosen`."""
    return {**node.attrs, **attrs} if node is chosen else node.attrs


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


class Snapshot:
    """A copy of a graph from before a pass.

    `was` maps the graph's nodes to the copy's nodes, and `inputs` maps the graph's inputs to the copy's inputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = detached(graph)
        self.was: dict[Node, Node] = dict(zip(graph.nodes, self.graph.nodes, strict=True))
        self.inputs = dict(zip(graph.inputs, self.graph.inputs, strict=True))
        self.removed: set[Node] = set()
        self.touched: set[Node] = set()

    def changed(self, graph: Graph) -> bool:
        """Whether the original graph has changed. Sets `removed` and `touched` to nodes of the copy.

        A node is touched if its attributes or operands changed, or if it computes the old or new value of a changed
        operand or output.
        """
        now = set(graph.nodes)
        self.removed = {copy for node, copy in self.was.items() if node not in now}
        self.touched = set()
        for node, copy in self.was.items():
            if node not in now:
                continue
            operands = [None if v is None else self._before(v) for v in node.inputs]
            if not _same_attributes(node, copy):
                self.touched.add(copy)
            for v, old in zip(operands, copy.inputs, strict=True) if len(operands) == len(copy.inputs) else ():
                if v is not old:
                    self.touched.add(copy)
                    self.touched |= {x.node for x in (v, old) if x is not None and x.node is not None}
        for v, old in zip(map(self._before, graph.outputs), self.graph.outputs, strict=False):
            if v is not old:
                self.touched |= {x.node for x in (v, old) if x is not None and x.node is not None}
        return bool(self.removed or self.touched or len(graph.nodes) != len(self.graph.nodes)
                    or graph.output_names != self.graph.output_names
                    or [self.was.get(n) for n in graph.nodes] != self.graph.nodes
                    or [self.inputs.get(v) for v in graph.inputs] != self.graph.inputs)

    def _before(self, value: Value) -> Value | None:
        if value.node is None:
            return self.inputs.get(value)
        copy = self.was.get(value.node)
        return None if copy is None else copy.outputs[value.index]

    def regions(self) -> Iterator[Graph]:
        """Yield growing parts of the copy as graphs.

        The first part has the removed nodes, and the second part also has the touched nodes. Each further part adds the
        surrounding nodes. The last part has all nodes that are connected to removed or touched nodes.
        """
        members = self.removed | self.touched
        sets = [self.removed, members]
        steps = 1
        while (grown := _grown(members, steps)) != members:
            members, steps = grown, 2 * steps
            sets.append(members)
        last: set[Node] = set()
        for nodes in sets:
            used = {v.node for n in nodes for v in n.operands if v.node is not None and v.data is not None}
            chosen = used | {n for n in nodes if n.op.name != "constant" or n in used}
            if chosen and chosen != last:
                last = chosen
                region = subgraph(self.graph, chosen)
                if region.outputs:
                    yield region


def detached(graph: Graph) -> Graph:
    """A copy with its own attributes: a pass that changes attributes in place does not change the copy."""
    copy = graph.copy()
    for node in copy.nodes:
        node.attrs = {name: detached(x) if isinstance(x, Graph) else x for name, x in node.attrs.items()}
    return copy


def _grown(nodes: set[Node], steps: int) -> set[Node]:
    """The given nodes, and all nodes at most `steps` edges away from them."""
    members = front = set(nodes)
    for _ in range(steps):
        front = {m for n in front for m in (*makers_of(n), *readers_of(n))} - members
        members = members | front
    return members


def _same_attributes(node: Node, copy: Node) -> bool:
    a, b = node.attrs, copy.attrs
    return node.op is copy.op and a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _links(body: Graph) -> list[list[int | None]]:
    """For each node, and for the outputs, the numbers of the values that it reads."""
    numbers: dict[Value | None, int] = {v: k for k, v in enumerate(body.values)}
    return [[numbers.get(v) for v in read] for read in (*(n.inputs for n in body.nodes), body.outputs)]


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Graph) and isinstance(b, Graph):
        return len(a.nodes) == len(b.nodes) and all(map(_same_attributes, a.nodes, b.nodes)) and _links(a) == _links(b)
    return type(a) is type(b) and repr(a) == repr(b)
