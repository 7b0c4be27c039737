"""Group operations into partitions as oneDNN Graph does: an anchor with what comes before and after it.

Unlike the fusions of PIPELINE, a group need not be one kernel: compiling it runs PIPELINE on its body. The rewrites of
GROUPS run in their order, each from the last operation of the graph to the first, so that a larger pattern takes its
operations before a smaller one does.
"""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.op import OPS
from graphq.partition import Fusion, carve
from graphq.rewrite import ANY, Match, Rewrite

MAX_CHAIN = 32
"""Operations after an anchor: oneDNN's 20 unary and binary ones, with casts and quantize or dequantize between."""

MOVES = ("static_transpose", "static_reshape", "reorder")
CASTS = ("dequantize", "dynamic_dequantize", "type_cast")
POST = (*(op.name for op in OPS.values() if op.elementwise), "gen_index", "dropout", "dynamic_quantize")
ANCHORS = ("matmul", "convolution", "conv_transpose", "avg_pool", "max_pool", "batch_norm_inference", "layer_norm",
           "group_norm", "rms_norm", "softmax", "log_softmax", "interpolate", "concat", "reduce_l1", "reduce_l2",
           "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum")
PROLOGUE = frozenset({*POST, *MOVES})


class Group(Fusion):
    """A group takes along what only its operands need: casts, and whatever computes an operand from inputs alone."""

    several_results = True

    def members(self, match: Match) -> list[Node]:
        """The matched nodes, and what they absorb."""
        members = dict.fromkeys(match.nodes)
        for node in match.nodes:
            for v in node.operands:
                members.update(dict.fromkeys(_private(v, members)))
        return list(members)


    def replace(self, g: Graph, match: Match) -> Value:
        """The partition's value for the root; further results are replaced here."""
        body, operands, results = carve(g, self.members(match))
        outs = g.add_node(OPS["partition"], operands, {"body": body, "anchor": self.anchor})
        new = dict(zip(results, outs, strict=True))
        for old in results:
            if old is not match.root.output:
                g.replace_uses(old, new[old])
        return new[match.root.output]


def _private(value: Value, members: dict[Node, None]) -> list[Node]:
    """The nodes above `value` that a group absorbs."""
    cone = _cone(value, set(members))
    if cone is not None:
        return cone
    above, chain = value.node, []
    while above is not None and above.op.name in CASTS and _uses_inside(above, {*members, *chain}):
        chain.append(above)
        above = next(above.operands).node
    return chain


def _cone(value: Value, inside: set[Node]) -> list[Node] | None:
    """All nodes above `value` when they are of PROLOGUE and begin at inputs; None when an anchor or another user is
    among them.
    """
    cone: list[Node] = []
    work = [value]
    while work:
        node = work.pop().node
        if node is None or node in inside or node.op.name == "constant" or node in cone:
            continue
        if node.op.name not in PROLOGUE or len(cone) >= MAX_CHAIN or not _uses_inside(node, {*inside, *cone}):
            return None
        cone.append(node)
        work += node.operands
    return cone


def _uses_inside(node: Node, inside: set[Node]) -> bool:
    return all(u.node in inside for out in node.outputs for u in out.uses)


def same_shape(match: Match, anchor: str) -> str | None:
    """A reason to refuse when an operation after the last node of `anchor` gives another shape than it does."""
    last = max((n for n in match.nodes if n.op.name == anchor), key=lambda n: n.place)
    for node in match.nodes:
        if node.place > last.place and node.op.name in POST and _size(node) != _size(last):
            return f"{node.op.name} gives {node.output.type}, the {anchor} {last.outputs[0].type}"
    return None


def _size(node: Node) -> int | None:
    t = node.outputs[0].type
    return t.size if t.known else None


class GroupAttention(Group):
    """matmul(f?(softmax(f?(matmul(q, k)))), v) -> partition, with casts, masks, and transposes on the way"""

    anchor = "attention"

    def pattern(self, g, q, k, v):
        """See the class."""
        scores = g.repeat(POST, g.matmul(q, k, attrs=ANY), max=MAX_CHAIN)
        weights = g.repeat((*POST, *MOVES), g.softmax(scores, attrs=ANY), max=MAX_CHAIN)
        out = g.any_of(g.matmul(weights, v, attrs=ANY), g.matmul(v, weights, attrs=ANY))
        return g.repeat((*POST, *MOVES), out, max=MAX_CHAIN)


class GroupGatedMlp(Group):
    """matmul(f(matmul(x, gate)) * matmul(x, up), down) -> partition"""

    anchor = "gated_mlp"

    def pattern(self, g, x, gate, up, down):
        """See the class."""
        gated = g.repeat(POST, g.matmul(x, gate, attrs=ANY), max=MAX_CHAIN)
        both = g.multiply(gated, g.matmul(x, up, attrs=ANY), attrs=ANY)
        return g.matmul(g.any_of(both, g.type_cast(both, attrs=ANY)), down, attrs=ANY)


class GroupConvolutionDepthwise(Group):
    """f?(depthwise convolution(f?(convolution(x)))) -> partition"""

    anchor = "convolution"

    def pattern(self, g, x, w, b, w2, b2):
        """See the class."""
        first = g.any_of(g.convolution(x, w, attrs=ANY), g.convolution(x, w, b, attrs=ANY))
        y = g.repeat(POST, first, max=MAX_CHAIN)
        second = g.any_of(g.convolution(y, w2, attrs=ANY), g.convolution(y, w2, b2, attrs=ANY))
        return g.repeat(POST, second, max=MAX_CHAIN)

    def check(self, match: Match) -> str | None:  # type: ignore[override]
        """The second convolution must be depthwise."""
        second = max((n for n in match.nodes if n.op.name == "convolution"), key=lambda n: n.place)
        groups, shape = second.attrs["groups"], second.output.shape
        channels = None if shape is None else shape[1 if second.attrs["data_format"] == "NCX" else -1]
        return None if groups > 1 and groups == channels else f"{groups} groups for {channels} channels: not depthwise"


class GroupAnchor(Group):
    """f?(anchor(...)) -> partition, f a chain of elementwise operations and casts"""

    def __init__(self, op: str) -> None:
        self.op = op

    @property
    def anchor(self) -> str:  # type: ignore[override]
        """The kind of the partition: the operation's name."""
        return self.op

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"{type(self).__name__}({self.op})"

    def pattern(self, g):
        """See the class."""
        return g.repeat(POST, getattr(g, self.op)(..., attrs=ANY), max=MAX_CHAIN)

    def check(self, match: Match) -> str | None:  # type: ignore[override]
        """What follows must keep the anchor's number of elements."""
        return same_shape(match, self.op)


class GroupMove(Group):
    """A chain of transposes, reshapes and reorders -> partition"""

    anchor = "reorder"

    def pattern(self, g):
        """See the class."""
        return g.repeat((*MOVES, *CASTS, "quantize"), max=MAX_CHAIN)

    def check(self, match: Match) -> str | None:  # type: ignore[override]
        """Chains of casts alone are elementwise."""
        return None if any(n.op.name in MOVES for n in match.nodes) else "nothing moves"


class GroupEltwise(Group):
    """A chain of elementwise operations -> partition"""

    anchor = "eltwise"

    def pattern(self, g):
        """See the class."""
        return g.repeat(POST, max=MAX_CHAIN)


GROUPS: tuple[Rewrite, ...] = (
    GroupAttention(),
    GroupGatedMlp(),
    GroupConvolutionDepthwise(),
    *(GroupAnchor(op) for op in ANCHORS),
    GroupEltwise(),
    GroupMove(),
)


def group(graph: Graph) -> int:
    """Group all that GROUPS match; the number of partitions made."""
    return sum(rewrite(graph) for rewrite in GROUPS)
