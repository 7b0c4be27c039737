"""lower_partition: what kernels compute for a partition is worked out once, for the fusion, the plan and reports."""
import copy
import pickle

import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import lower_partition
from graphq.kernels.family import anchored
from graphq.passes import Fuse


def partition(constant=(1, 1, 1)):
    """A graph of one partition, relu(x + constant), and its node."""
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    g.output(g.relu(g.add(x, np.array(constant, np.float32))))
    assert Fuse("eltwise", floats=True)(g) == 1
    return g, g.nodes[-1]


def with_constant(g, node, data):
    """The node's second operand becomes another constant."""
    old = node.inputs[1]
    with g.before(node):
        new = g.constant(np.array(data, np.float32))
    g.replace_uses(old, new)


def test_a_fusion_leaves_the_partition_lowered():
    _, node = partition()
    first = node.derived.lowered
    assert lower_partition(node) is first and lower_partition(node) is first


def test_equal_constants_leave_it_and_the_old_array_goes():
    g, node = partition()
    first = lower_partition(node)
    with_constant(g, node, [1, 1, 1])
    assert lower_partition(node) is first
    assert node.derived.constants[1] is node.inputs[1].data


@pytest.mark.parametrize("other", [[0, 1, 3], [-0.0, 1, 2]])
def test_other_constants_are_lowered_anew(other):
    g, node = partition([0, 1, 2])
    first = lower_partition(node)
    with_constant(g, node, other)
    again = lower_partition(node)
    assert again is not first and lower_partition(node) is again


@pytest.mark.parametrize("again", [gq.Graph.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))],
                         ids=["copy", "deepcopy", "pickle"])
def test_copies_begin_anew(again):
    g, node = partition()
    other = again(g)
    assert node.derived is not None and other.nodes[-1].derived is None and str(other) == str(g)
    x = np.ones((2, 3), np.float32)
    want = lower_partition(node).formula([x, node.inputs[1].data])
    np.testing.assert_array_equal(lower_partition(other.nodes[-1]).formula([x, node.inputs[1].data]), want)


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
    data = np.arange(32, dtype=np.uint8).reshape(x.type.dims)
    np.testing.assert_array_equal(model(data), model.formula(data))
    assert model.coverage().share == 1 and len(made) == 3 == sum(n.op.name == "partition" for n in model.graph.nodes)
