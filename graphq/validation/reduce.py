"""reduce_graph: delta debugging over the nodes of a graph, and then simplifications of the rest."""
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
    """A part of `items`, in their order, that fails, and from which no single item can be left out.

    `items` as a whole must fail; that is not tested. The list is split into more and more chunks; a chunk that fails by
    itself, or the list without a chunk if that fails, replaces the list. This takes O(n^2) trials at worst, O(log n) if
    one chunk holds the cause.
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
    """`parts` lists of nearly the same length; none is empty, as there are at least as many items."""
    bounds = [k * len(items) // parts for k in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


TRIALS = 2000
"""The most graphs that are tried."""


def reduce_graph(graph: Graph, interesting: Callable[[Graph], bool], *, trials: int = TRIALS) -> Graph:
    """The smallest graph found that is still `interesting`.

    `graph` itself is interesting, and is not changed. First nodes are removed: `ddmin` looks for the fewest nodes that
    are interesting by themselves, where values of other nodes become inputs. Then the simplifications of KINDS are
    tried (fewer outputs, nodes and inputs, smaller sizes, attributes at their defaults), again and again until none of
    them is accepted. Each accepted graph is smaller (`_size`), so the search ends, at the latest after `trials` calls
    of `interesting`. `interesting` gets only valid graphs, and must not change them. Its exceptions are passed on.
    """
    search = _Search(graph, interesting, trials)
    search.cut()
    while search.simplify():
        pass
    return search.graph


class _Search:
    """The smallest interesting graph so far."""

    def __init__(self, graph: Graph, interesting: Callable[[Graph], bool], trials: int) -> None:
        self.graph, self.interesting, self.left = graph, interesting, trials

    def cut(self) -> None:
        """Leave out as many nodes as possible; constants stay with the nodes that use them."""
        whole = self.graph

        def fails(nodes: list[Node]) -> bool:
            chosen = set(nodes)
            constants = [n for n in whole.nodes_of(("constant",)) if chosen.intersection(n.output.users)]
            return self.accepts(lambda: subgraph(whole, [*constants, *nodes]))

        nodes = [n for n in whole.nodes if n.op.name != "constant"]
        fails(nodes)  # without inputs that nothing uses
        ddmin(nodes, fails)

    def simplify(self) -> bool:
        """Try all simplifications once, one after the other; returns whether one was accepted."""
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
        """Whether a candidate is valid, smaller and interesting; it then replaces the graph."""
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
    """A size that reductions lower: the numbers of nodes, open dimensions, elements, names and characters of text."""
    results = [v for n in graph.nodes for v in n.outputs]
    opened = sum(1 for v in graph.inputs for d in ((None,) if v.shape is None else v.shape) if d is None)
    elements = sum(v.type.size for v in (*graph.inputs, *results) if v.type.known)
    named = sum(v.name is not None for v in results)
    return sum(1 for _ in all_nodes(graph)), opened, elements, named, len(to_text(graph, elide=SHORT))
