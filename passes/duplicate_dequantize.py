"""Give each user of a dequantize a dequantize of its own, so that each user can fuse with it.

Copies that do not fuse are merged again later.
"""
from __future__ import annotations

from graphq.ir import Graph
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import taken


def duplicate_dequantize(graph: Graph) -> int:
    """`(dynamic_)dequantize` with n users -> n of them; returns the number added.

    If the dequantized value is an output of the graph, one of them computes only that output. A dequantize of integers
    of more than 8 bits is not copied, since no partition takes it in: it stays with the operations that compute its
    operand.
    """
    count = 0
    for node in list(graph.nodes):
        if node.op.name not in DEQUANTIZES or not taken(node):
            continue
        out = node.output
        for user in out.users if out.is_output else out.users[1:]:
            with graph.before(user, [node]):
                copy = graph.add_again(node, node.inputs)[0]
            graph.replace_uses(out, copy, [u for u in out.uses if u.node is user])
            count += 1
    return count
