"""History: a record of one run of passes, for reports: the graph before the fusions and the graph after all passes."""
from __future__ import annotations

from graphq.ir import Graph, Value


class History:
    """A graph under passes, which change `before` up to the first fusion, and from there on its copy `after`.

    The `origin` of a node of `after`, or of a partition's body there, is the node of `before` from which it was made.
    The `origin` of a node that passes added to `before` is a node of the original graph; nodes of the original graph
    have none. `given` are the values of the original graph; `before.labels.origins` leads to them.
    """

    def __init__(self, graph: Graph) -> None:
        self.before = self.after = graph
        self.given = values_of(graph)
        graph.labels.trace()

    def fork(self) -> Graph:
        """The graph on which the passes continue: from the first fusion on a copy, whose values keep their labels."""
        if self.after is self.before:
            self.after = self.before.copy()
            pairs = list(zip(self.after.nodes, self.before.nodes, strict=True))
            for new, old in pairs:
                new.origin = old
            self.after.labels.take(self.before.labels, {v: w for new, old in pairs
                                                        for v, w in zip(new.outputs, old.outputs, strict=True)})
        return self.after


def values_of(graph: Graph) -> list[Value]:
    """All values, in an order that is the same in copies of the graph."""
    return [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
