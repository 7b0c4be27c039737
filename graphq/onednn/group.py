"""oneDNN Graph's partitioning: rewrites that group a main operation (the anchor) with the operations around it.

A group becomes one partition, but not always one kernel: compiling the partition runs PIPELINE on its body. The
rewrites of GROUPS run in order, larger patterns first, each from the graph's last operation to its first. A quantize
ends the chain after an anchor, and the dequantize that follows begins the next group.
"""
from typing import Any

from graphq.ir import GRAPH_ORDER, OPS, Graph, Node, Value, makers_of
from graphq.rewrite.partition import Fusion, carve, is_convex
from graphq.rewrite.rule import ANY, Match, Nodes, Pass

MAX_CHAIN = 32
"""The longest chain; oneDNN allows 20 unary and binary operations, plus casts and quantizations."""

MOVES = ("static_transpose", "static_reshape", "reorder")
CASTS = ("dequantize", "dynamic_dequantize", "type_cast")
POST = (*(op.name for op in OPS.values() if op.elementwise), "gen_index", "dropout", "dynamic_quantize",
        "dynamic_dequantize")
PROLOGUE = frozenset({*POST, *MOVES})


class Group(Fusion):
    """A rewrite that makes a partition from a match and from operations before it that nothing else uses.

    These operations are casts of operands, and operations of PROLOGUE that compute an operand from graph inputs. Nodes
    outside may use further results of the match, such as the statistics of a softmax.
    """

    several_results = True

    def refuses(self, match: Match) -> str | None:
        """A reason to refuse the match, in addition to the reasons of `check`; None to accept the match."""
        return None

    def check(self, g: Graph, match: Match) -> str | None:
        """The reason of `refuses`, or a reason if a path between two nodes of the group leaves the group."""
        reason = self.refuses(match)
        if reason is not None:
            return reason
        # If each node has one result, only the root's result is used outside, so no path leaves the group and comes
        # back.
        if all(len(n.outputs) == 1 for n in match.nodes) or is_convex(self.members(match)):
            return None
        return "a further result leaves the group and comes back into it"

    def members(self, match: Match) -> list[Node]:
        """The nodes of the match and the nodes that they absorb, in graph order."""
        return sorted(absorbing(match.nodes), key=GRAPH_ORDER)

    def replace(self, g: Graph, match: Match, notes: dict[str, Any]) -> Value:
        """Add the partition, and replace uses of its other results; returns the value that replaces the root."""
        new = enclose(g, self.members(match), self.anchor, match.root)
        return new[match.root.output]


def enclose(g: Graph, members: list[Node], anchor: str, last: Node) -> dict[Value, Value]:
    """Put a partition with the nodes `members` before `last`; returns a map from old results to new ones.

    Replaces the uses of all results. If `last` has a single result, its uses are left to the caller. No path between
    two members may leave the set.
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
    """Move nodes that use the partition's results and stand before `last` behind the partition."""
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
    """The matched nodes, plus casts and PROLOGUE operations before them that nothing else uses."""
    members, above = set(matched), set[Node]()
    edge = members
    for _ in range(MAX_CHAIN):  # the PROLOGUE nodes before the matched nodes, in chains of at most MAX_CHAIN nodes
        edge = {m for n in edge for m in makers_of(n) if m.op.name in PROLOGUE} - above - members
        above |= edge
    # To find the largest set that satisfies the rule, start with all nodes, and drop nodes that break the rule.
    whole = set(above)
    while bad := {n for n in whole if not _used_inside(n, members | whole) or any(
            v.node is not None and v.node not in members | whole and v.data is None for v in n.operands)}:
        whole -= bad
    members |= whole
    casts = {n for n in above if n.op.name in CASTS} - members
    while bad := {n for n in casts if not _used_inside(n, members | casts)}:
        casts -= bad
    return members | casts


def _used_inside(node: Node, inside: set[Node]) -> bool:
    return all(u.node in inside for out in node.outputs for u in out.uses)


GROUP_ANCHORS = (
    "matmul", "convolution", "conv_transpose", "avg_pool", "max_pool", "batch_norm_inference", "layer_norm",
    "group_norm", "rms_norm", "softmax", "log_softmax", "interpolate", "concat", "reduce_l1", "reduce_l2", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum")
"""Operations that can be the anchor of a group, as in oneDNN's partitions."""

ELTWISE = tuple(op for op in POST if op not in ("dequantize", "dynamic_dequantize"))
AFTER = (*ELTWISE, *MOVES)
BETWEEN = (*POST, *MOVES)
UNARY = tuple(op for op in POST if len(OPS[op].operands) == 1 or op.startswith("dynamic"))
NORMED = ("matmul", "convolution", "conv_transpose")
"""Anchors that a batch normalization of their channels may follow in a group."""


class GroupAttention(Group):
    """f?(matmul(f?(softmax(f?(matmul(q, k)))), v)) -> partition; f? is an optional chain of casts, masks and moves"""

    anchor = "attention"

    def pattern(self, g, q, k, v):
        scores = g.repeat(BETWEEN, g.matmul(q, k, attrs=ANY), max=MAX_CHAIN)
        weights = g.repeat(BETWEEN, g.softmax(scores, attrs=ANY), max=MAX_CHAIN)
        out = g.any_of(g.matmul(weights, v, attrs=ANY), g.matmul(v, weights, attrs=ANY))
        return g.repeat(AFTER, out, max=MAX_CHAIN)


class GroupGatedMlp(Group):
    """f?(matmul(f?(matmul(x, gate)) * f?(matmul(x, up)), down)) -> partition

    f? is an optional chain of elementwise operations. x may be cast for each matmul; the gated result may be cast,
    quantized and multiplied by a smoothing scale.
    """

    anchor = "gated_mlp"

    def pattern(self, g, smooth, down, bias):
        gate, up = (g.repeat(POST, g.matmul(..., attrs=ANY), max=MAX_CHAIN) for _ in range(2))
        both = g.repeat(UNARY, g.multiply(gate, up, attrs=ANY), max=MAX_CHAIN)
        hidden = g.any_of(both, g.repeat(UNARY, g.multiply(both, smooth, attrs=ANY), max=MAX_CHAIN))
        out = g.any_of(g.matmul(hidden, down, attrs=ANY), g.matmul(hidden, down, bias, attrs=ANY))
        return g.repeat(AFTER, out, max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        down, *others = sorted((n for n in match.nodes if n.op.name == "matmul"), key=lambda n: -n.position)
        sources = {uncast(n.inputs[0]) for n in others}
        return None if len(sources) == 1 else f"gate and up multiply {len(sources)} different inputs"


def uncast(value: Value | None) -> Value | None:
    """The value before the casts that lead to `value`."""
    while value is not None and value.node is not None and value.node.op.name in CASTS:
        value = value.node.inputs[0]
    return value


class GroupConvolutionDepthwise(Group):
    """f?(depthwise convolution(f?(convolution(x)))) -> partition"""

    anchor = "convolution"

    def pattern(self, g, w, b):
        y = g.repeat(ELTWISE, g.convolution(..., attrs=ANY), max=MAX_CHAIN)
        second = g.any_of(g.convolution(y, w, attrs=ANY), g.convolution(y, w, b, attrs=ANY))
        return g.repeat(AFTER, second, max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        second = max((n for n in match.nodes if n.op.name == "convolution"), key=lambda n: n.position)
        groups, shape = second.attrs["groups"], second.output.shape
        channels = None if shape is None else shape[1 if second.attrs["data_format"] == "NCX" else -1]
        return None if groups > 1 and groups == channels else f"{groups} groups for {channels} channels: not depthwise"


class GroupAnchor(Group):
    """f?(anchor(...)) -> partition; f? is an optional chain of elementwise operations, casts and moves"""

    def __init__(self, op: str) -> None:
        self.anchor = op

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.anchor})"

    def pattern(self, g):
        after = (*AFTER, "batch_norm_inference") if self.anchor in NORMED else AFTER
        return g.repeat(after, getattr(g, self.anchor)(..., attrs=ANY), max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        last = match.node(self.anchor)
        for node in match.nodes:
            if node is not last and _size(node) != _size(last):
                return f"{node.op.name} gives {node.output.type}, the {self.anchor} {last.outputs[0].type}"
        return None


def _size(node: Node) -> int | None:
    t = node.outputs[0].type
    return t.size if t.known else None


class GroupMove(Group):
    """A chain of transposes, reshapes and reorders, with casts and a sum after it -> partition"""

    anchor = "reorder"

    def pattern(self, g):
        return g.repeat((*MOVES, "type_cast", "add", "quantize", "dynamic_quantize"), max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        if not any(n.op.name in MOVES for n in match.nodes):
            return "nothing moves"
        sums = [n for n in match.nodes if n.op.name == "add"]
        if len(sums) > 1 or sums and not any(v.node in match.nodes for v in sums[0].operands):
            return "more than one sum, or a sum of only outside values"
        return None


class GroupEltwise(Group):
    """A chain of elementwise operations -> partition"""

    anchor = "eltwise"

    def pattern(self, g):
        return g.any_of(g.repeat(ELTWISE, max=MAX_CHAIN), g.any_of("dequantize", "dynamic_dequantize")(..., attrs=ANY))


def group_statistics(graph: Graph) -> int:
    """If an anchor also returns statistics, group it only with the casts before it."""
    found = [n for n in graph.nodes if len(n.outputs) > 1 and n.op.name in GROUP_ANCHORS]
    for node in reversed(found):
        rule, match = GroupAnchor(node.op.name), Match(node, Nodes((node,)))
        enclose(graph, rule.members(match), rule.anchor, node)
        graph.prune([node])
    return len(found)


GROUPS: tuple[Pass, ...] = (
    GroupAttention(),
    GroupGatedMlp(),
    GroupConvolutionDepthwise(),
    *(GroupAnchor(op) for op in GROUP_ANCHORS),
    group_statistics,
    GroupMove(),
    GroupEltwise(),
)


def group(graph: Graph) -> int:
    """Apply GROUPS to the graph; returns the number of partitions."""
    return sum(rewrite(graph) for rewrite in GROUPS)
