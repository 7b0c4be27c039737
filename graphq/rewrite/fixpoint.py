"""Run and name passes; Fixpoint, a pass that repeats several passes; History, a record of one run of passes."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TypeAlias, TypeVar

from graphq.errors import GraphError
from graphq.ir import Graph, Value
from graphq.ir.names import choice
from graphq.rewrite.rule import Pass, Refusal, Rewrite


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


After: TypeAlias = Callable[[Pass, int, Graph], None]
"""A function called after each pass, also in a Fixpoint, with the pass, its number of changes and the graph."""

P = TypeVar("P", bound=Pass)


class Fixpoint:
    """Passes applied one after another, and again from the first, until none of them changes the graph any more.

    It is a pass itself. Its passes are in `passes`, in their order; the function `without` leaves some of them out.
    Each rewrite in it looks at every node that has one of the rewrite's operations, and most of these nodes are not
    meant for it. So a near miss here is only a match of the whole pattern that was refused: by the rewrite's `check`,
    or because an inner value has another user.
    """

    def __init__(self, name: str, *passes: Pass) -> None:
        self.name, self.passes = name, passes

    def __repr__(self) -> str:
        return f"Fixpoint({', '.join([repr(self.name), *map(pass_name, self.passes)])})"

    def __call__(self, graph: Graph) -> int:
        """Apply the passes until none changes the graph; returns the number of changes."""
        return self.apply(graph)[0]

    def apply(self, graph: Graph, after: After | None = None) -> tuple[int, list[Refusal]]:
        """Apply the passes; returns the number of changes, and the near misses of the rewrites in the final graph."""
        total = unchanged = 0
        last: dict[Pass, list[Refusal]] = {}  # for each pass the near misses of its last run, the one without changes
        for step in cycle(self.passes):
            count, last[step] = apply(step, graph, parts=False, after=after)
            total += count
            unchanged = 0 if count else unchanged + 1
            if unchanged >= len(self.passes):
                break
        return total, [miss for misses in last.values() for miss in misses]


def apply(step: Pass, graph: Graph, *, parts: bool = True, after: After | None = None) -> tuple[int, list[Refusal]]:
    """Run a pass; returns the number of its changes, and the near misses of its rewrites, as `Rewrite.apply` does.

    Raises GraphError for a pass that does not return a number. Other exceptions get a note that names the pass.
    """
    misses: list[Refusal] = []
    try:
        if isinstance(step, Fixpoint):
            return step.apply(graph, after)
        if isinstance(step, Rewrite):
            count, misses = step.apply(graph, parts=parts)
        else:
            count = step(graph)
    except Exception as e:
        e.add_note(f"in pass {pass_name(step)}")
        raise
    if not isinstance(count, int):
        raise GraphError(f"pass {pass_name(step)} must return the number of its changes, got {count!r}")
    if after is not None:
        after(step, count, graph)
    return count, misses


def pass_name(step: Pass) -> str:
    """The name of a pass in reports: for a rewrite the name of its class, for a function its own name."""
    return step.name if isinstance(step, Rewrite | Fixpoint) else getattr(step, "__name__", type(step).__name__)


def rounds(tolerance: float) -> Callable[[P], P]:
    """Declare how far a pass that is a function may move results, as `Rewrite.tolerance` does for a rewrite."""

    def mark(function: P) -> P:
        setattr(function, "tolerance", tolerance)  # noqa: B010  # a function has no attribute that type checkers know
        return function

    return mark


def tolerance_of(step: Pass) -> float:
    """How far a pass may move results, relative to the largest element; 0 if numbers stay equal bit for bit."""
    return float(getattr(step, "tolerance", 0.0))


def find_pass(passes: Sequence[Pass], name: str) -> Pass:
    """The first pass of this name, also within a Fixpoint. Raises GraphError, with similar names, if there is none."""
    for step in passes:
        if pass_name(step) == name:
            return step
        if isinstance(step, Fixpoint) and name in _names(step.passes):
            return find_pass(step.passes, name)
    raise GraphError(f"no pass is named '{name}'{choice(name, _names(passes))}")


def without(passes: Sequence[Pass], *names: str) -> tuple[Pass, ...]:
    """The passes in their order, but not those with these names. Passes within a Fixpoint can be left out, too.

    Raises GraphError for a name that no pass has.
    """
    missing = set(names).difference(_names(passes))
    if missing:
        raise GraphError(f"no pass is named '{min(missing)}'")
    return _without(passes, frozenset(names))


def _names(passes: Sequence[Pass]) -> list[str]:
    return [name for step in passes
            for name in (pass_name(step), *(_names(step.passes) if isinstance(step, Fixpoint) else ()))]


def _without(passes: Sequence[Pass], names: frozenset[str]) -> tuple[Pass, ...]:
    kept = (step for step in passes if pass_name(step) not in names)
    return tuple(Fixpoint(step.name, *_without(step.passes, names)) if isinstance(step, Fixpoint) else step
                 for step in kept)
