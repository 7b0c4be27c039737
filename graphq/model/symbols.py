"""Graphs after the passes with symbols for open sizes, for reports on plans that were made with plain numbers."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from graphq.base.budget import budget
from graphq.base.sizes import Trace
from graphq.errors import GraphqError
from graphq.ir import Graph
from graphq.model.open_shapes import Dimension, Sizes
from graphq.model.planned import Options, Passed


def with_symbols(after: Graph, dimensions: Sequence[Dimension], sizes: Sizes, graph_at: Callable[[Sizes], Graph],
                 options: Options) -> Passed | None:
    """The graph `after` the passes with symbols for open `sizes` instead of plain numbers.

    The passes run again, on the user's graph with symbols, `graph_at(symbols)`. The result is None if this makes a
    different graph, or if some code needs plain numbers.
    """
    trace = Trace()
    symbols = tuple([trace.leaf(n, f"{d.input}.{d.axis}", d.name) for d, n in zip(dimensions, sizes, strict=True)])
    with suppress(GraphqError, ArithmeticError, AttributeError, TypeError), budget(options.memory):
        found = Passed.of(lambda: graph_at(symbols), options)
        if _labels(found.graph) == _labels(after):
            trace.sealed = True
            return found
    return None


def _labels(graph: Graph) -> list[list[str]]:
    return [[graph.label(v) for v in node.outputs] for node in graph.nodes]
