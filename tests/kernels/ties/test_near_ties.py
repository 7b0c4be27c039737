"""Formulas against what they leave out: with everything settled, and with the reference of the graph as written.

A kernel that agrees with its formula says nothing of a mistake that both share: a band around ties that is too narrow,
windows in another place. So formulas, which need no kernels, are compared here with two others: that whose outputs are
all settled by literal sums, which must be the same bits, and `gq.reference`, within a step.
"""
import numpy as np
import pytest
import ties
from all_pairs import all_pairs

import graphq as gq
from graphq.model.build_plan import evaluate_formulas
from graphq.passes.pipeline import run_passes
from graphq.report import survey as report

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def rng(monkeypatch):
    """Each test has numbers of its own, whatever ran before it in its process."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(5))


def formula(graph, feeds):
    """The output after all passes, which must have made an integer partition."""
    after = graph.copy()
    run_passes(after)
    assert any(n.op.name == "partition" and n.attrs["anchor"] in ("matmul", "convolution", "pool") for n in after.nodes)
    return evaluate_formulas(after, feeds)[0]


def settled(graph, feeds):
    """The same with every output settled by its literal sum."""
    with pytest.MonkeyPatch.context() as m:
        ties.settle_everything(m)
        return formula(graph, feeds)


def agree(graph, feeds):
    """The formula is that of everything settled, and within a step of the reference, in almost all elements equal."""
    got = formula(graph, feeds)
    assert np.array_equal(got, settled(graph, feeds))
    want = gq.reference(graph, feeds)
    apart = np.abs(got.astype(int) - want.astype(int))
    assert apart.max() <= 1 and np.count_nonzero(apart) <= max(1, got.size // 5000)
    assert np.unique(got).size > 20


EPILOGUES = {
    "none": lambda g, y: y,
    "relu": lambda g, y: g.relu(y),
    "leaky_relu": lambda g, y: g.leaky_relu(y, alpha=0.1),
    "steep leaky_relu": lambda g, y: g.leaky_relu(y, alpha=3.0),
    "elu": lambda g, y: g.elu(y, alpha=1.0),
    "clamp": lambda g, y: g.clamp(y, min=-1.5, max=2.0),
    "abs": lambda g, y: g.abs(y),
    "hard_swish": lambda g, y: g.hard_swish(y),
    "hard_sigmoid": lambda g, y: g.multiply(g.hard_sigmoid(y, alpha=0.2, beta=0.5), g.constant(np.float32(9.0))),
    "tanh": lambda g, y: g.multiply(g.tanh(y), g.constant(np.float32(5.0))),
    "gelu": lambda g, y: g.gelu(y),
    "scale": lambda g, y: g.multiply(y, g.constant(RNG.uniform(0.5, 4, y.type.dims[-1]).astype(np.float32))),
    "negative scale": lambda g, y: g.multiply(y, g.constant(np.float32(-2.5))),
    "divisor": lambda g, y: g.divide(y, g.constant(np.float32(11.313708) / 16)),
    "divisors": lambda g, y: g.divide(y, g.constant(RNG.uniform(-2, -0.2, y.type.dims[-1]).astype(np.float32))),
    "shift": lambda g, y: g.add(y, g.constant(RNG.normal(size=y.type.dims[-1]).astype(np.float32))),
    "large shift": lambda g, y: g.subtract(g.add(y, g.constant(np.float32(100))), g.constant(np.float32(100))),
    "residual": lambda g, y: g.relu(g.add(y, g.dequantize(g.input("r", shape=y.type.dims, dtype="s8"), scales=[0.02]))),
    "quantize between": lambda g, y: g.leaky_relu(g.dequantize(g.quantize(y, dtype="s8", scales=[0.05], zps=[3]),
                                                               scales=[0.05], zps=[3]), alpha=0.3),
}


def feeds_of(g):
    return {v.name: RNG.integers(np.iinfo(v.dtype.numpy).min, np.iinfo(v.dtype.numpy).max + 1,
                                 v.type.dims).astype(v.dtype.numpy) for v in g.inputs}


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_band_is_wide_enough_whatever_follows_a_matmul(epilogue):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(200, 150), dtype="u8"), scales=[0.013], zps=[128])
    w = g.dequantize(g.constant(RNG.integers(-128, 128, (150, 90)).astype(np.int8)), qtype="per_channel", axis=1,
                     scales=RNG.uniform(0.5e-3, 2e-3, 90).tolist())
    y = EPILOGUES[epilogue](g, g.matmul(x, w, g.constant(RNG.normal(size=90).astype(np.float32))))
    g.output(g.quantize(y, dtype="s8", scales=[0.043], zps=[-7]), name="y")
    after = g.copy()
    run_passes(after)
    (line,) = report.ties(after)  # explain()'s count; quantizes that are not settled have a line each
    assert line.startswith("ties: 1 quantize settled")
    agree(g, feeds_of(g))


@pytest.mark.parametrize("epilogue", ["none", "leaky_relu", "scale", "residual", "quantize between"])
def test_the_band_is_wide_enough_whatever_follows_a_convolution(epilogue):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, 24, 25, 16), dtype="u8"), scales=[0.013], zps=[100])
    w = g.dequantize(g.constant(RNG.integers(-128, 128, (3, 3, 16, 24)).astype(np.int8)), scales=[1.1e-3])
    y = g.convolution(x, w, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
    y = EPILOGUES[epilogue](g, y)
    g.output(g.quantize(y, dtype="u8", scales=[0.031], zps=[128]), name="y")
    agree(g, feeds_of(g))


@pytest.mark.parametrize("stride,dilation,auto_pad,groups", all_pairs(
    (1, 2, 3), (1, 2, 3), ("none", "same_upper", "same_lower", "valid"), (1, 8)))
def test_windows_lie_where_the_reference_has_them(stride, dilation, auto_pad, groups):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, 13, 11, 8), dtype="u8"), scales=[0.02], zps=[90])
    w = g.dequantize(g.constant(RNG.integers(-128, 128, (3, 2, 8 // groups, 16)).astype(np.int8)), scales=[4e-3])
    y = g.convolution(x, w, strides=[stride, 1], pads_begin=[2, 0], pads_end=[1, 2], dilations=[dilation, 4 - dilation],
                      auto_pad=auto_pad, groups=groups)
    g.output(g.quantize(y, dtype="u8", scales=[0.11 if groups == 1 else 0.03], zps=[128]), name="y")
    agree(g, feeds_of(g))


@pytest.mark.parametrize("auto_pad", ["none", "same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("stride,dilation,groups", [(1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 2, 4), (1, 3, 4)])
def test_transposed_windows_lie_where_the_reference_has_them(stride, dilation, groups, auto_pad):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, 7, 6, 8), dtype="u8"), scales=[0.02], zps=[90])
    w = g.dequantize(g.constant(RNG.integers(-128, 128, (8, 3, 3, 2)).astype(np.int8)), scales=[4e-3])
    y = g.conv_transpose(x, w, strides=[stride, 2], pads_begin=[1, 0], pads_end=[0, 1], dilations=[dilation, 1],
                         output_padding=[stride - 1, 0], groups=groups, auto_pad=auto_pad, data_format="NXC",
                         weights_format="IOX")
    g.output(g.quantize(y, dtype="u8", scales=[0.04], zps=[128]), name="y")
    agree(g, feeds_of(g))


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
@pytest.mark.parametrize("size", [5, 6, 7, 8, 9])
@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "avg_pool, padding counts"])
def test_a_pools_last_window_is_where_the_definition_has_it(op, size, rounding):
    """By hand: the window of output o starts at o * stride - begin, and what lies beyond both ends is padding."""
    kernel, stride, begin, end = 3, 2, 1, 1
    x = RNG.integers(0, 256, (1, size, 1)).astype(np.uint8)
    out = (size + begin + end - kernel + (stride - 1) * (rounding == "ceil")) // stride + 1
    if (out - 1) * stride >= size + begin:
        pytest.skip("a window of padding alone")
    want = []
    for o in range(out):
        first = o * stride - begin
        inside = x[0, max(first, 0):max(0, min(first + kernel, size)), 0].astype(float)
        counted = min(first + kernel, size + end) - first if "counts" in op else inside.size
        want.append(inside.max() if op == "max_pool" else inside.sum() / counted)
    g = gq.Graph()
    y = g.dequantize(g.input("x", shape=x.shape, dtype="u8"), scales=[1.0])
    attrs = dict(kernel=[kernel], strides=[stride], pads_begin=[begin], pads_end=[end], rounding_type=rounding)
    y = g.max_pool(y, **attrs) if op == "max_pool" else g.avg_pool(y, exclude_pad="counts" not in op, **attrs)
    g.output(g.quantize(y, dtype="u8", scales=[1.0]), name="y")
    want = np.rint(np.float32(want)).astype(np.uint8)
    for got in (formula(g, {"x": x}), gq.reference(g, x=x), gq.compile(g)(x=x)):
        assert got.ravel().tolist() == want.tolist()


@pytest.mark.parametrize("k,integer", [(131_071, True), (131_072, False)])
def test_a_sum_of_just_the_least_integer(k, integer):
    """128 * -128 * 2**17 is -2**31, which s32 has; but so large a sum of the other sign it has not."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, k), dtype="s8"), scales=[1.0])
    w = g.dequantize(g.constant(np.full((k, 1), -128, np.int8)), scales=[1.0])
    g.output(g.matmul(x, w), name="y")
    model = gq.compile(g)
    assert ("beyond s32" not in model.explain()) == integer
    for value in (-128, 127):
        data = np.full((1, k), value, np.int8)
        assert model(x=data)[0, 0] == np.float32(-128.0 * value * k) == gq.reference(g, x=data)[0, 0]


@pytest.mark.parametrize("taps,integer", [(257, True), (258, False)])
def test_the_bound_of_a_convolution_counts_its_taps(taps, integer):
    """255 * 128 * 256 * 257 is below 2**31, and with one tap more it is not."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, taps, 256), dtype="u8"), scales=[1.0])
    w = g.dequantize(g.constant(np.full((taps, 256, 1), -128, np.int8)), scales=[1.0])
    y = g.convolution(x, w, strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    g.output(y, name="y")
    after = g.copy()
    run_passes(after)
    assert any(n.op.name == "partition" and n.attrs["anchor"] == "convolution" and
               n.attrs["body"].inputs[0].dtype.name == "u8" for n in after.nodes) == integer
    data = np.full((1, taps, 256), 255, np.uint8)
    got = evaluate_formulas(after, {"x": data})[0]
    assert got.item() == gq.reference(g, x=data).item() == np.float32(-255.0 * 128 * 256 * taps)
