"""Group, the base of the rewrites of group.py: which nodes join a partition besides the matched ones."""
from __future__ import annotations

from typing import Any

from graphq.ir import Graph, Node, Value
from graphq.ir.node import GRAPH_ORDER
from graphq.ir.op import OPS
from graphq.rewrite.partition import Fusion, carve, is_convex
from graphq.rewrite.rule import Match

MAX_CHAIN = 32
"""The most operations in a chain: oneDNN has up to 20 unary and binary ones, with casts and quantizations between."""

MOVES = ("static_transpose", "static_reshape", "reorder")
CASTS = ("dequantize", "dynamic_dequantize", "type_cast")
POST = (*(op.name for op in OPS.values() if op.elementwise), "gen_index", "dropout", "dynamic_quantize",
        "dynamic_dequantize")
PROLOGUE = frozenset({*POST, *MOVES})


class Group(Fusion):
    """A rewrite that replaces a match by a partition, together with operations before it that nothing else uses.

    These operations are casts of operands, and operations of PROLOGUE that compute an operand from graph inputs.
    Results besides the root's, such as softmax's statistics, may be used outside. `refuses(match)` may return a reason
    against a match.
    """

    several_results = True

    def refuses(self, match: Match) -> str | None:
        """A reason to refuse the match, besides those that hold for every group."""
        return None

    def check(self, g: Graph, match: Match) -> str | None:
        """The reason of `refuses`; else a reason if a value that leaves the group comes back into it."""
        reason = self.refuses(match)
        if reason is not None:
            return reason
        # Where each node has one result, only the root's is used outside, so no path leaves the group and comes back.
        if all(len(n.outputs) == 1 for n in match.nodes) or is_convex(g, self.members(match)):
            return None
        return "a further result comes back to the group from outside"

    def members(self, match: Match) -> list[Node]:
        """The matched nodes, and the nodes that they absorb, in graph order."""
        return sorted(absorbing(match.nodes), key=GRAPH_ORDER)

    def replace(self, g: Graph, match: Match, notes: dict[str, Any]) -> Value:
        """The partition's value in place of the root; uses of its further results are replaced here."""
        new = enclose(g, self.members(match), self.anchor, match.root)
        return new[match.root.output]


def enclose(g: Graph, members: list[Node], anchor: str, last: Node) -> dict[Value, Value]:
    """Put a partition of the convex set `members` in the place of `last`; returns a map from old results to new ones.

    The uses of all results are replaced, except for the value of `last` if it has a single output.
    """
    body, operands, results = carve(g, members)
    with g.before(last):
        outs = g.add_node(OPS["partition"], operands, {"body": body, "anchor": anchor})
        new = dict(zip(results, outs, strict=True))
        _move_behind(g, new, set(members), last)
    for old in results:
        if old.node is not last or len(last.outputs) > 1:
            g.replace_uses(old, new[old])
    return new


def _move_behind(g: Graph, new: dict[Value, Value], members: set[Node], last: Node) -> None:
    """Add again, behind the partition, the nodes before `last` that use its results, and remove the old ones."""
    moved = dict(new)
    late = []
    for node in [n for n in g.nodes if n.position < last.position and n not in members]:
        if any(v in moved for v in node.operands):
            operands = [v if v is None else moved.get(v, v) for v in node.inputs]
            outs = g.add_again(node, operands)
            g.nodes[g.nodes.index(last) - 1].meta = node.meta
            moved.update(zip(node.outputs, outs, strict=True))
            late.append(node)
    for node in late:
        for old in node.outputs:
            g.replace_uses(old, moved[old], [u for u in old.uses if u.node not in late])
    g.prune(reversed(late))


def absorbing(matched: tuple[Node, ...]) -> set[Node]:
    """The matched nodes, and nodes before them that nothing else uses: casts, and PROLOGUE operations on inputs."""
    members = set(matched)
    above = _above(matched)
    # The greatest set whose nodes all satisfy the rule: start from all, and drop those that break it until none does.
    whole = set(above)
    while bad := {n for n in whole if not (_used_inside(n, members | whole) and _complete(n, members | whole))}:
        whole -= bad
    members |= whole
    casts = {n for n in above if n.op.name in CASTS} - members
    while bad := {n for n in casts if not _used_inside(n, members | casts)}:
        casts -= bad
    return members | casts


def _above(matched: tuple[Node, ...]) -> set[Node]:
    """The PROLOGUE nodes that lead to the matched nodes through at most MAX_CHAIN PROLOGUE nodes."""
    seen: set[Node] = set()
    edge = set(matched)
    for _ in range(MAX_CHAIN):
        edge = {v.node for n in edge for v in n.operands if v.node is not None and v.node.op.name in PROLOGUE}
        edge -= seen | set(matched)
        seen |= edge
    return seen


def _complete(node: Node, inside: set[Node]) -> bool:
    return all(v.node is None or v.node in inside or v.data is not None for v in node.operands)


def _used_inside(node: Node, inside: set[Node]) -> bool:
    return all(u.node in inside for out in node.outputs for u in out.uses)
