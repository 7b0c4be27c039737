"""Shrink a graph by delta debugging over its nodes, and then by simplifications (`reduce_graph`)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import TypeVar

from graphq.errors import GraphqError
from graphq.ir import Graph, Node
from graphq.ir.text import SHORT, to_text
from graphq.ir.verify import verify
from graphq.validation.simplifications import KINDS, Candidate
from graphq.validation.subgraphs import all_nodes, subgraph

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Find a minimal failing sublist of `items` by delta debugging: it no longer fails if any one item is removed.

    The whole list must fail; this is not tested. The list is split into more and more chunks. If a single chunk fails,
    it replaces the list; otherwise, if the list without a chunk fails, the chunk is removed. The search takes O(n^2)
    trials at worst, and O(log n) if one chunk holds the cause.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        chunks = _split(kept, parts)
        rests = [[x for other in chunks if other is not chunk for x in other] for chunk in chunks]
        smaller = next((part for part in chunks if fails(part)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        smaller = next((part for part in rests if parts > 2 and fails(part)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


def _split(items: list[T], parts: int) -> list[list[T]]:
    bounds = [k * len(items) // parts for k in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


TRIALS = 2000
"""The most graphs to try."""


def reduce_graph(graph: Graph, interesting: Callable[[Graph], bool], *, trials: int = TRIALS) -> Graph:
    """Shrink a graph as long as it stays `interesting`. Returns the smallest graph found.

    `graph` must be interesting, and is not changed. `ddmin` first looks for the fewest nodes that are interesting by
    themselves; values of removed nodes become inputs. Then the simplifications of KINDS (fewer outputs, nodes and
    inputs, smaller sizes, default attributes) are tried until none is accepted. Each accepted graph is smaller
    (`_size`), so the search ends, at the latest after `trials` calls of `interesting`. The function `interesting` gets
    only valid graphs, must not change them, and may raise.
    """
    search = _Reducer(graph, interesting, trials)
    search.cut()
    while search.simplify():
        pass
    return search.graph


class _Reducer:
    """A search that has the smallest interesting graph so far in `graph`."""

    def __init__(self, graph: Graph, interesting: Callable[[Graph], bool], trials: int) -> None:
        self.graph, self.interesting, self.left = graph, interesting, trials

    def cut(self) -> None:
        whole = self.graph

        def fails(nodes: list[Node]) -> bool:
            chosen = set(nodes)
            constants = [n for n in whole.nodes_of(("constant",)) if chosen.intersection(n.output.users)]
            return self.accepts(lambda: subgraph(whole, [*constants, *nodes]))

        nodes = [n for n in whole.nodes if n.op.name != "constant"]
        fails(nodes)  # this first trial, with all nodes, leaves out unused inputs
        ddmin(nodes, fails)

    def simplify(self) -> bool:
        accepted = False
        for kind in KINDS:
            tried = 0
            while self.left > 0 and (candidate := next(islice(kind(self.graph), tried, None), None)) is not None:
                if self.accepts(candidate):
                    accepted = True
                else:
                    tried += 1
        return accepted

    def accepts(self, candidate: Candidate) -> bool:
        """Replace the graph by a candidate that is valid, smaller and interesting. Returns whether it was replaced."""
        if self.left <= 0:
            return False
        try:
            smaller = candidate()
            verify(smaller)
        except GraphqError:
            return False
        if not smaller.outputs or _size(smaller) >= _size(self.graph):
            return False
        self.left -= 1
        if not self.interesting(smaller):
            return False
        self.graph = smaller
        return True


def _size(graph: Graph) -> tuple[int, int, int, int, int]:
    """The measure that each reduction must lower: numbers of nodes, open dimensions, elements, names and characters."""
    results = [v for n in graph.nodes for v in n.outputs]
    opened = sum(1 for v in graph.inputs for d in ((None,) if v.shape is None else v.shape) if d is None)
    elements = sum(v.type.size for v in (*graph.inputs, *results) if v.type.known)
    named = sum(v.name is not None for v in results)
    return sum(1 for _ in all_nodes(graph)), opened, elements, named, len(to_text(graph, elide=SHORT))
