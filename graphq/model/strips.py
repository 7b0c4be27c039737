"""Which partitions run strip by strip: those between which large values lie that nothing else reads."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from graphq.base.sizes import assumed
from graphq.ir import Graph, Node, Value
from graphq.kernels.families import family_named
from graphq.kernels.family.lower import Lowered
from graphq.plan.plan import VIEWS

LEAST_BYTES, LEAST_ROWS = 1 << 20, 16
"""The size of values for which it is worth it: more than L2 holds, and rows for more than a few tiles of products."""
LEAST_SHARE = 2
"""So many times the bytes of all that goes in and comes out are between. Each strip reads all of what goes into it but
the rows: the weights of a product, which are few then."""

Lower: TypeAlias = Callable[[Node], Lowered]


def find_strips(graph: Graph, lower: Lower) -> Mapping[Node, tuple[Node, ...]]:
    """The nodes that run strip by strip, partitions and views between them, in order; for each of them.

    All sizes are assumed ones: they decide about speed and memory alone. `lower` gives what kernels compute.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node not in found and node.op.name == "partition" and family_named(node.attrs["anchor"]).follows is not None:
            nodes = node, *_after(node, lower)
            if len(nodes) > 1 and found.keys().isdisjoint(nodes) and _fit(nodes) and _pays(nodes):
                found |= dict.fromkeys(nodes, nodes)
    return found


def between(nodes: Sequence[Node]) -> list[Value]:
    """The values that one of the partitions leaves for the next."""
    return [node.output for node in nodes[:-1] if node.op.name == "partition"]


def _after(node: Node, lower: Lower) -> Iterator[Node]:
    """The nodes that go on strip by strip with what a node leaves."""
    views: list[Node] = []
    while (follower := _follower(node, lower)) is not None:
        views.append(follower)
        if follower.op.name == "partition":
            yield from views
            views = []
        node = follower


def _follower(node: Node, lower: Lower) -> Node | None:
    """The one node that reads what `node` leaves, if that is large and is read at the rows of the result alone."""
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
    """Whether the rows of all values are multiples of the fewest, in which strips are cut."""
    rows = sorted([node.output.type.dims[-2] for node in nodes], key=assumed)
    return all(m % rows[0] == 0 for m in rows)


def _pays(nodes: Sequence[Node]) -> bool:
    """Whether the values between nodes are most of what these touch."""
    inside = [node.output for node in nodes[:-1]]
    beside = {v for node in nodes for v in (*node.operands, node.output)}.difference(inside)
    least = LEAST_SHARE * sum(assumed(v.type.nbytes) for v in beside)
    return sum(assumed(v.type.nbytes) for v in between(nodes)) > least
