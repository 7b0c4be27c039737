"""Find matches of a pattern by backtracking, and explain the nearest miss."""
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphq.ir import GRAPH_ORDER, Graph, Node, Value
from graphq.rewrite.pattern import AnyOf, OpPattern, PatternLike, Repeat, Var

Reason: TypeAlias = Callable[[], str]
"""A function that returns the text of a reason. Most reasons are never reported, so texts are made on demand."""


class Nodes(tuple[Node, ...]):
    """The nodes of a match, a tuple. `nodes("add")` returns the nodes of operation add."""

    __slots__ = ()

    def __call__(self, op: str) -> tuple[Node, ...]:
        """The nodes of operation `op`, in the match's order."""
        return tuple(n for n in self if n.op.name == op)


class Match(NamedTuple):
    """A match of a pattern.

    `root` is the last node of the match. `nodes` has all nodes: the root first, and each node after one of its users.
    `nodes("add")` has the nodes of one operation, and `node("add")` is the first of them. `values` maps the pattern's
    variables to values, and `bindings` maps inner patterns to values.
    """

    root: Node
    nodes: Nodes = Nodes()
    values: Mapping[str, Value | None] = MappingProxyType({})
    bindings: Mapping[OpPattern, Value] = MappingProxyType({})

    def node(self, op: str) -> Node:
        """The first matched node of operation `op`."""
        return next(n for n in self.nodes if n.op.name == op)

    def plus(self, *nodes: Node) -> "Match":
        """A match with these nodes added."""
        return Match(self.root, Nodes(dict.fromkeys((*self.nodes, *nodes))), self.values, self.bindings)


@dataclass
class Matcher:
    """A matcher for one pattern. `missed` and `reason` are the nodes and the reason of the last call's nearest miss.

    A miss is a refused match of the whole pattern. With `parts`, a match of only a part of the pattern is also a miss.
    """

    pattern: PatternLike
    several_results: bool = False
    parts: bool = True

    def matches(self, graph: Graph, root: Node) -> Iterator[Match]:
        """Yield all matches of the pattern whose last node is `root`."""
        self.missed: tuple[Node, ...] = ()
        self.reason: Reason = str
        self.weak, self.graph = False, graph
        if len(root.outputs) != 1:
            return
        for m in self._all([(self.pattern, root.output)], Match(root)):
            if root not in m.nodes:
                continue
            reason = self._escapes(m)
            if reason is None:
                yield m
            else:
                self._fail(m, reason, whole=True)

    def _fail(self, m: Match, reason: Reason, *, weak: bool = False, whole: bool = False) -> None:
        """Record why a match failed, if the match has more nodes than the recorded miss.

        If both have equally many nodes, a reason that is not `weak` replaces a weak reason.
        """
        if not (whole or self.parts):
            return
        if len(m.nodes) > len(self.missed) or len(m.nodes) == len(self.missed) and self.weak and not weak:
            self.missed, self.reason, self.weak = m.nodes, reason, weak

    def _escapes(self, m: Match) -> Reason | None:
        """Return a reason if a value inside the match is also used outside of the match, else None."""
        if len(m.nodes) == 1:
            return None
        g, members = self.graph, set(m.nodes)
        for node in m.nodes:
            if node is m.root or node.op.name == "constant":
                continue
            outputs = node.outputs[:1] if self.several_results else node.outputs
            for user in (u.node for out in outputs for u in out.uses):
                if user not in members:
                    return lambda: f"{g.describe(node)} is also " + (
                        "an output of the graph" if user is None else f"used by {g.describe(user)}")
        return None

    def _all(self, pairs: list[tuple[PatternLike | None, Value | None]], m: Match) -> Iterator[Match]:
        """Yield the matches that extend `m` by a match of each pattern at the value next to it."""
        if not pairs:
            yield m
            return
        (p, value), *rest = pairs
        if p is None or value is None:
            if p is None and value is None:
                yield from self._all(rest, m)
        elif isinstance(p, Var):
            if m.values.get(p.name, value) is value:
                yield from self._all(rest, Match(m.root, m.nodes, {**m.values, p.name: value}, m.bindings))
            else:
                self._fail(m, lambda: f"'{p.name}' would be two different values")
        elif isinstance(p, AnyOf):
            for choice in p.alternatives:
                yield from self._all([(choice, value), *rest], m)
        else:
            for first in self._repeat(p, value, m) if isinstance(p, Repeat) else self._node(p, value, m):
                yield from self._all(rest, first)

    def _node(self, p: OpPattern, value: Value, m: Match) -> Iterator[Match]:
        node = value.node
        if node is None or node.op.name not in p.ops:
            if m.nodes:  # at the root, a different operation is no near miss
                self._fail(m, lambda: self._expected(p, value))
            return
        nodes = m.nodes if node in m.nodes else Nodes((*m.nodes, node))
        here = Match(m.root, nodes, m.values, {**m.bindings, p: value})
        reason = self._differs(p, value, node, m)
        if reason is not None:
            self._fail(here, reason)
            return
        if p.operands is None:
            yield here
            return
        if len(p.operands) != len(node.inputs):
            # The reason is weak, because another alternative of the pattern may have this number of operands.
            g, got, wanted = self.graph, len(node.inputs), len(p.operands)
            self._fail(here, lambda: f"{g.describe(node)} has {got} operands, the pattern {wanted}", weak=True)
            return
        orders = [node.inputs]
        if node.op.commutative and node.inputs[0] is not node.inputs[1]:
            orders.append((node.inputs[1], node.inputs[0], *node.inputs[2:]))
        for order in orders:
            yield from self._all(list(zip(p.operands, order, strict=True)), here)

    def _expected(self, p: OpPattern, value: Value) -> str:
        found = f"input {value.name}" if value.node is None else f"{value.node.op.name} ({self.graph.label(value)})"
        return f"expected {' or '.join(sorted(p.ops))}, found {found}: {value.type}"

    def _differs(self, p: OpPattern, value: Value, node: Node, m: Match) -> Reason | None:
        """Why a node of the right operation does not match, apart from its operands; None if it matches."""
        g = self.graph
        if m.bindings.get(p, value) is not value:
            return lambda: f"{g.label(value)} and {g.label(m.bindings[p])} would have to be one value"
        if value.index != 0:
            return lambda: f"{g.label(value)} is output {value.index} of {g.describe(node)}"
        for name, wanted in p.ops[node.op.name].items():
            got = node.attrs[name]
            if not _equal(got, wanted):
                return lambda: f"{g.describe(node)}: attribute '{name}' is {got!r}, not {wanted!r}"
        return None

    # -- repeat -----------------------------------------------------------------------------------------------

    def _repeat(self, p: Repeat, value: Value, m: Match) -> Iterator[Match]:
        if p.inner is None:
            # `_region` lists each node after all its users, so every prefix of the list is a region.
            region, _ = self._region(p, value, m, p.max)
            yield m.plus(*region)
            return
        yield from self._all([(p.inner, value)], m)
        region, closed = self._region(p, value, m, 2 * p.max)
        found = False
        for inner, path in self._paths(p.inner, region, value, m):
            found = True
            if len(path) <= p.max:
                yield inner.plus(*path)
            else:
                self._fail(inner.plus(*path), lambda: f"more than {p.max} operations in a row")
        if not found and not closed:
            self._explain_open(p, value, m)

    def _explain_open(self, p: Repeat, value: Value, m: Match) -> None:
        """Record the reason if a repetition failed only because inner values have other users."""
        assert p.inner is not None
        region, _ = self._region(p, value, m, p.max, free=True)
        for inner, path in self._paths(p.inner, region, value, m):
            whole = inner.plus(*path)
            reason = self._escapes(whole)
            if reason is not None:
                self._fail(whole, reason)

    def _paths(self, inner: PatternLike, region: list[Node], value: Value, m: Match
               ) -> Iterator[tuple[Match, list[Node]]]:
        """Yield each match of `inner` at an operand of the region, and the region's nodes on the way to `value`."""
        inside = set(region)
        for start in dict.fromkeys(v for n in region for v in n.operands if v.node not in inside):
            for found in self._all([(inner, start)], m):
                path: dict[Node, None] = {}
                for node in sorted(region, key=GRAPH_ORDER):
                    if any(v is start or v.node in path for v in node.operands):
                        path[node] = None
                if value.node in path:
                    yield found, list(path)

    def _region(self, p: Repeat, value: Value, m: Match, reach: int, *, free: bool = False) -> tuple[list[Node], bool]:
        """Find the region of `value`: the nodes of `p.ops` that lead to `value` and whose results only the region uses.

        The last node comes first. The second result is false if a node was left out because a node outside of the
        region uses it. If `free`, such uses are allowed. Nodes that are `reach` or more steps away are left out. If
        `p.inner` is None, the region has at most `reach` nodes, because long chains must take linear time.
        """
        region: dict[Node, int] = {}
        work = deque([(value.node, 0)] if self._joins(p, value.node, m) else [])
        skipped: dict[Value, None] = {}
        while work and (p.inner is not None or len(region) < reach):
            node, steps = work.popleft()
            if node in region or node is None:
                continue
            region[node] = steps
            if steps + 1 >= reach:
                continue
            for v in node.operands:
                if not free and any(u.node not in region for u in v.uses):
                    skipped[v] = None
                elif self._joins(p, v.node, m):
                    work.append((v.node, steps + 1))
        closed = all(v.node is None or v.node in region or v.node.op.name not in p.ops for v in skipped)
        return list(region), closed

    def _joins(self, p: Repeat, node: Node | None, m: Match) -> bool:
        if node is None or node.op.name not in p.ops or len(node.outputs) != 1:
            return False
        reason = p.where(node) if p.where is not None else None
        if reason:
            self._fail(m.plus(node), lambda: f"{self.graph.describe(node)}: {reason}")
        return reason is None


def roots(p: PatternLike | None, graph: Graph, *, near: bool) -> Collection[Node] | None:
    """The nodes that can be the root of a match, by their operations. If `near`, also the roots of near misses.

    None stands for all nodes, and for graph inputs: the pattern matches any value.
    """
    if p is None or isinstance(p, Var):
        return None
    if isinstance(p, AnyOf):
        choices = [roots(x, graph, near=near) for x in p.alternatives]
        return None if None in choices else {n for nodes in choices if nodes for n in nodes}
    found: Collection[Node] = graph.nodes_of(p.ops)
    if isinstance(p, Repeat):
        if p.inner is None or not (first := roots(p.inner, graph, near=near)):
            return found if p.inner is None else first
        found = front = set(first)
        while front:  # the nodes of `ops` that use results of `first`, directly or through nodes of `ops`
            front = _users(p.ops, front) - found
            found = found | front
        return found
    if near or not found:
        return found
    if any(p.ops.values()):
        found = [n for n in found if all(_equal(n.attrs[k], x) for k, x in p.ops[n.op.name].items())]
    # Each operand pattern must match an operand of the root. If only few nodes match it, only their users can be roots.
    for x in p.operands or () if found else ():
        makers = roots(x, graph, near=False)
        users = found if makers is None else _users(p.ops, makers)
        found = users if len(users) < len(found) else found
    return found


def _users(ops: Container[str], nodes: Iterable[Node]) -> set[Node]:
    return {u.node for n in nodes for out in n.outputs for u in out.uses
            if u.node is not None and u.node.op.name in ops}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)
