"""Find the part of a graph that a pass has changed, by comparison with a copy from before the pass."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.validation.subgraphs import subgraph


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
            chosen = _with_constants(nodes)
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
        beside = {v.node for n in front for v in n.operands if v.node is not None}
        beside |= {u.node for n in front for v in n.outputs for u in v.uses if u.node is not None}
        front = beside - members
        members = members | front
    return members


def _with_constants(nodes: set[Node]) -> set[Node]:
    used = {v.node for n in nodes for v in n.operands if v.node is not None and v.data is not None}
    return used | {n for n in nodes if n.op.name != "constant" or n in used}


def _same_attributes(node: Node, copy: Node) -> bool:
    a, b = node.attrs, copy.attrs
    return node.op is copy.op and a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _links(body: Graph) -> list[list[int | None]]:
    """For each node, and for the outputs, the numbers of the values that it reads."""
    values = [*body.inputs, *(v for n in body.nodes for v in n.outputs)]
    numbers: dict[Value | None, int] = {v: k for k, v in enumerate(values)}
    return [[numbers.get(v) for v in read] for read in (*(n.inputs for n in body.nodes), body.outputs)]


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Graph) and isinstance(b, Graph):
        return len(a.nodes) == len(b.nodes) and all(map(_same_attributes, a.nodes, b.nodes)) and _links(a) == _links(b)
    return type(a) is type(b) and repr(a) == repr(b)
