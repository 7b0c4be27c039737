"""Compute what depends on constants alone."""
from __future__ import annotations

from collections.abc import Callable

from graphq.constants import evaluated
from graphq.ir import Graph, Node

MAX_ELEMENTS = 1 << 26
"""Results larger than this stay operations. So do loops, which may run for long."""


def fold_constants(graph: Graph) -> int:
    """op(constants) -> constant; but dequantize stays, for int8 and 4-bit weights fuse and f32 ones do not.

    So a Quantize -> Dequantize pair is never folded away, only a constant's quantize is.
    """
    return _fold(graph, lambda node: node.op.name not in ("dequantize", "constant") and not _dequantizes_4bit(node))


def _dequantizes_4bit(node: Node) -> bool:
    return node.op.name == "dynamic_dequantize" and next(node.operands).dtype.name in ("s4", "u4")


def fold_dequantized_constants(graph: Graph) -> int:
    """dequantize(constant) -> constant, for those that nothing fused; runs after the fusions."""
    return _fold(graph, lambda node: node.op.name != "constant")


def _fold(graph: Graph, wanted: Callable[[Node], bool]) -> int:
    count = 0
    for node in list(graph.nodes):
        if not (wanted(node) and _foldable(node)):
            continue
        results = evaluated(node.op, node.inputs, node.attrs, [v.type for v in node.outputs])
        if results is not None:
            with graph.before(node):
                for old, array in zip(node.outputs, results, strict=True):
                    graph.replace_uses(old, graph.constant(array))
            count += 1
    if count:
        graph.prune()
    return count


def _foldable(node: Node) -> bool:
    constant = any(True for _ in node.operands) and all(v.data is not None for v in node.operands)
    return constant and node.op.name != "loop" and all(
        v.type.known and v.type.size <= MAX_ELEMENTS for v in node.outputs)
