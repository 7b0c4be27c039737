"""oneDNN's partition API: `graph.partitions()` splits a graph into partitions; each compiles separately."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphq.compile import compile
from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value, part_of
from graphq.model.compiled_graph import CompiledGraph
from graphq.onednn.group import group
from graphq.report.charts import listed

UNSUPPORTED = frozenset({"wildcard", "end"})
"""Operations that only mark values in oneDNN (End, Wildcard): their partitions compute nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A partition as in oneDNN Graph: operations of a graph that are compiled together.

    `ops` are nodes of the graph, in order. `op_ids` are their ids in the loaded file; without a file, they are indices
    in the graph. `inputs` and `outputs` (oneDNN's ports) are the values that enter and leave the partition, without
    constants. `anchor` names the main operation or the matched pattern. `graph` is the partition as a separate graph;
    its inputs and outputs have the names of the ports (`v<N>` if unnamed). `supported` is False for a Wildcard or an
    End, because they compute nothing.
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
        """Compile the partition with the `options` of `graphq.compile`; raises GraphError if it is not supported."""
        if not self.supported:
            raise GraphError(f"{self} cannot be compiled")
        return compile(self.graph, **options)

    def __str__(self) -> str:
        id, anchor, ops, entering, leaving = self._texts()
        return f"partition {id} {anchor}: [{ops}] in ({entering}) out ({leaving})"

    def __repr__(self) -> str:
        return str(self)

    def _texts(self) -> tuple[str, str, str, str, str]:
        ops = ", ".join(f"{i}:{n.op.name}" for i, n in zip(self.op_ids, self.ops, strict=True))
        entering, leaving = (", ".join(v.graph.label(v) for v in values) for values in (self.inputs, self.outputs))
        return str(self.id), self.anchor + " (not supported)" * (not self.supported), ops, entering, leaving


class Partitions(list[Partition]):
    """A list of partitions: a line for each in a console, a table in a notebook."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return listed(["partition", "anchor", "operations", "inputs", "outputs"], (x._texts() for x in self))


def partitions(graph: Graph) -> Partitions:
    """Split `graph` into partitions, in an order that can run; each operation is in exactly one partition.

    Each partition is convex: no path between two of its operations goes through an operation outside. The graph is not
    changed, and it may have open shapes. Raises GraphError for anything but a Graph.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"partitions takes a Graph, got {graph!r}")
    grouped = graph.copy()
    for k, node in enumerate(grouped.nodes):
        node.meta = {"place": k}
    group(grouped)
    ids, names = _op_ids(graph), _names(graph)
    out = Partitions()
    for node in grouped.nodes:
        if node.op.name == "constant":
            continue
        made = "place" not in node.meta
        ops = tuple(graph.nodes[n.meta["place"]] for n in (node.attrs["body"].nodes if made else [node]))
        anchor = node.attrs["anchor"] if made else node.op.name
        entering, leaving = _ports(ops)
        alone, new = part_of(ops, leaving, names, f"partition{len(out)}")
        for old in (v for n in ops for v in n.outputs):
            alone.rename(new[old], names[old])
        out.append(Partition(len(out), anchor, not any(n.op.name in UNSUPPORTED for n in ops), ops,
                             tuple(ids[n] for n in ops), entering, leaving, alone))
    return out


def _op_ids(graph: Graph) -> dict[Node, int]:
    """An id for each node: its id in the file, else its index, or the next free number if the index is taken."""
    ids = {n: n.meta["id"] for n in graph.nodes if "id" in n.meta}
    used = set(ids.values())
    for place, node in enumerate(graph.nodes):
        if node not in ids:
            ids[node] = place if place not in used else max(used) + 1
            used.add(ids[node])
    return ids


def _names(graph: Graph) -> dict[Value, str]:
    """A unique name for every value: its own name, or v<N> for the N-th unnamed value."""
    values = graph.values
    taken = {v.name for v in values}
    out = {}
    for v in values:
        name = v.name or f"v{graph.label(v)[1:]}"
        while v.name is None and name in taken:
            name = f"_{name}"
        out[v] = name
    return out


def _ports(ops: Sequence[Node]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The values that enter the operations, without constants, and the results used outside or not at all."""
    inside = set(ops)
    entering = dict.fromkeys(v for n in ops for v in n.operands if v.node not in inside and v.data is None)
    leaving = (o for n in ops for o in n.outputs if any(u.node not in inside for u in o.uses) or not o.uses)
    return tuple(entering), tuple(leaving)
