"""Scales of 0 and below: families give the reference's numbers at every level, and say what they leave in floats."""
import numpy as np
import pytest
from all_pairs import all_pairs

import graphq as gq
from graphq.kernels.target import isa

RNG = np.random.default_rng(0)
SIGNS = [0.25, -0.25, 0.0]
WINDOW = dict(strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0])


def integers(*shape):
    return RNG.integers(-20, 20, shape).astype(np.int8)


def weights(g, scale, *shape, axis):
    scales = [0.5] * (shape[axis] - 1) + [scale]
    return g.dequantize(g.constant(integers(*shape)), qtype="per_channel", axis=axis, scales=scales)


def convolution(g, x, scale, groups=1):
    w = weights(g, scale, 4, 4 // groups, 2, 2, axis=0)
    return g.convolution(x, w, **WINDOW, dilations=[1, 1], groups=groups, data_format="NXC", weights_format="OIX")


def groups(g, x, scale):
    w = g.dequantize(g.constant(integers(4, 3, 2, 2)), qtype="per_channel", axis=1, group_axis=0,
                     scales=[1, 0.5, 1, 0.25, 1, scale])
    return g.conv_transpose(x, w, **WINDOW, dilations=[1, 1], groups=2, data_format="NXC", weights_format="IOX")


PRODUCTS = {
    "matmul": lambda g, x, s: g.matmul(x, weights(g, s, 4, 5, axis=1)), "convolution": convolution,
    "depthwise": lambda g, x, s: convolution(g, x, s, 4), "conv_transpose": groups}
OTHERS = {
    "max_pool": lambda g, x: g.max_pool(x, kernel=[2, 2], data_format="NXC", **WINDOW),
    "avg_pool": lambda g, x: g.avg_pool(x, kernel=[2, 2], data_format="NXC", exclude_pad=False, **WINDOW),
    "nearest": lambda g, x: g.interpolate(x, mode="nearest", sizes=[9, 9], data_format="NXC"),
    "linear": lambda g, x: g.interpolate(x, mode="linear", sizes=[9, 9], data_format="NXC"),
    "softmax": lambda g, x: g.softmax(x, axis=-1),
    "reduce_max": lambda g, x: g.reduce_max(x, axes=[-1], keep_dims=True),
    "concat": lambda g, x: g.concat(x, g.dequantize(g.input("z", shape=x.type.dims, dtype="s8"), scales=[0.5]), axis=3),
    "relu": lambda g, x: g.relu(x), "quantize": lambda g, x: x}


def equal(build, scale, quantized):
    """Compile a graph for each level, and compare its integers with the reference's; returns the last model."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=[1, 6, 6, 4], dtype="s8"), scales=[scale], zps=[3])
    y = g.quantize(build(g, x), dtype="s8", scales=[quantized], zps=[-2])
    g.output(g.max_pool(g.dequantize(y, scales=[quantized]), kernel=[2, 2], data_format="NXC", **WINDOW))
    g.output(y)
    feeds = {v.name: integers(*v.type.dims) for v in g.inputs}
    want = gq.reference(g, feeds)
    for level in isa.available():
        model = gq.compile(g, isa=level.name)
        for got, wanted in zip(model(feeds).values(), want.values(), strict=True):
            np.testing.assert_array_equal(got, wanted, level.name)
    return model


@pytest.mark.parametrize("name, scale, quantized", all_pairs(OTHERS, SIGNS, [0.5, -0.5]))
def test_one_scale_of_any_sign(name, scale, quantized):
    text = equal(OTHERS[name], scale, quantized).explain()
    assert ("its kernels take positive scales, and a scale is" in text) == (
        name == "max_pool" and scale <= 0 or quantized < 0)


@pytest.mark.parametrize("name, scale, of, quantized", all_pairs(
    PRODUCTS, SIGNS, ["source", "weights"], [0.5, -0.5]))
def test_products_of_scales_of_any_sign(name, scale, of, quantized):
    """Those of positive scales alone are computed in integers; the report has the scale that keeps others in floats."""
    x, w = (scale, 0.25) if of == "source" else (0.5, scale)
    text = equal(lambda g, x: PRODUCTS[name](g, x, w), x, quantized).explain()
    assert ("in integer partitions" in text and "coverage: 100%" in text) == (scale > 0)
    for s in {scale, quantized} if scale > 0 else {scale}:
        refused = f"its kernels take positive scales, and a scale is {s:g}\n    edit: make the scales positive"
        assert (refused in text) == (s <= 0)


@pytest.mark.parametrize("scale", SIGNS)
def test_a_second_operand_of_any_sign_is_added_in_the_partition(scale):
    def residual(g, x):
        added = g.dequantize(g.input("z", shape=[1, 6, 6, 5], dtype="s8"), scales=[scale], zps=[1])
        return g.add(g.matmul(x, weights(g, 0.25, 4, 5, axis=1)), added)

    (partition, *_) = equal(residual, 0.5, 0.5).graph.nodes_of({"partition"})
    assert {"matmul", "add", "quantize"} <= {n.op.name for n in partition.attrs["body"].nodes}
