"""Random ONNX models, each node of which ONNX's reference evaluator has run: what graphq makes of them must agree.

`random_model(seed)` gives a model, arrays for its inputs and what the evaluator says its outputs are. A node that the
evaluator refuses is dropped, so attributes are drawn freely. Where the evaluator does not follow the specification
(older versions of softmax, say), the node's own function says what is right.
"""
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_builder import Builder, Skip
from random_onnx_products import MAKERS


class RandomModel(NamedTuple):
    """A model, arrays by the names of its inputs, and the outputs."""

    model: onnx.ModelProto
    feeds: dict
    wanted: dict


def random_model(seed):
    """The model of a seed."""
    rng = np.random.default_rng(seed)
    b = Builder(rng)
    for _ in range(rng.integers(1, 3)):
        b.input(b.floats(*rng.integers(1, 8, rng.integers(2, 5))))
    target, tries = int(rng.integers(2, 9)), 0
    while len(b.nodes) < target and tries < 40:
        tries += 1
        kept = len(b.nodes), dict(b.arrays), list(b.constants)
        try:
            MAKERS[rng.integers(len(MAKERS))](b)
        except Skip:
            del b.nodes[kept[0]:]
            b.arrays, b.constants = kept[1], kept[2]
    return _model(b)


def _model(b):
    used = {n for node in b.nodes for n in node.input}
    outputs = [n for node in b.nodes for n in node.output if n not in used or b.chance(0.1)]
    graph = helper.make_graph(b.nodes, "random", b.infos(b.inputs), b.infos(outputs),
                              [numpy_helper.from_array(b.arrays[n], n) for n in b.constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=8)
    return RandomModel(model, {n: b.arrays[n] for n in b.inputs}, {n: b.arrays[n] for n in outputs})
