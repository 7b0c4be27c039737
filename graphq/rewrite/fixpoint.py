"""How a pass is run and named, and Fixpoint: a pass of several, repeated until none of them changes the graph."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.rewrite.rule import Pass, Refusal, Rewrite


class Fixpoint:
    """Passes applied one after another, and again from the first, until none of them changes the graph any more.

    It is a pass itself. Its passes are in `passes`, in their order; the function `without` leaves some of them out.
    Each rewrite among them looks at every node of its operations, most of which are nothing for it, so a near miss in a
    Fixpoint is a match of the whole pattern that was refused: by the rewrite's `check`, or because an inner value has
    another user.
    """

    def __init__(self, name: str, *passes: Pass) -> None:
        self.name, self.passes = name, passes

    def __repr__(self) -> str:
        return f"Fixpoint({', '.join([repr(self.name), *map(pass_name, self.passes)])})"

    def __call__(self, graph: Graph) -> int:
        """Apply the passes until none changes the graph; the number of changes."""
        return self.apply(graph)[0]

    def apply(self, graph: Graph) -> tuple[int, list[Refusal]]:
        """Like calling, and the near misses of the rewrites that remain in the graph as it is then."""
        total = unchanged = 0
        last: dict[Pass, list[Refusal]] = {}  # of each pass, the near misses of its last run, which changed nothing
        for step in cycle(self.passes):
            count, last[step] = apply(step, graph, parts=False)
            total += count
            unchanged = 0 if count else unchanged + 1
            if unchanged >= len(self.passes):
                break
        return total, [miss for misses in last.values() for miss in misses]


def apply(step: Pass, graph: Graph, *, parts: bool = True) -> tuple[int, list[Refusal]]:
    """Run a pass: the number of its changes, and the near misses of the rewrites in it, as `Rewrite.apply` has them.

    Raises GraphError for a pass that returns no number; other exceptions name the pass in a note.
    """
    try:
        if isinstance(step, Rewrite):
            return step.apply(graph, parts=parts)
        if isinstance(step, Fixpoint):
            return step.apply(graph)
        count = step(graph)
    except Exception as e:
        e.add_note(f"in pass {pass_name(step)}")
        raise
    if not isinstance(count, int):
        raise GraphError(f"pass {pass_name(step)} must return the number of its changes, got {count!r}")
    return count, []


def pass_name(step: Pass) -> str:
    """The name of a pass in reports: of a rewrite its class's, of a function its own."""
    return step.name if isinstance(step, Rewrite | Fixpoint) else getattr(step, "__name__", type(step).__name__)


def without(passes: Sequence[Pass], *names: str) -> tuple[Pass, ...]:
    """The passes in their order but for those of these names, which may also be passes of a Fixpoint.

    Raises GraphError for a name that no pass has.
    """
    missing = set(names) - _names(passes)
    if missing:
        raise GraphError(f"no pass is named '{min(missing)}'")
    return _without(passes, frozenset(names))


def _names(passes: Sequence[Pass]) -> set[str]:
    """The names of the passes, and of the passes of each Fixpoint."""
    inner = (_names(step.passes) for step in passes if isinstance(step, Fixpoint))
    return {pass_name(step) for step in passes}.union(*inner)


def _without(passes: Sequence[Pass], names: frozenset[str]) -> tuple[Pass, ...]:
    kept = (step for step in passes if pass_name(step) not in names)
    return tuple(Fixpoint(step.name, *_without(step.passes, names)) if isinstance(step, Fixpoint) else step
                 for step in kept)
