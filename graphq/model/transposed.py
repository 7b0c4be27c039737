"""Find transposes that need no step, because the kernels before or after them can write or read with strides.

Attention has such transposes: they move the axis of the heads before the axis of the rows, and back. A matmul can read
the rows of one head with strides, and write its result with strides.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphq.ir import Graph, Node, Value
from graphq.kernels.families import family_named
from graphq.kernels.family.lower import Lowered
from graphq.kernels.operands.space import dense

Lower: TypeAlias = Callable[[Node], Lowered]
"""A function that lowers a partition: it describes the computation for kernels."""


def find_read(graph: Graph, lower: Lower) -> set[Node]:
    """The transposes whose users are all partitions that can read the transpose's operand with strides instead."""
    return {node for node in graph.nodes if _moves(node) and node.output.users and not node.output.is_output
            and all(_reads(user, node.output, _order(node), lower) for user in node.output.users)}


def find_written(graph: Graph, lower: Lower) -> Mapping[Value, Node]:
    """Map results of partitions to transposes that are their only users, if the partitions can write with strides."""
    found = {}
    for node in graph.nodes:
        if _moves(node):
            (source,) = node.operands
            order = _order(node)
            if order[-1] == len(order) - 1 and not source.is_output and len(source.users) == 1 \
                    and source.node is not None and _family(source.node, lower) is not None:
                found[source] = node
    return found


def read_strides(node: Node) -> tuple[int, ...]:
    """The byte strides for reading a transpose's result from the memory of its dense operand."""
    (source,) = node.operands
    strides = dense(source.type.dims, source.dtype.itemsize)
    return tuple([strides[k] for k in _order(node)])


def written_strides(node: Node) -> tuple[int, ...]:
    """The byte strides for writing a transpose's operand to the memory of its dense result."""
    strides = dense(node.output.type.dims, node.output.dtype.itemsize)
    order = _order(node)
    return tuple([strides[order.index(k)] for k in range(len(order))])


def _moves(node: Node) -> bool:
    return node.op.name == "static_transpose" and node.output.dtype.bits >= 8 and len(node.attrs["order"]) > 2


def _order(node: Node) -> Sequence[int]:
    return [k % len(node.attrs["order"]) for k in node.attrs["order"]]


def _family(node: Node, lower: Lower) -> Lowered | None:
    """The lowered partition, if its kernel family supports strides; else None."""
    if node.op.name != "partition" or family_named(node.attrs["anchor"]).strided is None:
        return None
    return lower(node)


def _reads(node: Node, value: Value, order: Sequence[int], lower: Lower) -> bool:
    lowered = _family(node, lower)
    if lowered is None:
        return False
    strided = family_named(node.attrs["anchor"]).strided
    assert strided is not None
    return all(strided(lowered, k, order) for k, v in enumerate(node.operands) if v is value)
