"""Which partitions run strip by strip: some rows go through several partitions before the next rows do.

Such partitions form a chain, and the values between them are large and read by nothing else (`graphq.plan.strips`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from graphq.base.sizes import assumed
from graphq.ir import Graph, Node, Value
from graphq.kernels.families import family_named
from graphq.kernels.family.lower import Lowered
from graphq.plan.plan import VIEWS

LEAST_BYTES, LEAST_ROWS = 1 << 20, 16
"""The fewest bytes and rows of a value between partitions for which strips are worthwhile.

These are more bytes than an L2 cache holds, and enough rows for a few tiles of matrix products.
"""
LEAST_SHARE = 2
"""How many times larger the values between the partitions must be than all other operands and results together.

Each strip reads operands that do not have its rows, such as the weights of a product, as a whole. So these must be
small in comparison.
"""

Lower: TypeAlias = Callable[[Node], Lowered]


def find_strips(graph: Graph, lower: Lower) -> Mapping[Node, tuple[Node, ...]]:
    """For each node that runs strip by strip, all nodes of its chain in order: partitions, and views between them.

    For an open size its example value decides, since the choice affects only speed and memory. `lower` returns what the
    kernels of a partition compute.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node not in found and node.op.name == "partition" and family_named(node.attrs["anchor"]).follows is not None:
            nodes = node, *_after(node, lower)
            if len(nodes) > 1 and found.keys().isdisjoint(nodes) and _fit(nodes) and _pays(nodes):
                found |= dict.fromkeys(nodes, nodes)
    return found


def between(nodes: Sequence[Node]) -> list[Value]:
    """The values between the partitions of a chain: the results of all partitions but the last."""
    return [node.output for node in nodes[:-1] if node.op.name == "partition"]


def _after(node: Node, lower: Lower) -> Iterator[Node]:
    """The nodes after `node` that can run in the same strips; each reads the result of the one before."""
    views: list[Node] = []
    while (follower := _follower(node, lower)) is not None:
        views.append(follower)
        if follower.op.name == "partition":
            yield from views
            views = []
        node = follower


def _follower(node: Node, lower: Lower) -> Node | None:
    """The one node that reads the result of `node`, if it can run in the same strips; else None.

    The result must be large. To compute a row of its own result, the reader may need only the same row of this result.
    """
    value, users = node.output, node.output.users
    dims = value.type.dims
    if value.is_output or len(users) != 1 or len(dims) < 2 or assumed(value.type.nbytes) < LEAST_BYTES \
            or assumed(dims[-2]) < LEAST_ROWS:
        return None
    (user,) = users
    if user.op.name in VIEWS:
        return user if user.output.type.dims[-1:] == dims[-1:] else None
    if user.op.name != "partition" or (follows := family_named(user.attrs["anchor"]).follows) is None:
        return None
    return user if all(follows(lower(user), k) for k, v in enumerate(user.operands) if v is value) else None


def _fit(nodes: Sequence[Node]) -> bool:
    """Whether the number of rows of each result is a multiple of the smallest, whose rows are cut into strips."""
    rows = sorted([node.output.type.dims[-2] for node in nodes], key=assumed)
    return all(m % rows[0] == 0 for m in rows)


def _pays(nodes: Sequence[Node]) -> bool:
    """Whether the values between the nodes are large enough in comparison to all other operands and results."""
    inside = [node.output for node in nodes[:-1]]
    beside = {v for node in nodes for v in (*node.operands, node.output)}.difference(inside)
    least = LEAST_SHARE * sum(assumed(v.type.nbytes) for v in beside)
    return sum(assumed(v.type.nbytes) for v in between(nodes)) > least
