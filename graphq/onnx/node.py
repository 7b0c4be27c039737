"""onnx_node: the operation for an ONNX node that graphq has no operation for, or none before shapes are known.

ONNX's own shape inference gives its types, and ONNX's reference evaluator runs it.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.base.locks import importing
from graphq.ir import Graph, TensorType, Value
from graphq.ir.op import register_op
from graphq.ops.compute import Array


def infer_onnx_node(*srcs: TensorType, op_type: str, model: np.ndarray) -> tuple[TensorType, ...]:
    """What ONNX's own shape inference says of these types; dimensions that depend on data are unknown."""
    with importing.hold:
        from graphq.onnx.protos.fallback import infer
    return infer(model.tobytes(), srcs)


def resolve_onnx_node(graph: Graph, operands: Sequence[Value | None],
                      attrs: Mapping[str, Any]) -> tuple[Value, ...] | None:
    """Operations of graphq for the node, now that more types or constants are known; None when there are none."""
    with importing.hold:
        from graphq.onnx.importers.importer import resolve
    return resolve(graph, attrs["model"].tobytes(), operands)


@register_op(infer=infer_onnx_node, resolve=resolve_onnx_node)
def onnx_node(*srcs: Array, op_type: str, model: np.ndarray) -> tuple[Array, ...]:
    """One ONNX node; needs the package onnx.

    Where graphq has operations for it, now that its operands are known, these run, else ONNX's reference evaluator.

    `model` is a serialized ModelProto of that node, whose inputs are `srcs`; small constants are its initializers, so
    that shape inference sees them. `op_type` is the operator's name, for people.
    """
    with importing.hold:
        from graphq.onnx.importers.importer import evaluated
        from graphq.onnx.protos.fallback import run
    results = evaluated(model.tobytes(), srcs)
    return run(model.tobytes(), srcs) if results is None else results
