"""Exporters of recurrent layers, which take the input's products: ONNX's weights of the input become the identity."""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.errors import GraphError
from graphq.ir import Node
from graphq.onnx.exporters.writer import Writer, exports


@exports("lstm", "gru", "rnn")
def recurrent(w: Writer, node: Node) -> None:
    """Write an LSTM, GRU or RNN of one direction; products with the identity are exact."""
    op, gates, weights = node.op.name, node.operand(0), node.operand(1)
    optional = dict(zip([p.name for p in node.op.operands[2:]], node.inputs[2:], strict=False))
    if optional.get("scales") is not None:
        raise GraphError("ONNX has no layer that quantizes the state")
    rows, size = weights.type.dims

    def wide(name: str) -> str:
        return w.add("Unsqueeze", [name, w.integers(0)]) if name else ""

    states = [wide(w.name(optional.get(name))) for name in (("h", "c", "peepholes") if op == "lstm" else ("h",))]
    bias = optional.get("bias")
    biases = "" if bias is None else \
        wide(w.add("Concat", [w.constant(np.zeros(5 * size, np.float32)), w.name(bias)], axis=0))
    names = [w.claim("states"), w.claim("last"), w.claim("cells")][:len(node.outputs)]
    attrs: dict[str, Any] = {"linear_before_reset": int(node.attrs["linear_before_reset"])} if op == "gru" else {}
    own = w.constant(np.eye(rows, dtype=np.float32)[None])
    inputs = [w.name(gates), own, wide(w.name(weights)), biases, w.name(optional.get("lengths")), *states]
    w.add(op.upper(), inputs, names, hidden_size=size, direction="reverse" if node.attrs["reverse"] else "forward",
          **attrs)
    for name, value, axis in zip(names, node.outputs, (1, 0, 0), strict=False):
        w.add("Squeeze", [name, w.integers(axis)], [w.name(value)])
