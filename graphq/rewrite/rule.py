"""Rewrites: passes that consist of a pattern, a check that may refuse with a reason, and a replacement.

    class FuseMatmulBias(Rewrite):
        \"\"\"add(matmul(a, b), bias) -> matmul(a, b, bias)\"\"\"

        def pattern(self, g, a, b, bias):
            return g.add(g.matmul(a, b), bias)

        def check(self, b, bias):
            n = b.shape[-1:]
            return None if bias.shape == n else f"bias must have shape {n}, got {bias.type}"

        def replace(self, g, a, b, bias):
            return g.matmul(a, b, bias)

The parameters of `pattern` after `g` are its variables. `check` and `replace` get the variables that their parameters
name. A variable is None if the matched alternative does not use it. Three more parameters are possible: `match` is the
whole match, `g` the graph, and `notes` a dict for data that `check` passes to `replace`.

An attribute that a pattern leaves out must have its default; if it has no default, any value matches. `key=ANY` accepts
any value of one attribute, and `attrs=ANY` any value of all attributes that are left out. Both operand orders of a
commutative operation are tried. Only the root, the last node of a match, may have users outside of the match.
"""
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from graphq.errors import GraphError
from graphq.ir import GRAPH_ORDER, OPS, Graph, Node, Value
from graphq.rewrite.match import Match, Matcher, Nodes, roots
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike, Var

__all__ = ["ANY", "Match", "Matcher", "Nodes", "Pass", "PatternBuilder", "PatternLike", "Refusal", "Rewrite", "Var"]

Pass: TypeAlias = Callable[[Graph], int]
"""A pass: a function that changes a graph and returns the number of changes."""

GIVEN = {"g", "match", "notes"}
"""The parameters of `check` and `replace` that are not variables of the pattern."""


class Refusal(NamedTuple):
    """A near miss: `rewrite` matched `depth` nodes at `node` (a text), and then refused for `reason`.

    `nodes` are the matched nodes of this near miss, and of other near misses with the same rewrite and reason.
    """

    rewrite: str
    node: str
    reason: str
    depth: int
    nodes: tuple[Node, ...] = ()


class Rewrite:
    """Base class of rewrites; the module's docstring is the manual. `rewrite(graph)` returns the number of rewrites.

    A subclass defines `pattern(self, g, *variables)` and `replace(self, g, ...)`, and may define `check(self, ...)` and
    `candidate(self, node)`. An instance builds its pattern at the first use, so attributes that the pattern depends on
    must be set before. The pass runs in rounds, until a round finds no match; a round also visits new nodes.
    """

    pattern: Callable[..., PatternLike]
    """Return the pattern, built with `g` from the variables."""

    check: Callable[..., str | None] = lambda self: None
    """Return a reason to refuse a match, or None. The empty reason "" also refuses, but is not reported."""

    candidate: Callable[..., bool] = lambda self, node: True
    """Return whether a node may be the root of a match or a near miss: a quick test before the pattern is tried."""

    replace: Callable[..., Value]
    """Return the value that replaces the root, of the same type. Nodes that it adds are placed before the root."""

    tolerance: float = 0.0
    """How far results may move, relative to the largest element (0: not at all). The class's docstring says why."""

    several_results: bool = False
    """Whether a matched node's second and later outputs (softmax's statistics) may be used outside of the match."""

    @property
    def name(self) -> str:
        """The rewrite's name in reports."""
        return type(self).__name__

    def __call__(self, graph: Graph) -> int:
        """Apply to the whole graph until nothing matches. Returns the number of rewrites."""
        return self.apply(graph, parts=False, explain=False)[0]

    def apply(self, graph: Graph, *, parts: bool = True, explain: bool = True) -> tuple[int, list[Refusal]]:
        """Apply to the whole graph. Returns the number of rewrites, and the near misses at the remaining nodes.

        A near miss is a match of the whole pattern that `check` refuses, or whose inner values have other users. With
        `parts`, a match of only a part of the pattern also counts. Each reason is reported once, at the match with the
        most nodes. In reasons, unnamed values have their numbers from before the rewrites. Without `explain`, near
        misses are not recorded. Raises GraphError if the rewrites do not end.
        """
        found = self._roots(graph, parts)
        if not found:
            return 0, []
        matcher = Matcher(self._form.pattern, several_results=self.several_results, parts=parts)
        misses: dict[Node, Refusal] | None = {} if explain else None  # the nearest miss at each node
        total, rounds, size = 0, 0, len(graph.nodes)
        with graph.labels.stable():
            while count := sum([self._visit(graph, matcher, node, misses) for node in found if not node.removed]):
                total, rounds = total + count, rounds + 1
                if total > 10 * size + 100 or rounds > 2 * size + 100:
                    raise GraphError(f"{self.name} was applied {total} times to {size} nodes: it undoes itself")
                found = self._roots(graph, parts)
        alike: dict[str, list[Refusal]] = {}
        for node, miss in (misses or {}).items():
            if not node.removed:
                alike.setdefault(miss.reason, []).insert(0, miss)
        return total, [max(of_one, key=lambda m: m.depth)._replace(nodes=tuple(n for m in of_one for n in m.nodes))
                       for of_one in alike.values()]

    def _roots(self, graph: Graph, near: bool) -> list[Node]:
        """The nodes that can be the root of a match, or with `near` of a near miss, the last node first."""
        found = roots(self._form.pattern, graph, near=near)
        tried = filter(self.candidate, graph.nodes if found is None else found)
        return sorted(tried, key=GRAPH_ORDER, reverse=True)

    def _visit(self, graph: Graph, matcher: Matcher, node: Node, misses: dict[Node, Refusal] | None) -> bool:
        """Rewrite the first match at `node` that `check` does not refuse; without one, record the nearest miss."""
        refused: tuple[tuple[Node, ...], str] | None = None
        for m in matcher.matches(graph, node):
            given: dict[str, Any] = {**m.values, "match": m, "g": graph, "notes": {}}
            reason = self.check(**{name: given.get(name) for name in self._form.check})
            if reason is None:
                self._rewrite(graph, m, given)
                return True
            if not isinstance(reason, str):
                raise GraphError(f"{self.name}.check must return a reason or None, got {reason!r}")
            nodes = m.nodes if reason else ()
            if refused is None or len(nodes) > len(refused[0]):
                refused = nodes, reason
        missed, why = refused or (matcher.missed, "")
        if misses is not None and len(missed) > (misses[node].depth if node in misses else 0):
            misses[node] = Refusal(self.name, graph.describe(node), why or matcher.reason(), len(missed), missed)
        return False

    def _rewrite(self, graph: Graph, m: Match, given: dict[str, Any]) -> None:
        node = m.root
        try:
            with graph.before(node, m.nodes):
                new = self.replace(**{name: given.get(name) for name in self._form.replace})
            if not isinstance(new, Value):
                raise GraphError(f"replace must return a value, got {new!r}")
            if new is node.output:
                raise GraphError("replace returned the value that it replaces; let check refuse instead")
            graph.replace_uses(node.output, new)
        except GraphError as e:
            raise GraphError(f"{self.name} at {graph.describe(node)}: {e}") from e
        graph.prune([node])

    @property
    def _form(self) -> "_RewriteForm":
        """The pattern, and what `check` and `replace` take. Patterns may list operations: a new one makes it again."""
        made = self.__dict__.get("_made")
        if made is None or made[0] != len(OPS):
            made = self.__dict__["_made"] = len(OPS), self._make()
        return made[1]

    def _make(self) -> "_RewriteForm":
        _, *names = _parameters(self, "pattern")
        if reserved := GIVEN & set(names):
            raise GraphError(f"{self.name}.pattern: the name '{reserved.pop()}' is not free for a variable")
        known = {*names, *GIVEN}
        pattern = self.pattern(PatternBuilder(), *(Var(n) for n in names))
        return _RewriteForm(pattern, _wanted(self, "check", known), _wanted(self, "replace", known))


class Drop(Rewrite):
    """Base class of rewrites that replace a match by the value of the pattern's variable `x`."""

    def replace(self, x: Value) -> Value:
        return x


class _RewriteForm(NamedTuple):
    pattern: PatternLike
    check: tuple[str, ...]
    replace: tuple[str, ...]


def _parameters(rewrite: Rewrite, method: str) -> Mapping[str, inspect.Parameter]:
    f = getattr(rewrite, method, None)
    if f is None:
        raise GraphError(f"{rewrite.name} has no method '{method}'")
    return inspect.signature(f).parameters


def _wanted(rewrite: Rewrite, method: str, known: set[str]) -> tuple[str, ...]:
    parameters = _parameters(rewrite, method)
    unknown = [p.name for p in parameters.values()
               if p.name not in known and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if unknown:
        raise GraphError(f"{rewrite.name}.{method} takes '{unknown[0]}', which the pattern does not have; "
                         f"it has {', '.join(sorted(known))}")
    return tuple(p for p in parameters if p in known)


def set_attributes(graph: Graph, nodes: Sequence[Node], **attrs: Any) -> int:
    """Replace nodes by nodes with these attributes changed. Returns the number of nodes."""
    for node in nodes:
        with graph.before(node, [node]):
            outputs = graph.add_node(node.op, node.inputs, {**node.attrs, **attrs})
        for old, new in zip(node.outputs, outputs, strict=True):
            graph.replace_uses(old, new)
        graph.prune([node])
    return len(nodes)
