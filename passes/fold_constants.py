"""Constant folding: nodes whose operands are all constants become constants."""
from __future__ import annotations

from collections.abc import Callable

from graphq.errors import CompileError
from graphq.ir import Graph, Node
from graphq.ir.constants import evaluated, runs_long
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import feeds_anchor, taken

MAX_ELEMENTS = 1 << 26
"""The most elements of a folded result. Operations with larger results stay."""


def fold_constants(graph: Graph) -> int:
    """op(constants) -> constant, except for a dequantize of at most 8 bits whose user may fuse with it

    So a quantize -> dequantize pair of a constant is never folded as a whole: only the quantize is. A dequantize of
    wider integers, such as a bias, is folded, since no anchor (the operation that a partition is built around) takes
    it.
    """
    return _fold(graph, lambda node: node.op.name != "constant" and not _fuses(node))


def _fuses(node: Node) -> bool:
    """Whether an anchor may take this dequantize into its partition.

    A dynamic_dequantize, whose scales are tensors, is taken only for the weights of some products.
    """
    if node.op.name == "dequantize":
        return taken(node)
    return node.op.name == "dynamic_dequantize" and taken(node) and any(
        user.op.name in ("matmul", "conv_transpose") for user in node.output.users)


def fold_dequantized_operands(graph: Graph) -> int:
    """dequantize(constant) -> constant, if no anchor takes it; runs before the fusions, for operands of epilogues"""
    return _fold(graph, lambda node: node.op.name in DEQUANTIZES and not feeds_anchor(node))


def fold_dequantized_constants(graph: Graph) -> int:
    """dequantize(constant) -> constant, for those that did not fuse; runs after the fusions"""
    return _fold(graph, lambda node: node.op.name != "constant")


def _fold(graph: Graph, wanted: Callable[[Node], bool]) -> int:
    count = 0
    for node in list(graph.nodes):
        if not (wanted(node) and _foldable(node)):
            continue
        try:
            results = evaluated(node.op, node.inputs, node.attrs, [v.type for v in node.outputs])
        except CompileError as e:
            raise CompileError(f"{graph.describe(node)}: {e}") from None
        if results is not None:
            with graph.before(node):
                for old, array in zip(node.outputs, results, strict=True):
                    graph.replace_uses(old, graph.add_constant(array))
            count += 1
    if count:
        graph.prune()
    return count


def _foldable(node: Node) -> bool:
    constant = any(True for _ in node.operands) and all(v.data is not None for v in node.operands)
    return constant and not runs_long(node.op, node.attrs) and all(
        v.type.known and v.type.size <= MAX_ELEMENTS for v in node.outputs)
