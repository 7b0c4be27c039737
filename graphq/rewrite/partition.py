"""Copy nodes of a graph into the body of a partition (`graphq.ops.control`), unless a path leaves and enters them."""
from collections.abc import Iterable
from itertools import count

from graphq.errors import GraphError
from graphq.ir import GRAPH_ORDER, Graph, Node, Value
from graphq.rewrite.rule import Rewrite


def carve(graph: Graph, nodes: Iterable[Node]) -> tuple[Graph, list[Value], list[Value]]:
    """Copy nodes into a body graph. Returns the body, its operands in `graph`, and its results as values of `graph`.

    Constants that the nodes use are not copied: they become operands. Values keep their names in the body. Raises
    GraphError if the nodes are not convex (`is_convex`).
    """
    inside = set(nodes)
    for node in inside:
        if node.graph is not graph or node.removed:
            raise GraphError(f"a partition of graph '{graph.name}' cannot have this {node.op.name}: it is not a node "
                             "of the graph")
    members = sorted(inside, key=GRAPH_ORDER)
    results = [o for n in members for o in n.outputs if any([u.node not in inside for u in o.uses])]
    # No path comes back from the last node.
    if any([v.node is not members[-1] for v in results]) and (detour := _detour(members)):
        raise GraphError(f"not convex: a path leaves these {len(members)} nodes and enters them again through "
                         f"{'; '.join(map(graph.describe, detour))}")
    results = results or [o for n in members[-1:] for o in n.outputs]
    operands = list(dict.fromkeys(v for n in members for v in n.operands if v.node not in inside))
    taken = {o.name for n in members for o in n.outputs} | {v.name for v in operands}
    free = (name for k in count() if (name := f"i{k}") not in taken)
    body = Graph("body")
    new = {v: body.add_input(v.name or next(free), v.type, "constant" if v.data is not None else v.property)
           for v in operands}
    for node in members:
        values = [None if v is None else new[v] for v in node.inputs]
        outs = body.add_checked(node.op, values, node.attrs, [o.type for o in node.outputs], name=node.outputs[0].name)
        body.nodes[-1].meta, body.nodes[-1].origin = node.meta, node.origin
        new.update(zip(node.outputs, outs, strict=True))
    body.set_outputs([new[v] for v in results], [f"out{k}" for k in range(len(results))])
    return body, operands, results


def is_convex(members: list[Node]) -> bool:
    """Whether no path between two members runs through another node. `members` must be in graph order."""
    return not _detour(members)


def _detour(members: list[Node]) -> list[Node]:
    """The nodes of a path that leaves the members and enters them again; empty if the members are convex.

    `members` must be in graph order. The search visits only nodes between the first and the last member.
    """
    if not members:
        return []
    inside, last = set(members), members[-1].position
    before: dict[Node, Node | None] = {}  # each outside node that was reached, and its predecessor
    work: list[tuple[Node, Node | None]] = [(n, None) for n in members]
    while work:
        node, outer = work.pop()
        for user in (u.node for out in node.outputs for u in out.uses):
            if user in inside:
                if outer is not None:
                    path = [outer]
                    while (previous := before[path[0]]) is not None:
                        path.insert(0, previous)
                    return path
            elif user is not None and user.position < last and user not in before:
                before[user] = outer
                work.append((user, user))
    return []


class Fusion(Rewrite):
    """A rewrite that puts the nodes of a match, and nodes before them, into a partition of the family `anchor`."""

    anchor: str
