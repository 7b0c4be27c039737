"""Convolutions of dynamically quantized images: equal to the reference, op by op, padding being the zero point."""
import numpy as np
import pytest
from levels import pairs_at_each_width

import graphq as gq
from graphq.testing import random_inputs

SHAPES = {  # image, weights, attributes
    "3x3": ((2, 8, 9, 10), (16, 8, 3, 3), dict(pads_begin=[1, 1], pads_end=[1, 1])),
    "few channels": ((1, 3, 16, 17), (8, 3, 3, 3), dict(pads_begin=[1, 1], pads_end=[1, 1], strides=[2, 2])),
    "depthwise": ((1, 8, 9, 10), (8, 1, 3, 3), dict(pads_begin=[1, 1], pads_end=[1, 0], groups=8)),
    "groups": ((1, 8, 9, 10), (16, 4, 3, 3), dict(pads_begin=[1, 1], pads_end=[1, 1], groups=2)),
    "pixels": ((1, 8, 9, 10), (16, 8, 1, 1), {}),
    "dilated line": ((1, 8, 20), (16, 8, 5), dict(pads_begin=[3], pads_end=[2], dilations=[2])),
    "no padding": ((1, 8, 9, 10), (16, 8, 3, 3), {}),
}


def conv_integer(g, x, w, zx, zw=None, **given):
    n = len(w.shape) - 2
    attrs = dict(strides=[1] * n, pads_begin=[0] * n, pads_end=[0] * n, dilations=[1] * n) | given
    return g.conv_integer(x, w, zx, zw, **attrs)


def dynamic_convolution(image, weights, attrs, zw):
    """DynamicQuantizeLinear -> ConvInteger -> Cast -> Mul -> Add -> Relu as ONNX files have them."""
    g, rng = gq.Graph(), np.random.default_rng(0)

    def s8(*shape):
        return np.asarray(rng.integers(-128, 128, shape)).astype(np.int8)

    x, channels = g.input("x", shape=image, dtype="f32"), (weights[0], *[1] * (len(weights) - 2))
    scale, zp = g.dynamic_range(x)
    zps = {"none": None, "one": s8(), "channel": s8(weights[0])}[zw]
    y = conv_integer(g, g.dynamic_quantize(x, scale, zp, dtype="u8"), g.constant(s8(*weights)), zp,
                     None if zps is None else g.constant(zps), **attrs)
    m = g.multiply(scale, g.constant(rng.uniform(1e-3, 4e-3, (1, *channels)).astype(np.float32)))
    y = g.multiply(g.cast(y, dtype="f32"), m)
    g.output(g.relu(g.add(y, g.constant(rng.standard_normal(channels).astype(np.float32)))), name="y")
    return g


def partitions(model):
    return [" ".join(n.op.name for n in p.attrs["body"].nodes) for p in model.graph.nodes if p.op.name == "partition"]


@pytest.mark.parametrize("shape, zw, level", pairs_at_each_width(SHAPES, ["none", "one", "channel"]),
                         indirect=["level"])
def test_one_partition_equal_to_the_reference(level, shape, zw):
    g = dynamic_convolution(*SHAPES[shape], zw)
    inputs = random_inputs(g)
    want = gq.reference(g, inputs)
    for threads in (1, 2):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        got = model(inputs)
        assert np.array_equal(got, model.formula(inputs)) and np.array_equal(got, want)
    assert partitions(model) == ["dynamic_quantize",
                                 "multiply dynamic_dequantize dequantize convolution multiply add relu"]
    assert "(1 integer)" in model.explain()


def test_known_zero_points(level):
    g = gq.Graph()
    y = conv_integer(g, g.input("x", shape=(1, 3, 5, 6), dtype="s8"), g.input("w", shape=(4, 3, 2, 2), dtype="s8"),
                     g.constant(np.int8(-7)), pads_begin=[1, 1], pads_end=[0, 0])
    g.output(g.cast(y, dtype="f32"), name="y")
    inputs = random_inputs(g)
    model = gq.compile(g, isa=level, strict=True)
    assert partitions(model) == ["dequantize dequantize convolution"]
    assert np.array_equal(model(inputs), gq.reference(g, inputs))


@pytest.mark.parametrize("zps", ["u8", "s8", "s32"])
def test_onednn_form(level, zps):
    """Scales and zero points of the image are tensors."""
    g, rng = gq.Graph(), np.random.default_rng(1)
    x = g.dynamic_dequantize(g.input("x", shape=(1, 7, 6, 5), dtype="u8"), g.input("s", shape=(1,), dtype="f32"),
                             g.input("z", shape=(1,), dtype=zps))
    w = g.dequantize(g.constant(rng.integers(-128, 128, (3, 3, 5, 9)).astype(np.int8)), scales=[0.01])
    y = g.convolution(x, w, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.5], zps=[3]), name="y")
    model = gq.compile(g, isa=level, threads=2, strict=True)
    assert partitions(model) == ["dynamic_dequantize dequantize convolution relu quantize"]
    for zp in (0, 100):
        z = np.array([zp], gq.dtypes.as_dtype(zps).numpy)
        inputs = {**random_inputs(g), "s": np.array([0.02], np.float32), "z": z}
        got = model(inputs)
        assert np.array_equal(got, model.formula(inputs))
        assert np.abs(got.astype(int) - gq.reference(g, inputs)).max() <= 1


def test_zero_points_of_the_weights_that_are_tensors():
    g = gq.Graph()
    y = conv_integer(g, g.input("x", shape=(1, 3, 5, 6), dtype="u8"), g.input("w", shape=(4, 3, 2, 2), dtype="u8"),
                     None, g.input("zw", shape=(), dtype="u8"))
    g.output(g.cast(y, dtype="f32"), name="y")
    assert "the zero points of the weights are not constant" in gq.compile(g).explain()
