"""Rewrite: a pattern, a check that may refuse with a reason, and a replacement. A Rewrite is a pass.

    class FuseMatmulBias(Rewrite):
        \"\"\"add(matmul(a, b), bias) -> matmul(a, b, bias)\"\"\"

        def pattern(self, g, a, b, bias):
            return g.add(g.matmul(a, b), bias)

        def check(self, b, bias):
            n = b.shape[-1:]
            return None if bias.shape == n else f"bias must have shape {n}, got {bias.type}"

        def replace(self, g, a, b, bias):
            return g.matmul(a, b, bias)

The parameters of `pattern` after `g` are its variables; `check` and `replace` take the variables that they name (None
where an alternative did not use it), `match` for all that matched, and `g`, the graph. An attribute that a pattern
leaves out means its default (a required one: any value); `key=ANY` or `attrs=ANY` accepts any. Both operand orders of
a commutative op are tried. Values inside of the match, other than the root, must have no other user.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value
from graphq.match import Match, Matcher, Reason
from graphq.pattern import ANY, PatternBuilder, PatternLike, Var

__all__ = ["ANY", "Match", "Matcher", "Pass", "PatternBuilder", "PatternLike", "Refusal", "Rewrite", "Var"]

Pass: TypeAlias = Callable[[Graph], int]
"""A function that changes a graph and returns the number of changes."""


@dataclass(frozen=True)
class Refusal:
    """A near miss: `rewrite` at `node` (as text) matched `depth` nodes and then refused for `reason`."""

    rewrite: str
    node: str
    reason: str
    depth: int


class Rewrite:
    """Base of all rewrites; see the module's docstring. An instance is a pass: `rewrite(graph)` returns the count.

    Subclasses define `pattern(self, g, *variables)`, `replace(self, g, ...)` and, to refuse, `check(self, ...)`.
    """

    pattern: Callable[..., PatternLike]
    """The pattern, built with `g` from the variables."""

    check: Callable[..., str | None] = lambda self: None
    """A reason to refuse a match, or None."""

    replace: Callable[..., Value]
    """The value that takes the place of the root, of the same type; nodes are added in front of the root."""

    several_results: bool = False
    """Whether further outputs of matched nodes (softmax's statistics, say) may be used outside of the match."""

    @property
    def name(self) -> str:
        """The name in reports."""
        return type(self).__name__

    def __call__(self, graph: Graph) -> int:
        """Apply to the whole graph until nothing matches; the number of rewrites."""
        return self.apply(graph)[0]

    def apply(self, graph: Graph) -> tuple[int, list[Refusal]]:
        """Like calling, and the near misses at nodes that remain: one for each reason, at the first node that it stops.

        Unnamed values have the numbers that they had before. Raises GraphError when the rewrites do not come to an end.
        """
        step = _Application(self, graph)
        total, rounds, size = 0, 0, len(graph.nodes)
        with graph.stable_labels():
            while count := step.round():
                total, rounds = total + count, rounds + 1
                if total > 10 * size + 100 or rounds > 2 * size + 100:
                    raise GraphError(f"{self.name} was applied {total} times to {size} nodes: it undoes itself")
        return total, step.refusals()


class _Application:
    """One rewrite at work on one graph."""

    def __init__(self, rewrite: Rewrite, graph: Graph) -> None:
        self.rewrite, self.graph = rewrite, graph
        names = _parameters(rewrite, "pattern")[1:]
        reserved = {"g", "match"} & set(names)
        if reserved:
            raise GraphError(f"{rewrite.name}.pattern: the name '{reserved.pop()}' is not free for a variable")
        self.matcher = Matcher(rewrite.pattern(PatternBuilder(), *(Var(n) for n in names)),
                               several_results=rewrite.several_results)
        self.check, self.replace = (self._bound(f, {*names, "g", "match"}) for f in ("check", "replace"))
        self.misses: dict[Node, Refusal] = {}

    def _bound(self, method: str, known: set[str]) -> Callable[[Match], Any]:
        """The method as a function of a match: it is given what its parameters name."""
        wanted = [p for p in _parameters(self.rewrite, method) if p in known]
        call = getattr(self.rewrite, method)

        def run(m: Match) -> Any:
            env = {**m.values, "match": m, "g": self.graph}
            return call(**{name: env.get(name) for name in wanted})

        unknown = [p.name for p in inspect.signature(call).parameters.values()
                   if p.name not in known and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if unknown:
            raise GraphError(f"{self.rewrite.name}.{method} takes '{unknown[0]}', which the pattern does not have; "
                             f"it has {', '.join(sorted(known))}")
        return run

    def round(self) -> int:
        """Visit every node once, the last first; the number of rewrites."""
        count = 0
        for node in reversed(list(self.graph.nodes)):
            if not node.removed:
                count += self._visit(node)
        return count

    def _visit(self, node: Node) -> bool:
        """Rewrite at `node`, or note why not."""
        refused: tuple[int, Reason] | None = None
        for m in self.matcher.matches(self.graph, node):
            reason = self.check(m)
            if reason is None:
                self._rewrite(node, m)
                return True
            if not isinstance(reason, str):
                raise GraphError(f"{self.rewrite.name}.check must return a reason or None, got {reason!r}")
            if refused is None or len(m.nodes) > refused[0]:
                refused = len(m.nodes), lambda reason=reason: reason
        depth, why = refused or (self.matcher.depth, self.matcher.reason)
        if depth > (self.misses[node].depth if node in self.misses else 0):
            self.misses[node] = Refusal(self.rewrite.name, self.graph.describe(node), why(), depth)
        return False

    def _rewrite(self, node: Node, m: Match) -> None:
        name, graph = self.rewrite.name, self.graph
        try:
            with graph.before(node):
                new = self.replace(m)
            if not isinstance(new, Value):
                raise GraphError(f"replace must return a value, got {new!r}")
            if new is node.output:
                raise GraphError("replace returned the value that it replaces; let check refuse instead")
            graph.replace_uses(node.output, new)
        except GraphError as e:
            raise GraphError(f"{name} at {graph.describe(node)}: {e}") from e
        graph.prune([node])

    def refusals(self) -> list[Refusal]:
        """The misses at nodes that are still there, of each reason the deepest, of these the first in graph order."""
        best: dict[str, Refusal] = {}
        for node, miss in self.misses.items():
            if not node.removed and (miss.reason not in best or best[miss.reason].depth <= miss.depth):
                best[miss.reason] = miss
        return list(best.values())


def _parameters(rewrite: Rewrite, method: str) -> list[str]:
    f = getattr(rewrite, method, None)
    if f is None:
        raise GraphError(f"{rewrite.name} has no method '{method}'")
    return list(inspect.signature(f).parameters)
