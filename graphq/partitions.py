"""oneDNN's partition API: `graph.partitions()` says which operations go together, each partition compiles on its own."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import networkx as nx

from graphq.ir import Graph, Node, Value

if TYPE_CHECKING:
    from graphq.compile import CompiledGraph

UNSUPPORTED = frozenset({"wildcard", "end"})
"""Operations that oneDNN defines as marks: they form partitions that nothing computes."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Operations of a graph that are compiled as one.

    `ops` are nodes of the graph in order, `op_ids` their ids (of the file it was loaded from, else their places),
    `inputs` and `outputs` the graph's values that enter and leave (the ports), constants left out. `anchor` names the
    operation or pattern that the others go with. `graph` is the partition as a graph of its own.
    """

    id: int
    anchor: str
    supported: bool
    ops: tuple[Node, ...]
    op_ids: tuple[int, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    graph: Graph

    def compile(self, **options: Any) -> CompiledGraph:
        """Compile the partition; `options` are those of `graphq.compile`. Raises GraphError when it is not supported."""
        from graphq.compile import compile

        return compile(self.graph, **options)

    def __str__(self) -> str:
        """One line: id, anchor, operations, ports."""
        ops = ", ".join(f"{i}:{n.op.name}" for i, n in zip(self.op_ids, self.ops, strict=True))
        ports = [", ".join(v.graph.label(v) for v in values) for values in (self.inputs, self.outputs)]
        mark = "" if self.supported else " (not supported)"
        return f"partition {self.id} {self.anchor}{mark}: [{ops}] in ({ports[0]}) out ({ports[1]})"


def partitions(graph: Graph) -> list[Partition]:
    """The partitions of `graph`, in an order in which they can run; each operation is in exactly one."""
    from graphq.passes.group import group

    grouped = graph.copy()
    for k, node in enumerate(grouped.nodes):
        node.meta = {"place": k}
    group(grouped)
    out: list[Partition] = []
    for node in grouped.nodes:
        if node.op.name == "constant":
            continue
        body = node.attrs["body"].nodes if node.op.name == "partition" else [node]
        ops = tuple(graph.nodes[n.meta["place"]] for n in body)
        anchor = node.attrs["anchor"] if node.op.name == "partition" else node.op.name
        out.append(_make(graph, len(out), anchor, ops))
    return out


def _make(graph: Graph, id: int, anchor: str, ops: tuple[Node, ...]) -> Partition:
    inside, places = set(ops), {n: k for k, n in enumerate(graph.nodes)}
    entering = dict.fromkeys(v for n in ops for v in n.operands if v.node not in inside)
    leaving = tuple(o for n in ops for o in n.outputs if any(u.node not in inside for u in o.uses) or not o.uses)
    inputs = tuple(v for v in entering if v.data is None)
    return Partition(id, anchor, not any(n.op.name in UNSUPPORTED for n in ops), ops,
                     tuple(n.meta.get("id", places[n]) for n in ops), inputs, leaving,
                     _alone(graph, f"partition{id}", ops, list(entering), leaving))


def _alone(graph: Graph, name: str, ops: Sequence[Node], entering: Sequence[Value], leaving: Sequence[Value]) -> Graph:
    """A graph of these operations alone; inputs and outputs keep their names, `t<place>` for those without."""
    out = Graph(name)
    new: dict[Value, Value] = {}
    for v in entering:
        if v.data is not None:
            new[v] = out.constant(v.data, name=v.name)
        else:
            new[v] = out.input(_name(graph, v), dtype=v.dtype, shape=v.shape, property=v.property)
    for node in ops:
        values = [None if v is None else new[v] for v in node.inputs]
        outs = out.add_node(node.op, values, node.attrs, name=node.outputs[0].name if node.outputs else None)
        out.nodes[-1].meta = node.meta
        new.update(zip(node.outputs, outs, strict=True))
    out.set_outputs([new[v] for v in leaving], [_name(graph, v) for v in leaving])
    return out


def _name(graph: Graph, value: Value) -> str:
    return value.name or f"v{graph.label(value)[1:]}"


def order(parts: Sequence[Partition]) -> nx.DiGraph:
    """The partitions with an edge from each to those that use its outputs."""
    dag = nx.DiGraph()
    dag.add_nodes_from(parts)
    producer = {v: p for p in parts for v in p.outputs}
    dag.add_edges_from((producer[v], p) for p in parts for v in p.inputs if v in producer)
    return dag
