"""Products in every layout: their axes, channels and groups; which operations are products; names of values."""
import numpy as np
import pytest

import graphq as gq
from graphq.quantization import Scheme, automatic, quantize
from graphq.quantization.products import (
    LinearLayer,
    left_in_floats,
    name_values,
    prepared,
    products,
    values_by_name,
)

SHAPES = {"OIX": (6, 4, 3, 2), "XIO": (3, 2, 4, 6), "IOX": (4, 6, 3, 2), "XOI": (3, 2, 6, 4)}
AXES = {"OIX": (0, 1), "XIO": (3, 2), "IOX": (1, 0), "XOI": (2, 3)}
PADS = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}


def weights(*shape):
    return np.ones(shape, np.float32)


def product(op, x, w, **attrs):
    g = gq.Graph()
    g.output(getattr(g, op)(g.input("x", dtype="f32", shape=x), g.constant(w), **attrs), name="y")
    (found,) = products(g)
    return found


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("op, weights_format", [("convolution", "OIX"), ("convolution", "XIO"), *(
    ("conv_transpose", x) for x in SHAPES)])
def test_convolutions(op, weights_format, data_format):
    x = (2, 4, 9, 8) if data_format == "NCX" else (2, 9, 8, 4)
    p = product(op, x, weights(*SHAPES[weights_format]), data_format=data_format, weights_format=weights_format, **PADS)
    assert p.weight_axes() == AXES[weights_format]
    assert (p.channels(), p.groups, p.activations, p.name) == (4, 1, [0], "y")
    assert p.weights.shape == SHAPES[weights_format] and p.bias is None and p.factors == tuple(p.node.inputs[:2])


def test_groups():
    p = product("convolution", (2, 8, 9), weights(6, 4, 3), groups=2, data_format="NCX", weights_format="OIX",
                strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    assert (p.groups, p.channels()) == (2, 8)
    p = product("conv_transpose", (2, 8, 9), weights(8, 3, 3), groups=2, data_format="NCX", weights_format="IOX",
                strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    assert p.groups == 2


@pytest.mark.parametrize("a, b, axes", [(False, False, (2, 1)), (True, False, (2, 1)), (False, True, (1, 2)),
                                        (True, True, (1, 2))])
def test_matmuls(a, b, axes):
    p = product("matmul", (3, 5, 4) if a else (3, 4, 5), weights(3, 7, 5) if b else weights(3, 5, 7), transpose_a=a,
                transpose_b=b)
    assert (p.weight_axes(), p.channels()) == (axes, 5)


@pytest.mark.parametrize("w, largest", [([[1, -3], [2, 0.5]], 3), ([[1, 3], [-2, 0.5]], 3), ([[-1, -3], [-2, -4]], 4),
                                        ([[0, 0], [0, 0]], 0)])
def test_the_largest_magnitude_of_weights(w, largest):
    assert product("matmul", (3, 2), np.float32(w)).largest == largest


@pytest.mark.parametrize("a, b, dtype, count", [
    ((3, 4), (4, 5), "f32", 1), ((3, 4), (4, 5), "f16", 0), ((4,), (4, 5), "f32", 0), ((3, 4), (4,), "f32", 0)])
def test_products_are_of_f32_and_of_matrices(a, b, dtype, count):
    g = gq.Graph()
    g.output(g.matmul(*(g.input(n, dtype=dtype, shape=s) for n, s in (("a", a), ("b", b)))))
    assert len(list(products(g))) == count


def test_which_operations_are_products():
    g = gq.Graph()
    x, y = g.input("x", dtype="f32", shape=(4, 4)), g.input("y", dtype="f32", shape=(4, 4))
    vector, half = g.input("v", dtype="f32", shape=(4,)), g.input("h", dtype="f16", shape=(4, 4))
    w, q = g.constant(weights(4, 4)), g.input("q", dtype="u8", shape=(4, 4))
    d = g.dequantize(q, scales=[0.5])
    both, right, left = g.matmul(x, y), g.matmul(x, w), g.matmul(w, x)
    mixed = g.matmul(d, x)
    for no in (g.matmul(x, vector), g.matmul(half, half), g.matmul(w, w), g.matmul(d, g.dequantize(q, scales=[2.0])),
               g.relu(x)):
        g.output(no, name=f"no{len(g.outputs)}")
    for yes in (both, right, left, mixed):
        g.output(yes, name=f"yes{len(g.outputs)}")
    found = list(products(g))
    assert [p.node.output for p in found] == [both, right, left, mixed]
    assert [p.activations for p in found] == [[0, 1], [0], [1], [0, 1]]


def test_a_bias():
    g = gq.Graph()
    x, w, b = g.input("x", dtype="f32", shape=(2, 4)), g.constant(weights(4, 3)), g.constant(weights(3))
    assert LinearLayer(g.matmul(x, w, b).node).bias is b and LinearLayer(g.matmul(x, w).node).bias is None


def test_values_get_names_after_their_operations():
    g = gq.Graph()
    x = g.input("relu", dtype="f32", shape=(2,))
    a, c = g.relu(x), g.constant(weights(2))
    b, named, s = g.relu(a), g.abs(a, name="relu_2"), g.add(a, c)
    t = g.relu(s)
    name_values(g)
    assert [v.name for v in (a, b, named, s, t)] == ["relu_1", "relu_3", "relu_2", "add", "relu_4"]
    assert c.name is None and values_by_name(g) == {"relu": x, "relu_1": a, "relu_3": b, "relu_2": named, "add": s,
                                                    "relu_4": t}


def test_preparation():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 4))
    y = g.add(g.matmul(x, g.square(g.constant(2 * weights(4, 3)))), g.constant(weights(3)))
    g.abs(x)
    g.output(y, name="y")
    made = prepared(g)
    assert [n.op.name for n in made.nodes if n.op.name != "constant"] == ["matmul"] and len(g.nodes) == 6
    (p,) = products(made)
    assert (p.weights == 4).all() and (p.bias.data == 1).all() and p.name == "y"
    assert gq.to_text(prepared(made)) == gq.to_text(made)
    with pytest.raises(gq.GraphError, match="expected a Graph, got 3"):
        prepared(3)


def test_what_multiplies_and_stays_in_floats():
    """States of a GRU, one of them in a body; products that are quantized are not counted, in bodies either."""
    g = gq.Graph()
    x, choice = g.input("x", dtype="f32", shape=(2, 4)), g.input("choice", dtype="boolean", shape=())
    y = g.matmul(x, weights(4, 4))
    bodies = []
    for name in ("with", "without"):
        body = gq.Graph(name)
        v = body.input("v", dtype="f32", shape=(2, 4))
        steps = body.static_reshape(body.matmul(v, weights(4, 12)), shape=[1, 2, 12], special_zero=False)
        body.output(body.gru(steps, weights(12, 4))[1] if name == "with" else body.matmul(v, weights(4, 4)))
        bodies.append(body)
    y = g.if_else(choice, y, then_body=bodies[0], else_body=bodies[1])
    y = g.if_else(choice, y, then_body=bodies[1], else_body=bodies[1])
    gates = g.static_reshape(g.matmul(y, weights(4, 12)), shape=[1, 2, 12], special_zero=False)
    g.output(g.gru(gates, weights(12, 4))[1], name="y")
    assert left_in_floats(prepared(g)) == {"gru": 2}
    batches = [{"x": weights(2, 4), "choice": np.array(True)}]
    found = automatic(g, batches)
    assert found.left == found.graph.meta["quantization"]["not_quantized"] == {"gru": 2}
    line = "not quantized: 2 gru"
    assert line in str(found).splitlines()
    assert left_in_floats(quantize(g, batches, Scheme())) == found.left
