"""Partitions: a node that holds a body graph (its ops as the user wrote them) and an anchor."""
from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import networkx as nx
import numpy as np

from graphq.errors import GraphError
from graphq.interpret import evaluate
from graphq.ir import Graph, Node, TensorType, Value
from graphq.op import OPS, register_op
from graphq.rewrite import Match, Rewrite


def infer_partition(*types: TensorType, body: Graph, anchor: str) -> tuple[TensorType, ...]:
    """The body's output types; its inputs must be the operands."""
    wanted = [v.type for v in body.inputs]
    if list(types) != wanted:
        raise GraphError(f"operands are ({', '.join(map(str, types))}), the body takes ({', '.join(map(str, wanted))})")
    return tuple(v.type for v in body.outputs)


@register_op(infer=infer_partition)
def partition(*operands: np.ndarray, body: Graph, anchor: str) -> tuple[np.ndarray, ...]:
    """A fused group of operations; means what its body means."""
    inputs = {str(v.name): x for v, x in zip(body.inputs, operands, strict=True)}
    return tuple(evaluate(body, inputs))


def fuse(graph: Graph, nodes: Iterable[Node], anchor: str) -> Value:
    """Add a partition of `nodes`, which together have one result; that result.

    Raises GraphError when the nodes have several results or are not convex (a path leaves and enters again).
    """
    body, operands, _ = extract(graph, nodes)
    return graph.add_node(OPS["partition"], operands, {"body": body, "anchor": anchor})[0]


def extract(graph: Graph, nodes: Iterable[Node]) -> tuple[Graph, list[Value], Value]:
    """A body graph of `nodes`, the values of `graph` for its inputs, and the value of `graph` that it computes.

    Constants that the nodes use stay outside, as operands.
    """
    members = _in_order(graph, nodes)
    inside = set(members)
    results = [o for n in members for o in n.outputs if any(u.node not in inside for u in o.uses)]
    if len(results) != 1:
        raise GraphError(f"a partition needs one result, these nodes have {[graph.label(v) for v in results]}")
    if not is_convex(graph, members):
        raise GraphError(f"not convex: a path leaves {graph.describe(members[0])} ... and enters again")
    body, operands = Graph("body"), list(dict.fromkeys(v for n in members for v in n.operands if v.node not in inside))
    new = {v: body.input(f"i{k}", dtype=v.dtype, shape=v.shape, property="constant" if v.data is not None else v.property)
           for k, v in enumerate(operands)}
    for node in members:
        outs = body.add_node(node.op, [None if v is None else new[v] for v in node.inputs], node.attrs)
        new.update(zip(node.outputs, outs, strict=True))
    body.output(new[results[0]], name="out0")
    return body, operands, results[0]


def _in_order(graph: Graph, nodes: Iterable[Node]) -> list[Node]:
    wanted = set(nodes)
    return [n for n in graph.nodes if n in wanted]


def dependencies(nodes: Iterable[Node]) -> nx.DiGraph:
    """The nodes with an edge from each to every node that uses a result of it."""
    dag = nx.DiGraph()
    dag.add_nodes_from(nodes)
    for node in list(dag):
        dag.add_edges_from((v.node, node) for v in node.operands if v.node in dag)
    return dag


def is_convex(graph: Graph, members: list[Node]) -> bool:
    """Whether no path between two members runs through another node.

    Only nodes between the first and the last member can lie on such a path. Contracted to one vertex, the members
    must leave the rest acyclic.
    """
    at = [k for k, n in enumerate(graph.nodes) if n in set(members)]
    window = dependencies(graph.nodes[at[0]:at[-1] + 1])
    inside = set(members)
    contracted = nx.relabel_nodes(window, {n: "partition" for n in inside})
    contracted.remove_edges_from([("partition", "partition")])
    return nx.is_directed_acyclic_graph(contracted)


class Fusion(Rewrite):
    """A rewrite that folds what it matched into a partition of kind `anchor`."""

    anchor: ClassVar[str]

    def absorbs(self, node: Node) -> bool:
        """Whether a single-use producer of a matched node's operand comes along."""
        return False

    def members(self, match: Match) -> list[Node]:
        """The matched nodes and what they absorb."""
        members = dict.fromkeys(match.nodes)
        for node in match.nodes:
            for v in node.operands:
                if v.node is not None and len(v.uses) == 1 and self.absorbs(v.node):
                    members[v.node] = None
        return list(members)

    def replace(self, g: Graph, match: Match) -> Value:  # type: ignore[override]
        """The partition's result."""
        return fuse(g, self.members(match), self.anchor)
