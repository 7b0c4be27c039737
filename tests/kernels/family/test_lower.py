"""Fusions ask what kernels refuse, and bodies are lowered once, when the plan is built."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import family_named, lower_partition
from graphq.kernels.family import anchored
from graphq.kernels.family.unsupported import Unsupported
from graphq.passes import Fuse
from graphq.rewrite.partition import extract


def test_constants_of_now_count():
    """A partition whose constant operand becomes another is lowered with that one."""
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    g.output(g.relu(g.add(x, np.array([0, 1, 2], np.float32))))
    assert Fuse("eltwise", floats=True)(g) == 1
    node, data = g.nodes[-1], np.array([0, 1, 3], np.float32)
    with g.before(node):
        g.replace_uses(node.inputs[1], g.constant(data))
    zeros = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(lower_partition(node).formula([zeros, data]), np.broadcast_to(data, (2, 3)))


def test_a_quantize_whose_reciprocal_is_no_f32_is_refused_after_an_anchor():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.5])
    w = g.dequantize(g.constant(np.ones((8, 8), np.int8)), scales=[0.5])
    g.output(g.quantize(g.matmul(x, w), dtype="u8", scales=[1e-39]))
    body, operands, _ = extract(g, [n for n in g.nodes if n.op.name != "constant"])
    reason = family_named("matmul").refuses(body, [v.data for v in operands])
    assert str(reason) == "1/scale of a quantize is not a finite f32"
    with pytest.raises(Unsupported, match="1/scale of a quantize"):
        family_named("matmul").lower(body, [v.data for v in operands])


def test_a_model_lowers_each_layer_once(monkeypatch):
    """With a bias in s32 and a quantized operand of the chain, whose constants fold and become one."""
    g = gq.Graph()
    x = y = g.input("x", shape=(4, 8), dtype="u8")
    made, translate = [], anchored.translate
    monkeypatch.setattr(anchored, "translate", lambda *args, **kws: made.append(args) or translate(*args, **kws))
    for _ in range(3):
        w = g.dequantize(g.constant(np.ones((8, 8), np.int8)), scales=[0.5])
        bias = g.dequantize(g.constant(np.arange(8, dtype=np.int32)), scales=[0.01])
        half = g.dequantize(g.constant(np.array([1], np.uint8)), scales=[0.5])
        z = g.multiply(g.matmul(g.dequantize(y, scales=[0.02]), w, bias), half)
        y = g.quantize(z, dtype="u8", scales=[0.1])
    g.output(y)
    model = gq.compile(g)
    assert len(made) == 3 == sum(n.op.name == "partition" for n in model.graph.nodes)
    data = np.arange(32, dtype=np.uint8).reshape(x.type.dims)
    np.testing.assert_array_equal(model(data), model.formula(data))
    assert model.coverage().share == 1
