"""The operation partition: a node that holds a body graph, the operations as the user wrote them, and an anchor.

The anchor names the kind of kernel that computes the body.
"""
from __future__ import annotations

import numpy as np

from graphq.errors import GraphError
from graphq.ir import Graph, TensorType
from graphq.ir.interpret import evaluate
from graphq.ir.op import register_op


def infer_partition(*types: TensorType, body: Graph, anchor: str) -> tuple[TensorType, ...]:
    """The body's output types; its inputs must be the operands."""
    wanted = [v.type for v in body.inputs]
    if list(types) != wanted:
        raise GraphError(f"operands are ({', '.join(map(str, types))}), the body takes ({', '.join(map(str, wanted))})")
    if not body.outputs:
        raise GraphError(f"the body '{body.name}' has no outputs")
    return tuple(v.type for v in body.outputs)


@register_op(infer=infer_partition)
def partition(*operands: np.ndarray, body: Graph, anchor: str) -> tuple[np.ndarray, ...]:
    """A fused group of operations; its result is that of its body."""
    inputs = {str(v.name): x for v, x in zip(body.inputs, operands, strict=True)}
    return tuple(evaluate(body, inputs))
