"""Sizes for the open dimensions of a graph, chosen to reveal wrong passes: unequal sizes, including 1 and 0."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TypeAlias

import numpy as np

from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph, TensorType
from graphq.ir.names import listing

SAME = (2, 3, 1, 8, 16, 32, 64, 224)
"""Sizes that are each tried for all open dimensions at once, before the sizes of the graph's fixed dimensions."""

RANKS = (2, 4, 3, 1, 0)
"""The ranks that are tried for inputs of unknown rank."""

DRAWS = 8
"""The most sets of unequal sizes that are tried until the graph accepts one."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Place: TypeAlias = tuple[str, int]
"""An input and an axis of it, whose size is open."""


def with_sizes(graph: Graph, accepts: Callable[[Graph], None], seed: int = 0) -> list[Graph]:
    """Copies of the graph with sizes in place of all open dimensions; the graph itself if it has none.

    The first copy has one size for all dimensions, the second a different size for each axis; in each of the others one
    axis has the size 0 or 1. Sets of sizes that the graph refuses are left out. If inner shapes depend on data,
    `accepts` is called with the copy and raises if it cannot run. Raises GraphError if the graph refuses all sizes.
    """
    if all(v.type.known for v in graph.inputs):
        return [graph]
    found: dict[tuple[tuple[str, tuple[int, ...]], ...], Graph] = {}
    errors: list[GraphqError] = []

    def first(sets: Iterable[Shapes]) -> Shapes | None:
        """The first of these sets of shapes that the graph accepts; the copy with it is added to the result."""
        for shapes in sets:
            try:
                sized = graph.specialise({str(v.name): TensorType(v.dtype, shapes[str(v.name)]) for v in graph.inputs})
                if not all(v.type.known for n in sized.nodes for v in n.outputs):
                    accepts(sized)
            except GraphqError as e:
                errors.append(e)
            else:
                found.setdefault(tuple(shapes.items()), sized)
                return shapes
        return None

    base = first(_equal(graph))
    if base is None:
        raise GraphError(f"the graph runs with no open dimensions of {listing(SAME)}: {errors[0]}")
    places = [(name, axis) for v in graph.inputs for name in [str(v.name)] for axis in range(len(base[name]))
              if v.shape is None or v.shape[axis] is None]
    unequal = first(_unequal(base, places, np.random.default_rng(seed))) or base
    for axis, size in product(sorted({a for _, a in places}), (0, 1)):
        first([_changed(unequal, {(n, a): size for n, a in places if a == axis})])
    return list(found.values())


def _equal(graph: Graph) -> Iterator[Shapes]:
    """Sets of shapes in which all open dimensions have the same size, and all inputs of unknown rank the same rank."""
    types = [v.type for v in graph.inputs] + [n.output.type for n in graph.nodes_of(("constant",))]
    fixed = {d for t in types for d in t.shape or () if d is not None} - {0, *SAME}
    ranks = RANKS if any(v.shape is None for v in graph.inputs) else RANKS[:1]
    for rank, size in product(ranks, (*SAME, *sorted(fixed))):
        yield {str(v.name): tuple(size if d is None else d for d in ((None,) * rank if v.shape is None else v.shape))
               for v in graph.inputs}


def _unequal(base: Shapes, places: list[Place], rng: np.random.Generator) -> Iterator[Shapes]:
    """Shapes with a different size for each axis: the sizes of `base` plus small numbers, then multiples of them."""
    rank = max((axis for _, axis in places), default=0) + 1
    for draw in range(DRAWS):
        more = rng.permutation(np.arange(1, rank + 3)).tolist()
        yield _changed(base, {(n, a): base[n][a] + more[a] if draw % 2 == 0 else base[n][a] * more[a]
                              for n, a in places})


def _changed(base: Shapes, sizes: dict[Place, int]) -> Shapes:
    return {name: tuple(sizes.get((name, axis), d) for axis, d in enumerate(dims)) for name, dims in base.items()}
