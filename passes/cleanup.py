"""Remove nodes that repeat a computation, nodes that nothing uses, and nodes whose operands are constants."""
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from graphq.base.arrays import Content
from graphq.base.sizes import Later, Size
from graphq.errors import CompileError
from graphq.ir import GRAPH_ORDER, Graph, Node
from graphq.ir.interpret import evaluated, runs_long
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import feeds_anchor, is_large_mask, readers, taken


def eliminate_common_subexpressions(graph: Graph, nodes: Iterable[Node] | None = None) -> int:
    """Two nodes with the same operation, operands and attributes -> one node"""
    alone: dict[Any, Node] = {}
    seen: dict[Any, Node] = {}
    count = 0
    for node in list(graph.nodes) if nodes is None else nodes:
        numbers = [id(v) for v in node.inputs]
        if node.op.commutative:
            numbers[:2] = sorted(numbers[:2])
        is_constant = node.op.name == "constant"
        operands = _hashable(node.attrs["value"]) if is_constant else (node.op.name, *numbers)
        other = alone.setdefault(operands, node)
        if other is node:
            continue
        # Look up operands first: attributes can be long lists of scales, and are hashed only if operands are equal.
        seen.setdefault((operands, _attributes(other)), other)
        first = seen.setdefault((operands, _attributes(node)), node)
        if first is node:
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            graph.replace_uses(old, new)
        count += 1
    if count:
        graph.prune()
    return count


def share_constants(graph: Graph) -> int:
    """Constants with equal arrays -> one constant"""
    return eliminate_common_subexpressions(graph, sorted(graph.nodes_of(["constant"]), key=GRAPH_ORDER))


def eliminate_dead_code(graph: Graph) -> int:
    """Remove nodes whose results nothing uses."""
    return graph.prune()


def _attributes(node: Node) -> tuple[Any, ...]:
    return tuple((k, _hashable(v)) for k, v in node.attrs.items())


def _hashable(value: Any) -> Any:
    """A key for the value of an attribute. -0.0 and 0.0 have different keys; so have 1 and True."""
    if value is None or type(value) in (bool, int, str):
        return type(value), value
    if isinstance(value, np.ndarray):
        return Content(value)
    if isinstance(value, Size | Later):  # keyed by slot, because comparing sizes would add a guard
        return type(value), id(value.trace), value.slot
    if isinstance(value, Graph):
        return id(value)
    if isinstance(value, tuple):
        kinds = set(map(type, value))  # long lists of scales take the fast path below
        if kinds == {float}:
            return "float", array("d", value).tobytes()
        return ("int", value) if kinds == {int} else tuple(_hashable(v) for v in value)
    return type(value).__name__, repr(value)


MAX_ELEMENTS = 1 << 26
"""The most elements of a folded result. Operations with larger results are not folded."""


def fold_constants(graph: Graph) -> int:
    """op(constants) -> constant, except for a dequantize of at most 8 bits whose user may fuse with it

    The user of a dynamic_dequantize or dequantize_linear must be a matmul or conv_transpose. A dequantize of wider
    integers, such as a bias, is folded, because no partition includes it. Large masks are not folded, because kernels
    compute a mask's elements as they need them.
    """
    return _fold(graph, lambda node: not (node.op.name in (*DEQUANTIZES, "dequantize_linear") and taken(node) and (
        node.op.name == "dequantize" or any(user.op.name in ("matmul", "conv_transpose") for user in readers(node)))))


def fold_dequantized_operands(graph: Graph) -> int:
    """dequantize(constant) -> constant before the fusions, unless it is an operand of a partition's anchor

    The anchor is the operation that the partition is built around, such as a matmul.
    """
    return _fold(graph, lambda node: node.op.name in DEQUANTIZES and not feeds_anchor(node))


def fold_dequantized_constants(graph: Graph) -> int:
    """dequantize(constant) -> constant after the fusions, if the dequantize did not fuse"""
    return _fold(graph, lambda node: True)


def _fold(graph: Graph, wanted: Callable[[Node], bool]) -> int:
    count = 0
    for node in list(graph.nodes):
        constant = bool(node.inputs) and all([v is None or v.data is not None for v in node.inputs])
        if not constant or not wanted(node) or is_large_mask(node) or runs_long(node.op, node.attrs) \
                or not all(v.type.known and v.type.size <= MAX_ELEMENTS for v in node.outputs):
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
