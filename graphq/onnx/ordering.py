"""Nodes in an order in which each comes after those that it takes values from."""
from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from onnx import ModelProto, NodeProto

from graphq.onnx.fallback import used_names


def ordered(model: ModelProto) -> ModelProto:
    """The model, or a copy of it with its nodes in order where they are not.

    Converters leave casts at the end, and ONNX Runtime sorts. Nodes of a cycle are left out of order, for the checker
    to refuse.
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
    """The numbers of the nodes, those that wait for none as they stand; what waits for ever comes last."""
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    sources = [{maker[name] for name in used_names(node) if name in maker} for node in nodes]
    if all(j < k for k, s in enumerate(sources) for j in s):
        return list(range(len(nodes)))
    users: list[list[int]] = [[] for _ in nodes]
    for k, s in enumerate(sources):
        for j in s:
            users[j].append(k)
    waiting = [len(s) for s in sources]
    ready, order = deque(k for k, n in enumerate(waiting) if n == 0), []
    while ready:
        k = ready.popleft()
        order.append(k)
        for user in users[k]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    return order + [k for k, n in enumerate(waiting) if n > 0]
