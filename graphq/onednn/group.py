"""oneDNN Graph's partitioning: rewrites that group an anchor with the operations before and after it.

Unlike a fusion of PIPELINE, a group need not be one kernel: compiling a group runs PIPELINE on its body. The rewrites
of GROUPS run in their order, each from the last operation of the graph to the first, so that a larger pattern takes its
operations before a smaller one does. A quantize ends the chain after an anchor; the dequantize after it begins the next
group.
"""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.ir.op import OPS
from graphq.onednn.grouping import CASTS, MAX_CHAIN, MOVES, POST, Group, enclose
from graphq.rewrite.rule import ANY, Match, Pass

GROUP_ANCHORS = (
    "matmul", "convolution", "conv_transpose", "avg_pool", "max_pool", "batch_norm_inference", "layer_norm",
    "group_norm", "rms_norm", "softmax", "log_softmax", "interpolate", "concat", "reduce_l1", "reduce_l2", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum")
"""Operations that can be the main one of a group, its anchor, as in oneDNN's partitions."""

ELTWISE = tuple(op for op in POST if op not in ("dequantize", "dynamic_dequantize"))
AFTER = (*ELTWISE, *MOVES)
BETWEEN = (*POST, *MOVES)
UNARY = tuple(op for op in POST if len(OPS[op].operands) == 1 or op.startswith("dynamic"))
NORMED = ("matmul", "convolution", "conv_transpose")
"""Anchors that a batch normalisation may follow in a group, where it scales and shifts the anchor's channels."""


class GroupAttention(Group):
    """f?(matmul(f?(softmax(f?(matmul(q, k)))), v)) -> partition, where f stands for casts, masks and moves"""

    anchor = "attention"

    def pattern(self, g, q, k, v):
        scores = g.repeat(BETWEEN, g.matmul(q, k, attrs=ANY), max=MAX_CHAIN)
        weights = g.repeat(BETWEEN, g.softmax(scores, attrs=ANY), max=MAX_CHAIN)
        out = g.any_of(g.matmul(weights, v, attrs=ANY), g.matmul(v, weights, attrs=ANY))
        return g.repeat(AFTER, out, max=MAX_CHAIN)


class GroupGatedMlp(Group):
    """f?(matmul(f?(matmul(x, gate)) * f?(matmul(x, up)), down)) -> partition

    x may be cast for each product; the gated product may be cast, quantized and multiplied by a smoothing scale.
    """

    anchor = "gated_mlp"

    def pattern(self, g, smooth, down, bias):
        gate, up = (g.repeat(POST, g.matmul(..., attrs=ANY), max=MAX_CHAIN) for _ in range(2))
        both = g.repeat(UNARY, g.multiply(gate, up, attrs=ANY), max=MAX_CHAIN)
        hidden = g.any_of(both, g.repeat(UNARY, g.multiply(both, smooth, attrs=ANY), max=MAX_CHAIN))
        out = g.any_of(g.matmul(hidden, down, attrs=ANY), g.matmul(hidden, down, bias, attrs=ANY))
        return g.repeat(AFTER, out, max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        """Gate and up must multiply the same source."""
        down, *others = sorted((n for n in match.nodes if n.op.name == "matmul"), key=lambda n: -n.position)
        sources = {uncast(n.inputs[0]) for n in others}
        return None if len(sources) == 1 else f"gate and up multiply {len(sources)} different sources"


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
        """A reason to refuse a second convolution that is not depthwise; else None."""
        second = max((n for n in match.nodes if n.op.name == "convolution"), key=lambda n: n.position)
        groups, shape = second.attrs["groups"], second.output.shape
        channels = None if shape is None else shape[1 if second.attrs["data_format"] == "NCX" else -1]
        return None if groups > 1 and groups == channels else f"{groups} groups for {channels} channels: not depthwise"


class GroupAnchor(Group):
    """f?(anchor(...)) -> partition, where f is a chain of elementwise operations, casts and moves"""

    def __init__(self, op: str) -> None:
        self.op = op

    @property
    def anchor(self) -> str:  # type: ignore[override]
        return self.op

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.op})"

    def pattern(self, g):
        after = (*AFTER, "batch_norm_inference") if self.op in NORMED else AFTER
        return g.repeat(after, getattr(g, self.op)(..., attrs=ANY), max=MAX_CHAIN)

    def refuses(self, match: Match) -> str | None:
        """A reason to refuse the match if an operation after the anchor changes the number of elements."""
        last = match.node(self.op)
        for node in match.nodes:
            if node is not last and _size(node) != _size(last):
                return f"{node.op.name} gives {node.output.type}, the {self.op} {last.outputs[0].type}"
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
        """A reason to refuse the match if it moves nothing, has several adds, or an add of outside values only."""
        if not any(n.op.name in MOVES for n in match.nodes):
            return "nothing moves"
        sums = [n for n in match.nodes if n.op.name == "add"]
        if len(sums) > 1 or sums and not any(v.node in match.nodes for v in sums[0].operands):
            return "a sum that is not the only one of what has moved"
        return None


class GroupEltwise(Group):
    """A chain of elementwise operations -> partition"""

    anchor = "eltwise"

    def pattern(self, g):
        return g.any_of(g.repeat(ELTWISE, max=MAX_CHAIN), g.any_of("dequantize", "dynamic_dequantize")(..., attrs=ANY))


def group_statistics(graph: Graph) -> int:
    """Group each anchor that also returns statistics, together with the casts before it and nothing after it."""
    found = [n for n in graph.nodes if len(n.outputs) > 1 and n.op.name in GROUP_ANCHORS]
    for node in reversed(found):
        rule, match = GroupAnchor(node.op.name), Match(node, (node,))
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
    """Group all that GROUPS match; returns the number of partitions."""
    return sum(rewrite(graph) for rewrite in GROUPS)
