"""Remove nodes that compute the same value twice, and nodes whose results nothing uses."""
from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from graphq.ir import Graph, Node


def eliminate_common_subexpressions(graph: Graph) -> int:
    """Two nodes of the same operation, operands and attributes -> one"""
    alone: dict[Any, Node] = {}
    seen: dict[Any, Node] = {}
    count = 0
    for node in list(graph.nodes):
        operands = _operands(node)
        other = alone.setdefault(operands, node)
        if other is node:
            continue
        # Only nodes with the same operands are compared by their attributes, which may be long lists of scales.
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


def eliminate_dead_code(graph: Graph) -> int:
    """Nodes without a use -> nothing."""
    return graph.prune()


def _operands(node: Node) -> Any:
    """A key of the operation and its operands; for a constant, of which all would be alike, also of its array."""
    if node.op.name == "constant":
        return _hashable(node.attrs["value"])
    operands: list[Any] = [id(v) for v in node.inputs]
    if node.op.commutative:
        operands[:2] = sorted(operands[:2])
    return (node.op.name, *operands)


def _attributes(node: Node) -> tuple[Any, ...]:
    return tuple((k, _hashable(v)) for k, v in node.attrs.items())


def _hashable(value: Any) -> Any:
    """A key that is equal if and only if attributes mean the same; -0.0 differs from 0.0, and 1 from True."""
    if value is None or type(value) in (bool, int, str):
        return type(value), value
    if isinstance(value, np.ndarray):
        return _Content(value)
    if isinstance(value, Graph):
        return id(value)
    if isinstance(value, tuple):
        kinds = set(map(type, value))  # a fast path for the usual lists, which may have thousands of scales
        if kinds == {float}:
            return "float", array("d", value).tobytes()
        return ("int", value) if kinds == {int} else tuple(_hashable(v) for v in value)
    return type(value).__name__, repr(value)


class _Content:
    """An array as a dict key: equality compares dtype, shape and all bytes, the hash takes a sample of the bytes."""

    def __init__(self, x: np.ndarray) -> None:
        self.kind = x.dtype.name, x.shape
        self.bytes = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        self.hash = hash((self.kind, self.bytes[::max(1, len(self.bytes) // 64)].tobytes()))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.kind == other.kind and np.array_equal(self.bytes, other.bytes)
