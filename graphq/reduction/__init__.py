"""Shrink a graph for which something fails to the smallest one, by trial, for which it still does."""
from graphq.reduction.reduce import TRIALS, reduce_graph
from graphq.reduction.subgraphs import subgraph

__all__ = ["TRIALS", "reduce_graph", "subgraph"]
