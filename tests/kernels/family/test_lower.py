"""lowered: what kernels compute for a body is worked out once, for the fusion and for the plan."""
import numpy as np

import graphq as gq
from graphq.kernels.family import settled
from graphq.kernels.family.lower import lower_eltwise, lowered
from graphq.rewrite.partition import extract


def body():
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    g.output(g.relu(g.add(x, np.ones(3, np.float32))))
    made, operands, _ = extract(g, [n for n in g.nodes if n.op.name != "constant"])
    return made, [v.data for v in operands]


def test_a_body_is_lowered_once_until_it_is_taken():
    made, constants = body()
    first = lowered(lower_eltwise, made, constants)
    assert lowered(lower_eltwise, made, [None, constants[1].copy()]) is first  # the same bits
    assert lowered(lower_eltwise, made, constants, take=True) is first
    assert lowered(lower_eltwise, made, constants, take=True) is not first


def test_other_constants_are_lowered_anew():
    made, constants = body()
    constants[1] = np.array([0, 1, 2], np.float32)
    first = lowered(lower_eltwise, made, constants)
    for other in (constants[1] + 1, np.array([-0.0, 1, 2], np.float32), None):
        assert lowered(lower_eltwise, made, [None, other]) is not first
        first = lowered(lower_eltwise, made, constants)


def test_a_model_lowers_each_layer_once(monkeypatch):
    """With a bias in s32 and a quantized operand of the chain, whose constants fold and become one."""
    g = gq.Graph()
    y = g.input("x", shape=(4, 8), dtype="u8")
    made, translate = [], settled.translate
    monkeypatch.setattr(settled, "translate", lambda *args, **kws: made.append(args) or translate(*args, **kws))
    for _ in range(3):
        w = g.dequantize(g.constant(np.ones((8, 8), np.int8)), scales=[0.5])
        bias = g.dequantize(g.constant(np.arange(8, dtype=np.int32)), scales=[0.01])
        half = g.dequantize(g.constant(np.array([1], np.uint8)), scales=[0.5])
        z = g.multiply(g.matmul(g.dequantize(y, scales=[0.02]), w, bias), half)
        y = g.quantize(z, dtype="u8", scales=[0.1])
    g.output(y)
    model = gq.compile(g)
    assert len(made) == 3 == sum(n.op.name == "partition" for n in model.graph.nodes)
