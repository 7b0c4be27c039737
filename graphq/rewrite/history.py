"""History: a record of one run of passes, for reports: the graph before the fusions and the graph after all passes."""
from __future__ import annotations

from graphq.ir import Graph, Value


class History:
    """The graphs of one run of passes: `before` the fusions, and `after` all passes.

    Passes change `before` up to the first fusion, and its copy `after` from there on. For a node of `after`,
    or in the body of one of its partitions, `origin` is the node of `before` that it was made from. For a node that
    passes added to `before`, `origin` is a node of the original graph. Nodes of the original graph have no `origin`.
    `given` are the values of the original graph, and `before.labels.origins` maps later values to them.
    """

    def __init__(self, graph: Graph) -> None:
        self.before = self.after = graph
        self.given = values_of(graph)
        graph.labels.trace()

    def fork(self) -> Graph:
        """The graph that the passes change from now on: `after`, a copy of `before` whose values keep their labels."""
        if self.after is self.before:
            self.after = self.before.copy()
            pairs = list(zip(self.after.nodes, self.before.nodes, strict=True))
            for new, old in pairs:
                new.origin = old
            self.after.labels.take(self.before.labels, {v: w for new, old in pairs
                                                        for v, w in zip(new.outputs, old.outputs, strict=True)})
        return self.after


def values_of(graph: Graph) -> list[Value]:
    """All values of a graph, in an order that is the same in its copies."""
    return [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
