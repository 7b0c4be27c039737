"""Run single passes, or repeat passes until nothing changes (Fixpoint), and record a run (History)."""
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import TypeAlias, TypeVar

from graphq.errors import GraphError
from graphq.ir import Graph, choice
from graphq.rewrite.rule import Pass, Refusal, Rewrite


class History:
    """A record of one run of passes. `before` is the graph before the fusions, `after` the graph after all passes.

    Passes before the first fusion change the graph `before`; later passes change its copy, the graph `after`. Each node
    of `after`, also inside a partition's body, has an `origin`: the node of `before` that it was made from. Each new
    node of `before` has an `origin` in the original graph. `given` has the values of the original graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.before = self.after = graph
        self.given = graph.values
        graph.labels.keep(trace=True)

    def fork(self) -> Graph:
        """Return the graph `after`. The first call makes it, as a copy of `before` with the same labels."""
        if self.after is self.before:
            self.after = self.before.copy()
            for new, old in zip(self.after.nodes, self.before.nodes, strict=True):
                new.origin = old
            values = dict(zip(self.after.values, self.before.values, strict=True))
            self.after.labels.take(self.before.labels, values)
        return self.after


After: TypeAlias = Callable[[Pass, int, Graph], None]
"""A callback after each pass, also inside a Fixpoint. It gets the pass, the number of changes, and the graph."""

P = TypeVar("P", bound=Pass)


class Fixpoint:
    """A pass that applies the passes `passes` in turn until none of them changes the graph.

    It reports as near misses only refused matches of a whole pattern, because most matches of a part of a pattern have
    nothing to do with the rewrite.
    """

    def __init__(self, name: str, *passes: Pass) -> None:
        self.name, self.passes = name, passes

    def __repr__(self) -> str:
        return f"Fixpoint({', '.join([repr(self.name), *map(pass_name, self.passes)])})"

    def __call__(self, graph: Graph) -> int:
        """Apply the passes until none changes the graph. Returns the number of changes."""
        return self.apply(graph)[0]

    def apply(self, graph: Graph, after: After | None = None) -> tuple[int, list[Refusal]]:
        """Apply the passes. Returns the number of changes, and the near misses of rewrites in the final graph."""
        total = unchanged = 0
        last: dict[Pass, list[Refusal]] = {}  # each pass's near misses in its last run
        for step in cycle(self.passes):
            count, last[step] = apply(step, graph, parts=False, after=after)
            total, unchanged = total + count, 0 if count else unchanged + 1
            if unchanged >= len(self.passes):
                break
        return total, [miss for misses in last.values() for miss in misses]


def apply(step: Pass, graph: Graph, *, parts: bool = True, after: After | None = None) -> tuple[int, list[Refusal]]:
    """Run a pass. Returns the number of its changes, and the near misses of its rewrites (see `Rewrite.apply`).

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
    """The name of a pass in reports: the class of a rewrite, or the name of a function or Fixpoint."""
    return step.name if isinstance(step, Rewrite | Fixpoint) else getattr(step, "__name__", type(step).__name__)


def rounds(tolerance: float) -> Callable[[P], P]:
    """Make a decorator that sets the `tolerance` of a pass that is a function (see `Rewrite.tolerance`)."""

    def mark(function: P) -> P:
        setattr(function, "tolerance", tolerance)  # noqa: B010  # a function has no attribute that type checkers know
        return function

    return mark


def tolerance_of(step: Pass) -> float:
    """How far a pass may move results, relative to the largest element; 0 if results stay equal bit for bit."""
    return float(getattr(step, "tolerance", 0.0))


def find_pass(passes: Sequence[Pass], name: str) -> Pass:
    """Find the first pass of this name, also inside a Fixpoint. Raises GraphError for an unknown name."""
    for step in _every(passes):
        if pass_name(step) == name:
            return step
    raise GraphError(f"no pass is named '{name}'{choice(name, map(pass_name, _every(passes)))}")


def single_passes(passes: Sequence[Pass]) -> list[Pass]:
    """The passes in order; each Fixpoint is replaced by its passes."""
    return [step for step in _every(passes) if not isinstance(step, Fixpoint)]


def without(passes: Sequence[Pass], *names: str) -> tuple[Pass, ...]:
    """Leave out the passes with these names, also inside a Fixpoint. Raises GraphError for a name that no pass has."""
    if missing := {*names}.difference(map(pass_name, _every(passes))):
        raise GraphError(f"no pass is named '{min(missing)}'")

    def kept(steps: Sequence[Pass]) -> tuple[Pass, ...]:
        return tuple(Fixpoint(step.name, *kept(step.passes)) if isinstance(step, Fixpoint) else step
                     for step in steps if pass_name(step) not in names)

    return kept(passes)


def _every(passes: Sequence[Pass]) -> Iterator[Pass]:
    """Yield the passes in order; the passes of a Fixpoint follow it."""
    for step in passes:
        yield step
        yield from _every(step.passes) if isinstance(step, Fixpoint) else ()
