"""The operation onnx_node: a node that ONNX's reference evaluator runs, because graphq has no operation for it."""
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.base.locks import late_imports
from graphq.base.sizes import Later, assumed, is_open, number, plain
from graphq.ir import Graph, TensorType, Value, register_op
from graphq.ops.rules import Array


def infer_onnx_node(*srcs: TensorType, op_type: str, model: np.ndarray | Later) -> tuple[TensorType, ...]:
    """Infer the output types by ONNX's shape inference; dimensions that depend on data are unknown."""
    with late_imports():
        from graphq.onnx.importers.importer import takes
        from graphq.onnx.protos.fallback import infer, infer_open
    if isinstance(model, Later):
        return infer_open(model, srcs)
    if any(is_open(t.shape) for t in srcs):
        taken = number(takes, model, tuple([t.dtype for t in srcs]), tuple([t.shape for t in srcs]))
        if not assumed(taken):
            plain(taken)
            return infer_open(model, srcs)
    return infer(model.tobytes(), srcs)


def resolve_onnx_node(graph: Graph, operands: Sequence[Value | None],
                      attrs: Mapping[str, Any]) -> tuple[Value, ...] | None:
    """Replace the node by graphq's operations; None if too little is known about its operands."""
    with late_imports():
        from graphq.onnx.importers.importer import resolve
    return resolve(graph, attrs["model"].tobytes(), operands)


@register_op(infer=infer_onnx_node, resolve=resolve_onnx_node, portable=False)
def onnx_node(*srcs: Array, op_type: str, model: np.ndarray) -> tuple[Array, ...]:
    """One ONNX node, run by ONNX's reference evaluator; needs the package onnx.

    If graphq's operations can compute the node for these operands, they run instead of the evaluator. `model` is a
    serialized ModelProto with only this node. Its inputs are `srcs`. Small constants are its initializers, because
    shape inference may need their values. `op_type` is the operator's name, for messages.
    """
    with late_imports():
        from graphq.onnx.importers.importer import evaluated
        from graphq.onnx.protos.fallback import run
    results = evaluated(model.tobytes(), srcs)
    return run(model.tobytes(), srcs) if results is None else results
