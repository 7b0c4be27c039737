"""The passes run once more for a report, so that it sees the graph before the fusions, and what each operation became.

A compiled model keeps nothing of what reports alone need.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphq.ir import Graph, Node, Value
from graphq.report.given import REORDERS
from graphq.rewrite.partition import Fusion
from graphq.rewrite.rule import Pass

TAG = "before the fusions"
"""The key of `meta` under which a node of the graph after the passes has the node that it was before the fusions."""


class Replay(NamedTuple):
    """The graph as it was given (`source`), `before` the fusions, and `after` all passes.

    `same` has the value of `source` for each value of `before` with which the passes began, whether it is still there
    or not. `home` says what operations of `before` became: nodes of `after`, partitions above all. Constants that were
    computed, and operations that were merged with equal ones, have none. `passes` are those that ran.
    """

    source: Graph
    before: Graph
    after: Graph
    same: Mapping[Value, Value]
    home: Mapping[Node, Node]
    passes: tuple[Pass, ...]


def replay(graph: Graph, passes: Sequence[Pass]) -> Replay:
    """Run the passes on `graph`, which they change up to the first fusion, and on a copy from there on.

    Unnamed values of `before` keep the numbers that they have in the text of `graph`.
    """
    source = graph.copy()
    graph.labels.trace()
    given = dict(zip(_values(graph), _values(source), strict=True))
    first = next((k for k, step in enumerate(passes) if isinstance(step, Fusion)), len(passes))
    for step in passes[:first]:
        step(graph)
    after = graph.copy()
    same: dict[Value, Value] = {}
    for old, new in zip(graph.nodes, after.nodes, strict=True):
        new.meta = {**new.meta, TAG: old}
        same.update(zip(new.outputs, old.outputs, strict=True))
    after.labels.take(graph.labels, same)
    for step in passes[first:]:
        step(after)
    home: dict[Node, Node] = {}
    for node in after.nodes:
        for inner in node.attrs["body"].nodes if node.op.name == "partition" else (node,):
            if TAG in inner.meta:
                home.setdefault(inner.meta[TAG], node)
    made = {after.label(v): node for node in after.nodes for v in node.outputs}
    for node in graph.nodes:  # what a pass after the first fusion put in its place has its result's label
        instead = made.get(graph.label(node.outputs[0]))
        while instead is not None and instead.op is not node.op and instead.op.name in REORDERS:
            instead = next(instead.operands).node
        if instead is not None and instead.op.name != "constant":
            home.setdefault(node, instead)
    return Replay(source, graph, after, given, home, tuple(passes))


def _values(graph: Graph) -> list[Value]:
    """All values, in an order that copies share."""
    return [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
