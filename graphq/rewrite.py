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

The parameters of `pattern` after `g` are its variables; `check` and `replace` take the variables that they name, and
`match` for all that matched (and `g`, the graph). An attribute that a pattern leaves out means its default (a required one: any value);
`key=ANY` or `attrs=ANY` accepts any. Both operand orders of a commutative op are tried.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value
from graphq.op import lookup

ANY: Any = object()
"""As an attribute in a pattern: any value."""

Pass: TypeAlias = Callable[[Graph], int]


@dataclass(frozen=True)
class Var:
    """Matches any value, the same one wherever it stands."""

    name: str


@dataclass(frozen=True)
class OpPattern:
    """Matches the output of a node of one of `ops` whose operands and attributes match."""

    ops: frozenset[str]
    operands: tuple[PatternLike | None, ...]
    attrs: Mapping[str, Any]
    any_attrs: bool


@dataclass(frozen=True)
class AnyOf:
    """Matches what the first fitting alternative matches."""

    alternatives: tuple[PatternLike, ...]


@dataclass(frozen=True)
class Repeat:
    """Matches up to `max` nodes of `ops` that lead from `inner` to the value, branches that meet again included.

    Without `inner`: all nodes of `ops` above the value that nothing else uses. `where` may refuse a node.
    """

    ops: frozenset[str]
    inner: PatternLike | None
    max: int
    where: Callable[[Node], str | None] | None = None


PatternLike: TypeAlias = "Var | OpPattern | AnyOf | Repeat"


class PatternBuilder:
    """The `g` of a pattern: each method is an op; `optional`, `any_of` and `repeat` make chains."""

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._op(frozenset([lookup(name).name]))

    def _op(self, ops: frozenset[str]) -> Callable[..., OpPattern]:
        def build(*operands: PatternLike | None, attrs: Any = None, **given: Any) -> OpPattern:
            for name in ops:
                op = lookup(name)
                unknown = [k for k in given if k not in op.attributes]
                if unknown:
                    raise GraphError(f"pattern: {name} has no attribute '{unknown[0]}'")
            return OpPattern(ops, operands, given, attrs is ANY)

        return build

    def any_of(self, *choices: Any) -> Any:
        """Of patterns: the first that matches. Of op names: a builder for a node of any of these ops."""
        if choices and all(isinstance(c, str) for c in choices):
            return self._op(frozenset(lookup(c).name for c in choices))
        return AnyOf(choices)

    def optional(self, op: str, x: PatternLike, *others: PatternLike, **attrs: Any) -> AnyOf:
        """`op(x, *others)`, or `x` alone."""
        return AnyOf((self._op(frozenset([op]))(x, *others, **attrs), x))

    def repeat(self, ops: Iterable[str], x: PatternLike | None = None, *, max: int,
               where: Callable[[Node], str | None] | None = None) -> Repeat:
        """Up to `max` nodes of `ops` from `x` on, whatever their other operands and attributes are.

        Without `x`, the chain may begin anywhere. `where(node)` may give a reason to leave a node out.
        """
        return Repeat(frozenset(lookup(o).name for o in ops), x, max, where)


@dataclass(frozen=True)
class Match:
    """What a pattern matched: its root, all nodes, and the values of its variables."""

    root: Node
    nodes: tuple[Node, ...] = ()
    values: Mapping[str, Value | None] = field(default_factory=dict)

    def node(self, op: str) -> Node:
        """The first matched node of that op."""
        return next(n for n in self.nodes if n.op.name == op)


@dataclass(frozen=True)
class Refusal:
    """A near miss: `rewrite` at `node` (as text) matched `depth` nodes and then refused for `reason`."""

    rewrite: str
    node: str
    reason: str
    depth: int


class Matcher:
    """Matches one pattern against a graph, with backtracking; keeps the reason of the deepest failure."""

    def __init__(self, pattern: PatternLike) -> None:
        self.pattern = pattern
        self.depth, self.reason = -1, ""

    def matches(self, graph: Graph, root: Node) -> Iterator[Match]:
        """All ways to match the pattern with `root` as its last node."""
        self.depth, self.reason = -1, ""
        if len(root.outputs) != 1:
            return
        self.graph = graph
        for m in self._value(self.pattern, root.output, Match(root)):
            if root not in m.nodes:
                continue
            reason = self._escapes(m)
            if reason is None:
                yield m
            else:
                self._fail(m, reason)

    def _fail(self, m: Match, reason: str) -> None:
        if len(m.nodes) > self.depth:
            self.depth, self.reason = len(m.nodes), reason

    def _escapes(self, m: Match) -> str | None:
        """The reason to refuse when an inner value is also used outside of the match."""
        members = set(m.nodes)
        for node in m.nodes:
            if node is m.root or node.op.name == "constant":
                continue
            for use in (u for out in node.outputs for u in out.uses):
                if use.node is None:
                    return f"{self.graph.describe(node)} is also an output of the graph"
                if use.node not in members:
                    return f"{self.graph.describe(node)} is also used by {self.graph.describe(use.node)}"
        return None

    def _value(self, p: PatternLike | None, value: Value | None, m: Match) -> Iterator[Match]:
        if p is None or value is None:
            if p is None and value is None:
                yield m
        elif isinstance(p, Var):
            if m.values.get(p.name, value) is value:
                yield Match(m.root, m.nodes, {**m.values, p.name: value})
            else:
                self._fail(m, f"'{p.name}' would be two different values")
        elif isinstance(p, AnyOf):
            for choice in p.alternatives:
                yield from self._value(choice, value, m)
        elif isinstance(p, Repeat):
            yield from self._repeat(p, value, m)
        else:
            yield from self._node(p, value, m)

    def _node(self, p: OpPattern, value: Value, m: Match) -> Iterator[Match]:
        node = value.node
        if node is None or node.op.name not in p.ops:
            if not m.nodes:  # another op at the root is no near miss
                return
            found = f"input {value.name}" if node is None else node.op.name
            self._fail(m, f"expected {' or '.join(sorted(p.ops))}, found {found} ({self.graph.label(value)}: {value.type})")
            return
        here = Match(m.root, m.nodes if node in m.nodes else (*m.nodes, node), m.values)
        reason = self._attributes(p, node)
        if reason is not None:
            self._fail(here, reason)
            return
        if len(p.operands) != len(node.inputs):
            self._fail(here, f"{self.graph.describe(node)} has {len(node.inputs)} operands, the pattern {len(p.operands)}")
            return
        orders = [node.inputs]
        if node.op.commutative and node.inputs[0] is not node.inputs[1]:
            orders.append((node.inputs[1], node.inputs[0], *node.inputs[2:]))
        for order in orders:
            yield from self._operands(p.operands, order, here)

    def _attributes(self, p: OpPattern, node: Node) -> str | None:
        for name, a in node.op.attributes.items():
            wanted = p.attrs.get(name, ANY if p.any_attrs or a.required else a.default)
            if wanted is not ANY and node.attrs[name] != (tuple(wanted) if isinstance(wanted, list) else wanted):
                return f"{self.graph.describe(node)}: attribute '{name}' is {node.attrs[name]!r}, not {wanted!r}"
        return None

    def _operands(self, patterns: tuple[PatternLike | None, ...], values: tuple[Value | None, ...],
                  m: Match) -> Iterator[Match]:
        if not patterns:
            yield m
            return
        for first in self._value(patterns[0], values[0], m):
            yield from self._operands(patterns[1:], values[1:], first)

    def _repeat(self, p: Repeat, value: Value, m: Match) -> Iterator[Match]:
        region = self._region(p, value, m)
        if p.inner is None:
            # Each node of the region comes after all of its users, so any beginning of the list is a region too.
            yield Match(m.root, (*m.nodes, *region[:p.max]), m.values)
            return
        yield from self._value(p.inner, value, m)
        for start in _border(region):
            for inner in self._value(p.inner, start, m):
                path = _between(start, region)
                if value.node not in path:
                    continue
                found = Match(m.root, (*inner.nodes, *(n for n in path if n not in inner.nodes)), inner.values)
                if len(path) > p.max:
                    self._fail(found, f"{len(path)} operations follow {self.graph.label(start)}, at most {p.max} fuse")
                    continue
                yield found

    def _region(self, p: Repeat, value: Value, m: Match) -> list[Node]:
        """The nodes of `p.ops` above `value` whose every use lies in the region, last first."""
        region: dict[Node, None] = {}
        work = [value.node] if self._joins(p, value.node, m) else []
        while work:
            node = work.pop()
            if node in region:
                continue
            region[node] = None  # type: ignore[index]
            for v in node.operands:  # type: ignore[union-attr]
                if all(u.node in region for u in v.uses) and self._joins(p, v.node, m):
                    work.append(v.node)
        return list(region)  # type: ignore[arg-type]

    def _joins(self, p: Repeat, node: Node | None, m: Match) -> bool:
        if node is None or node.op.name not in p.ops or len(node.outputs) != 1:
            return False
        reason = p.where(node) if p.where is not None else None
        if reason is not None:
            self._fail(Match(m.root, (*m.nodes, node), m.values), f"{self.graph.describe(node)}: {reason}")
        return reason is None


def _border(region: list[Node]) -> list[Value]:
    """The values that enter a region, each once."""
    inside = set(region)
    return list(dict.fromkeys(v for n in region for v in n.operands if v.node not in inside))


def _between(start: Value, region: list[Node]) -> list[Node]:
    """The nodes of the region that depend on `start`, in the order of use."""
    inside, path = set(region), {}
    work = [u.node for u in start.uses]
    while work:
        node = work.pop()
        if node in inside and node not in path:
            path[node] = None
            work += [u.node for out in node.outputs for u in out.uses]
    return list(path)


class Rewrite:
    """Base of all rewrites; see the module's docstring. An instance is a pass: `rewrite(graph)` returns the count."""

    def pattern(self, g: Any, *variables: Any) -> PatternLike:
        """The pattern, built with `g` from the variables."""
        raise NotImplementedError

    def check(self) -> str | None:
        """A reason to refuse a match, or None."""
        return None

    def replace(self, g: Graph, **variables: Any) -> Value:
        """The value that takes the place of the root; nodes are added in front of it. Its type must be the same."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name in reports."""
        return type(self).__name__

    def __call__(self, graph: Graph) -> int:
        """Apply to the whole graph until nothing matches; the number of rewrites."""
        return self.apply(graph)[0]

    def apply(self, graph: Graph) -> tuple[int, list[Refusal]]:
        """Like calling, and the near misses of the last round, one for each root at most."""
        matcher = Matcher(self._built_pattern())
        total, limit = 0, 10 * len(graph.nodes) + 100
        while True:
            count, refusals = self._round(graph, matcher)
            total += count
            if count == 0:
                return total, refusals
            if total > limit:
                raise GraphError(f"{self.name} was applied {total} times to {limit // 10} nodes: it undoes itself")

    def _round(self, graph: Graph, matcher: Matcher) -> tuple[int, list[Refusal]]:
        count, refusals, alive = 0, [], set(graph.nodes)
        for node in reversed(list(graph.nodes)):
            if node not in alive:
                continue
            refusal = self._at(graph, node, matcher)
            if refusal is None:
                count += 1
                alive &= set(graph.nodes)
            elif refusal.depth > 0:
                refusals.append(refusal)
        return count, refusals

    def _at(self, graph: Graph, node: Node, matcher: Matcher) -> Refusal | None:
        """Rewrite at `node` (None), or say why not."""
        depth, reason = -1, ""
        for m in matcher.matches(graph, node):
            refused = _call(self.check, m, {"g": graph})
            if refused is not None:
                depth, reason = max((depth, reason), (len(m.nodes), refused), key=lambda r: r[0])
                continue
            with graph.before(node):
                new = _call(self.replace, m, {"g": graph})
            if not isinstance(new, Value):
                raise GraphError(f"{self.name}.replace must return a value, got {new!r}")
            if new is node.output:
                raise GraphError(f"{self.name}.replace returned the value that it replaces; let check refuse instead")
            graph.replace_uses(node.output, new)
            graph.prune([node])
            return None
        if matcher.depth >= depth:
            depth, reason = matcher.depth, matcher.reason
        return Refusal(self.name, graph.describe(node) if depth > 0 else "", reason, depth)

    def _built_pattern(self) -> PatternLike:
        names = list(inspect.signature(self.pattern).parameters)[1:]
        return self.pattern(PatternBuilder(), *(Var(n) for n in names))


def _call(f: Callable[..., Any], m: Match, given: dict[str, Any]) -> Any:
    """Call `f` with the variables of the match that it names."""
    env = {**m.values, "match": m, **given}
    return f(**{n: env.get(n) for n in inspect.signature(f).parameters})
