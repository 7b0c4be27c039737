"""Quantized weights: each channel by itself reaches the ends of its integers, whatever the product.

Quantized products: parameters of parts, biases as integers, and operands that are replaced.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s8, u8
from graphq.ops.quant import dequantize
from graphq.quantization.insert import (
    MAX_BIAS,
    PART,
    Quantized,
    along,
    by_statistics,
    insert,
    integers,
    kept,
    replace_operand,
    rest_of_weights,
)
from graphq.quantization.parametrized import limits
from graphq.quantization.products import products
from graphq.quantization.ranges import SMALLEST, Parameters
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics, TensorStatistics

RNG = np.random.default_rng(2)
SPREAD = np.float32([0.001, 1, 50, 0, 3, 1e-40, 0.2])  # one of seven channels holds zeros, one what is no normal number

# what the channels are of an array [7, ...], and the operation
PRODUCTS = {
    "matmul": (lambda w: w.T, "matmul(x, w)", (7, 4)),
    "transposed": (lambda w: w, "matmul(x, w, transpose_b=true)", (7, 4)),
    "convolution": (lambda w: w, 'convolution(c, w, weights_format="OIX", data_format="NCX")', (7, 4, 3, 2)),
    "channels last": (lambda w: np.moveaxis(w, 0, -1), 'convolution(c, w, weights_format="XIO", data_format="NCX")',
                      (7, 3, 2, 4)),
    "transposed convolution": (lambda w: np.moveaxis(w, 0, 1),
                               'conv_transpose(c, w, weights_format="IOX", data_format="NCX")', (7, 4, 3, 2)),
}


@pytest.mark.parametrize("bits,most", [(8, 127), (7, 64)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_channel_has_its_own_scale(name, bits, most):
    arrange, statement, shape = PRODUCTS[name]
    rows = RNG.uniform(-1, 1, shape).astype(np.float32) * SPREAD.reshape(-1, *[1] * (len(shape) - 1))
    w = np.ascontiguousarray(arrange(rows))
    g = gq.parse(f"graph(x: f32[5,4], c: f32[1,4,9,9], w: f32[{','.join(map(str, w.shape))}]) {{\n %y = {statement}\n"
                 " return %y\n}").specialize({}, {"w": w})
    product, = products(g)
    each, same = (Scheme(weight_bits=bits, per_channel=c) for c in (True, False))
    q, p = integers(w, *along(product, each))
    assert p.dtype == s8 and p.zps == (0,) * 7 and q.dtype == np.int8
    channels = np.moveaxis(q, p.axis, 0)
    largest = np.abs(channels.astype(int)).reshape(7, -1).max(axis=1)
    np.testing.assert_array_equal(largest, np.array([1, 1, 1, 0, 1, 0, 1]) * most)
    top = np.abs(rows).reshape(7, -1).max(axis=1)
    np.testing.assert_array_equal(p.scales, np.where(top < 1e-30, 1, top / most).astype(np.float32))
    steps = np.float32(p.scales).reshape(-1, *[1] * (w.ndim - 1))
    np.testing.assert_array_equal(channels, np.clip(np.rint(np.moveaxis(w, p.axis, 0) / steps), -most, most))
    np.testing.assert_array_equal(rest_of_weights(w, *along(product, each)), w - dequantize.reference(q, **p.attrs))
    one, whole = integers(w, *along(product, same))
    assert whole.axis is None and whole.scales == (float(np.float32(np.abs(w).max() / most)),)
    np.testing.assert_array_equal(one, np.clip(np.rint(w / np.float32(whole.scales[0])), -most, most))
    assert np.abs(rest_of_weights(w, *along(product, same))).max() <= whole.scales[0] * 0.5001


W = np.float32([[1, -2, 0.5], [4, 0, -1]])


def matmul(bias=None, weights=W):
    g = gq.Graph()
    operands = [g.input("x", dtype="f32", shape=(5, 2)), g.constant(weights)]
    operands += [] if bias is None else [g.constant(np.float32(bias))]
    g.output(g.matmul(*operands), name="y")
    return g


def quantized(g, scheme=None, **options):
    insert(g, {"y": Quantized({0: Parameters(u8, (0.5,), (3,))}, **options)}, scheme or Scheme())
    return next(n for n in g.nodes if n.op.name == "matmul")


def stored(value):
    """The integers and the scales of a dequantized constant."""
    return next(value.node.operands).data, value.node.attrs["scales"]


@pytest.mark.parametrize("per_channel, scales", [(True, [4 / 127, 2 / 127, 1 / 127]), (False, [4 / 127])])
def test_weights_and_biases(per_channel, scales):
    node = quantized(matmul([10, -20, 3]), Scheme(per_channel=per_channel))
    x, w, b = node.inputs
    assert x.node.op.name == "dequantize" and x.node.attrs["scales"] == (0.5,) and x.node.attrs["zps"] == (3,)
    integers, found = stored(w)
    np.testing.assert_allclose(found, scales, rtol=1e-6)
    along = np.float32(found) if per_channel else np.float32(found[0])
    assert np.array_equal(integers, np.rint(W / along)) and integers.dtype == np.int8
    integers, found = stored(b)
    np.testing.assert_allclose(found, 0.5 * np.float32(scales), rtol=1e-6)
    assert integers.dtype == np.int32
    assert np.array_equal(integers, np.rint([10, -20, 3] / np.float64(np.float32(found))))
    assert (b.node.attrs["qtype"], b.node.attrs["axis"]) == (("per_channel", 0) if per_channel else ("per_tensor", 1))


@pytest.mark.parametrize("bias, scheme, fits", [
    ([1, 2, 3], Scheme(bias="f32"), False), ([[1, 2, 3]], Scheme(), False), ([1, 2, 3], Scheme(), True),
    ([0, 0, 1e9], Scheme(), False), ([0, -1e9, 0], Scheme(), False)])
def test_biases_that_stay_in_f32(bias, scheme, fits):
    node = quantized(matmul(bias), scheme)
    assert (node.inputs[2].data is None) == fits
    assert MAX_BIAS == 2**30 and 0.5 / 127 * MAX_BIAS < 1e9


def test_a_bias_whose_scale_would_be_zero_stays_in_f32():
    """The scale of a bias is the product of two scales, which f32 may not hold though it holds both."""
    g = matmul([0, 0, 0], W * np.float32(127 * SMALLEST))
    insert(g, {"y": Quantized({0: Parameters(u8, (SMALLEST,), (3,))})}, Scheme())
    node = next(n for n in g.nodes if n.op.name == "matmul")
    assert node.inputs[2].data is not None and min(stored(node.inputs[1])[1]) == SMALLEST


def test_wide_products_are_sums():
    g = matmul([1, 2, 3])
    quantized(g, wide=True, wide_weights=True)
    assert [n.op.name for n in g.nodes].count("matmul") == 3 and g.outputs[0].node.op.name == "add"
    assert g.outputs[0].name == "y"
    parts = [n for n in g.nodes if n.op.name == "matmul"]
    assert [len([v for v in n.inputs if v is not None]) for n in parts] == [3, 2, 2]
    steps = sorted({v.node.attrs["scales"] for n in parts for v in n.inputs[:1]})
    assert steps == [(0.5 / PART,), (0.5,)]
    x = np.float32(np.random.default_rng(0).uniform(-1, 60, (5, 2)))
    exact = x @ W + np.float32([1, 2, 3])
    narrow = matmul([1, 2, 3])
    quantized(narrow)
    errors = [np.abs(gq.reference(graph, {"x": x}) - exact).max() for graph in (g, narrow)]
    assert errors[0] < errors[1] / 20


def test_parts():
    found = limits(Parameters(u8, (0.5,), (7,)), False)
    assert {k: float(v) for k, v in found.items()} == {"step": 0.5, "low": -7, "high": 248}
    found = limits(Parameters(s8, (0.5,), (0,)), True)
    assert {k: float(v) for k, v in found.items()} == {"step": 0.5 / PART, "low": -128 * PART - 128,
                                                       "high": 127 * PART + 127}


def test_one_pair_for_one_tensor():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(5, 2))
    for k in range(3):
        g.output(g.matmul(x, g.constant(W + k)), name=f"y{k}")
    p, other = Parameters(u8, (0.5,), (3,)), Parameters(u8, (0.25,), (3,))
    insert(g, {f"y{k}": Quantized({0: q}) for k, q in enumerate((p, other, p))}, Scheme())
    sources = [n.inputs[0] for n in g.nodes if n.op.name == "matmul"]
    assert sources[0] is sources[2] is not sources[1]


def test_names_and_statistics_that_there_are_not():
    g = matmul()
    for name in ("exclude", "wide", "wide_weights"):
        with pytest.raises(gq.GraphError, match="no matmul or convolution is named 'z'; there are y"):
            kept(g, Scheme(**{name: ["z"]}))
    assert kept(g, Scheme(exclude=["y"])) == [] and [p.name for p in kept(g, Scheme(wide=["y"]))] == ["y"]
    with pytest.raises(gq.GraphError, match="no statistics of 'x', an operand of 'y'"):
        by_statistics(g, Statistics({}, 1), Scheme())
    t = TensorStatistics(-1.0, 1.0)
    found = by_statistics(g, Statistics({"x": t}, 1), Scheme(method="min_max", wide=["y"]))
    assert found["y"].wide and not found["y"].wide_weights and found["y"].activations.keys() == {0}


def test_replaced_operands():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 2))
    y = g.relu(x)
    z = g.add(y, y)
    g.output(z, name="z")
    replace_operand(z.node, 1, x)
    assert list(z.node.inputs) == [y, x] and y.node in g.nodes
    replace_operand(z.node, 0, x)
    assert list(z.node.inputs) == [x, x] and [n.op.name for n in g.nodes] == ["add"]
