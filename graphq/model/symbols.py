"""Make graphs for reports: the graphs after the passes, but with symbols for open sizes instead of numbers."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from graphq.base.budget import budget
from graphq.base.sizes import Trace
from graphq.errors import GraphqError
from graphq.ir import Graph
from graphq.model.open_shapes import Dimension, Places, Shapes
from graphq.model.planned import Options, Passed

WithSymbols: TypeAlias = Callable[[Trace], Graph]
"""A function that makes a graph with symbols for open sizes. The trace gets a leaf for each open size."""


def at_symbols(source: Graph, places: Places, dimensions: Sequence[Dimension], shapes: Shapes,
               constants: Mapping[str, np.ndarray], trace: Trace) -> Graph:
    """The graph `source` for inputs of these shapes, with a symbol for each of its open `dimensions`."""
    own = places.shapes(tuple([trace.leaf(n, f"{d.input}.{d.axis}", d.name)
                               for d, n in zip(dimensions, places.sizes(shapes), strict=True)]))
    of_inputs = [shapes[k] if v.shape is None else tuple([size if d is None else d for d, size in
                                                          zip(v.shape, own[k], strict=True)])
                 for k, v in enumerate(source.inputs)]
    return places.graph(source, (*of_inputs, *own[len(of_inputs):]), constants)


def symbolic(make: WithSymbols, like: Graph, memory: int | None = None) -> tuple[Graph, Trace] | None:
    """The graph with symbols, and the trace of the symbols.

    `like` is the same graph with plain numbers. The result is None if the two graphs differ in more than sizes, or if
    some code needs plain numbers.
    """
    trace = Trace()
    with suppress(GraphqError, ArithmeticError, AttributeError, TypeError), budget(memory):
        graph = make(trace)
        trace.sealed = True
        trace.guards.clear()  # without guards, reports compute numbers at all sizes of a plan
        if _labels(graph) == _labels(like) and len(trace.assumed) == len(trace.leaves):
            return graph, trace
    return None


def passed(make: WithSymbols, after: Graph, options: Options) -> Passed | None:
    """Run the passes on the graph with symbols. `after` is the result of the passes for the graph with plain numbers.

    The result is None for the same reasons as that of `symbolic`.
    """
    found: list[Passed] = []

    def run(trace: Trace) -> Graph:
        found.append(Passed.of(make(trace).copy, options))
        return found[0].graph

    made = symbolic(run, after, options.memory)
    return None if made is None else found[0]._replace(sizes=dict(made[1].assumed))


def _labels(graph: Graph) -> list[list[str]]:
    return [[graph.label(v) for v in node.outputs] for node in graph.nodes]
