"""A topological order of the nodes of an ONNX model."""
from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from onnx import ModelProto, NodeProto

from graphq.onnx.protos.fallback import used_names


def ordered(model: ModelProto) -> ModelProto:
    """The model; if its nodes are not in order, a copy in which they are.

    Some converters put casts at the end, which ONNX Runtime accepts, as it sorts nodes. Nodes that form a cycle stay as
    they are, so that the checker refuses them.
    """
    nodes = model.graph.node
    order = _order(nodes)
    if order == list(range(len(nodes))):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[k] for k in order)
    return copy


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """The numbers of the nodes in order. It is the present order if that is valid, or if there is a cycle."""
    stand = list(range(len(nodes)))
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    sources = [{maker[name] for name in used_names(node) if name in maker} for node in nodes]
    if all(j < k for k, s in enumerate(sources) for j in s):
        return stand
    sorter = TopologicalSorter({k: () for k in stand})  # first all nodes, so that those that wait for none stay sorted
    for k, s in enumerate(sources):
        sorter.add(k, *s)
    try:
        return list(sorter.static_order())
    except CycleError:
        return stand
