"""Give each user of a dequantize its own, so that each can fold it; what nothing folds is merged again later."""
from __future__ import annotations

from graphq.ir import Graph


def duplicate_dequantize(graph: Graph) -> int:
    """dequantize with n users -> n dequantizes; the number added."""
    count = 0
    for node in list(graph.nodes):
        if node.op.name != "dequantize":
            continue
        for use in [u for u in node.output.uses if u.node is not None][1:]:
            with graph.before(use.node):
                copy = graph.add_node(node.op, node.inputs, node.attrs)[0]
            graph.replace_uses(node.output, copy, [use])
            count += 1
    return count
