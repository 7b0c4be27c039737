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


def symbolic(make: Callable[[Trace], Sequence[Graph]], like: Sequence[Graph], memory: int | None = None
             ) -> tuple[Sequence[Graph], Trace] | None:
    """The graphs that `make` makes with symbols, and the trace of the symbols.

    `like` has the same graphs with plain numbers. The result is None if the graphs differ in more than sizes, or if
    some code needs plain numbers.
    """
    trace = Trace()
    with suppress(GraphqError, ArithmeticError, AttributeError, TypeError), budget(memory):
        graphs = make(trace)
        trace.sealed = True
        trace.guards.clear()  # without guards, reports compute numbers at all sizes of a plan
        if list(map(_labels, graphs)) == list(map(_labels, like)) and len(trace.assumed) == len(trace.leaves):
            return graphs, trace
    return None


def _labels(graph: Graph) -> list[list[str]]:
    return [[graph.label(v) for v in node.outputs] for node in graph.nodes]
