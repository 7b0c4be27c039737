"""Add the steps of recurrent layers to a plan."""
from __future__ import annotations

import numpy as np

from graphq.ir import Node, Value
from graphq.kernels.recurrent.loops import Layer, Packed, byte_panels, panels, plan_recurrence
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, Word


def lstm_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of an LSTM. The reference runs instead if it has peepholes or weights that are not constant."""
    h, c, scales, lengths, peepholes = _optional(node, 5)
    recurrent = node.operand(1)
    if recurrent.data is None or scales is not None and scales.data is None or peepholes is not None \
            or node.outputs[0].type.size == 0:
        return reference_steps(b, node)
    packed = None if scales is None else byte_panels(recurrent.data, 4)
    words: dict[str, Word] = {"cells": Ref(b.result(node.outputs[2])), "first_cells": _state(b, node, c)}
    if scales is not None and packed is not None:
        rows = np.broadcast_to(np.asarray(scales.data), recurrent.type.dims[:1])
        words |= {"extra": Ref(b.constant(rows)), "room": Ref(b.temporary(node.outputs[1].type.nbytes + 16)),
                  "weight_sums": Ref(b.constant(packed.sums)), "offset": packed.offset}
    _add(b, node, 4, lengths, {**words, "first": _state(b, node, h)}, packed)


def gru_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of a GRU, or run the reference if weights are not constant or `linear_before_reset` is false."""
    h, bias, lengths = _optional(node, 3)
    recurrent = node.operand(1)
    if recurrent.data is None or not node.attrs["linear_before_reset"] or node.outputs[0].type.size == 0:
        return reference_steps(b, node)
    extra = b.constant(np.zeros(recurrent.type.dims[1], np.float32)) if bias is None else b.of[bias]
    _add(b, node, 3, lengths, {"extra": Ref(extra), "first": _state(b, node, h)})


def rnn_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of an RNN. The reference runs instead if weights are not constant."""
    h, lengths = _optional(node, 2)
    recurrent = node.operand(1)
    if recurrent.data is None or node.outputs[0].type.size == 0:
        return reference_steps(b, node)
    _add(b, node, 1, lengths, {"first": _state(b, node, h)})


def _optional(node: Node, count: int) -> tuple[Value | None, ...]:
    return (*node.inputs[2:], *(None,) * (2 + count - len(node.inputs)))


def _state(b: PlanBuilder, node: Node, given: Value | None) -> Ref:
    t = node.outputs[1].type
    return Ref(b.constant(np.zeros(t.dims, np.float32)) if given is None else b.of[given])


def _add(b: PlanBuilder, node: Node, gates: int, lengths: Value | None, words: dict[str, Word],
         packed: Packed | None = None) -> None:
    weights = node.operand(1).data
    assert weights is not None
    steps, rows, units = node.outputs[0].type.dims
    layer = Layer(gates, steps, rows, units, node.attrs["reverse"], packed is not None, packed.offset if packed else 0)
    step = plan_recurrence(layer, b.target)
    if lengths is not None:
        wrong = b.report("sequence length", node, node.op.name, steps)
        words |= {"lengths": Ref(b.of[lengths]), "wrong_length": Ref(wrong)}
    lines = panels(weights, gates) if packed is None else packed.panels
    b.run(step, {**words, "gates": Ref(b.of[node.operand(0)]), "panels": Ref(b.constant(lines)),
                 "states": Ref(b.result(node.outputs[0])), "last": Ref(b.result(node.outputs[1]))})


STEPS = {"lstm": lstm_steps, "gru": gru_steps, "rnn": rnn_steps}
