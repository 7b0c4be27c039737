"""Add the steps of recurrent layers to a plan."""
import numpy as np

from graphq.ir import Node
from graphq.kernels.recurrent.loops import Layer, byte_panels, panels, plan_recurrence
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, Word

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
OPTIONAL = {"lstm": ("first", "first_cells", "scales", "lengths", "peepholes"), "gru": ("first", "bias", "lengths"),
            "rnn": ("first", "lengths")}
"""The optional operands of each operation. They follow the inputs and the recurrent weights."""


def recurrent_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of an LSTM, GRU or RNN.

    The reference runs instead if weights are not constant, if an LSTM has peepholes, or if a GRU has a false
    `linear_before_reset`.
    """
    name, weights, (out, last) = node.op.name, node.operand(1).data, node.outputs[:2]
    given = {x: v for x, v in zip(OPTIONAL[name], node.inputs[2:], strict=False) if v is not None}
    scales = given.get("scales")
    if weights is None or scales is not None and scales.data is None or "peepholes" in given \
            or not node.attrs.get("linear_before_reset", True) or out.type.size == 0:
        return reference_steps(b, node)
    packed, words = None, dict[str, Word]()

    def state(operand: str) -> Ref:
        return Ref(b.of[given[operand]] if operand in given else b.constant(np.zeros(last.type.dims, np.float32)))

    if name == "lstm":
        words |= {"cells": Ref(b.result(node.outputs[2])), "first_cells": state("first_cells")}
    if name == "gru":
        words["extra"] = Ref(b.of[given["bias"]] if "bias" in given else b.constant(
            np.zeros(weights.shape[1], np.float32)))
    if scales is not None:
        packed = byte_panels(weights, GATES[name])
        factors = np.broadcast_to(np.asarray(scales.data), weights.shape[:1])
        room = b.temporary(last.type.nbytes + 16 * last.type.dims[0])
        words |= {"extra": Ref(b.constant(factors)), "room": Ref(room),
                  "weight_sums": Ref(b.constant(packed.sums)), "offset": packed.offset}
    words["first"] = state("first")
    steps, rows, units = out.type.dims
    layer = Layer(GATES[name], steps, rows, units, node.attrs["reverse"], packed is not None,
                  packed.offset if packed else 0, name == "lstm" and node.attrs["by_row"])
    step = plan_recurrence(layer, b.target)
    if "lengths" in given:
        wrong = b.report("sequence length", node, name, steps)
        words |= {"lengths": Ref(b.of[given["lengths"]]), "wrong_length": Ref(wrong)}
    lines = panels(weights, GATES[name]) if packed is None else packed.panels
    b.run(step, {**words, "gates": Ref(b.of[node.operand(0)]), "panels": Ref(b.constant(lines)),
                 "states": Ref(b.result(out)), "last": Ref(b.result(last))})
