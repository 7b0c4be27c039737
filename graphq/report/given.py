"""Given: operations of the graph before the fusions as the user gave them, by whose names and types reports call them.

The passes before the fusions move operations (a dequantize behind a transpose, a convolution to channels last) and
compute constants; names go with the values.
"""
from __future__ import annotations

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.record import DEQUANTIZES

MOVES = frozenset({"static_reshape", "static_transpose", "gather", "slice", "expand", "pad", "concat"})
"""Operations that passes move to the other side of a dequantize, where its scales allow it."""

REORDERS = ("static_transpose", "static_reshape")
"""Operations that passes add around others for another layout."""


def called(value: Value) -> str:
    """`%y` for a named value, `x` for an input; an unnamed one with what makes it, `%7 (relu)`."""
    label = value.graph.label(value)
    node = value.node
    return label if value.name is not None or node is None else f"{label} ({node.op.title(node.attrs)})"


def equal(node: Node) -> list[Node]:
    """The dequantizes that are copies of a dequantize, with itself: passes give each user one of its own."""
    if node.op.name not in DEQUANTIZES:
        return [node]
    return [u for u in next(node.operands).users if u.op is node.op and u.inputs == node.inputs
            and u.attrs == node.attrs]


class Given:
    """The graph as it was given, `source`, for the graph that passes made of it, `before` the fusions.

    For constants that passes computed, `origins` has the values of `source` that they were computed from.
    """

    def __init__(self, source: Graph, before: Graph) -> None:
        self._values = {source.label(v): v for n in source.nodes for v in n.outputs if v.data is None}
        computed = (v for n in before.nodes_of(("constant",)) for v in n.outputs)
        self.origins = {v: self._values[label] for v in computed if (label := before.label(v)) in self._values}

    def node(self, node: Node) -> Node:
        """The operation as it was given; its result may be that of a reorder now, or was that of a move then."""
        work = [node.outputs[0]]
        while work:
            value = work.pop()
            found = self._values.get(value.graph.label(value))
            maker = None if found is None else found.node
            while maker is not None and maker.op is not node.op:
                maker = next(maker.operands).node if maker.op.name in MOVES else None
            if maker is not None:
                return maker
            work += [u.outputs[0] for u in value.users if u.op.name in REORDERS]
        first = next((n for n in equal(node) if node.graph.label(n.outputs[0]) in self._values), node)
        return node if first is node else self.node(first)

    def called(self, value: Value) -> str:
        """The value as it was given, where a copy of a dequantize makes it: `%y`, `x`, `%7 (relu)`."""
        node = value.node
        if node is not None and node.op.name in DEQUANTIZES and (given := self.node(node)).op is node.op:
            value = given.outputs[0]
        return called(value)

    def describe(self, node: Node) -> str:
        """The line of the operation as it was given."""
        found = self.node(node)
        return found.graph.describe(found)

    def made(self, value: Value) -> str:
        """The line of what makes a value; the name of an input."""
        return value.graph.label(value) if value.node is None else self.describe(value.node)
