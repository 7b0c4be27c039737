"""The dependencies of nodes as a networkx graph, for oracles."""
from collections.abc import Iterable

import networkx as nx

from graphq.ir import Node


def dependencies(nodes: Iterable[Node]) -> nx.DiGraph:
    """The nodes with an edge from each to every node that uses a result of it."""
    dag = nx.DiGraph()
    dag.add_nodes_from(nodes)
    for node in list(dag):
        dag.add_edges_from((v.node, node) for v in node.operands if v.node in dag)
    return dag
