"""Compiled float convolutions: equal to their formula bit for bit at every level, close to the reference."""
from itertools import product

import numpy as np
import pytest
from all_pairs import all_pairs
from compiled import AS_WRITTEN
from geometries import convolution
from levels import WIDTHS, at_each_width, pairs_at_each_width

import graphq as gq
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.numbers.float_sums import float_sums
from graphq.passes.fuse import Fuse

DTYPES = ["f32", "bf16", "f16"]
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 2e-3}


def build(sizes, channels, columns, kernel, dtype="f32", *, images=1, strides=1, pads=0, pads_end=None, dilations=1,
          groups=1, constant=True, op="convolution", epilogue=None, **attrs):
    """A convolution with a bias and its inputs; numbers stand for one value a spatial axis."""
    rng = np.random.default_rng(len(sizes) + channels + 10 * columns)
    dims, geometry = convolution(op, len(sizes), channels, columns, groups, strides=strides, pads=pads,
                                 pads_end=pads_end, dilations=dilations)
    x, w, b = (rng.standard_normal(shape, np.float32).astype(STORAGE[dtype])
               for shape in ((images, *sizes, channels), (*dims, *kernel), (columns,)))
    g, arrays = gq.Graph("conv"), {"x": x}
    source = g.input("x", shape=x.shape, dtype=dtype)
    if constant:
        weights = g.constant(w, name="w")
    else:
        arrays["w"], weights = w, g.input("w", shape=w.shape, dtype=dtype)
    y = getattr(g, op)(source, weights, g.constant(b, name="b"), **geometry, **attrs)
    g.output(y if epilogue is None else epilogue(g, y, arrays, rng, dtype), name="y")
    return g, arrays


def check(g, arrays, *, isa=None, threads=1, strict=True):
    """Compiled: one float partition, and the formula's bits but for NaN's; the result and the reference's."""
    model = gq.compile(g, isa=isa, threads=threads, strict=strict, passes=AS_WRITTEN)
    assert "1 partition (0 integer), 0 operations outside" in model.explain()
    got, formula, wanted = model(arrays), model.formula(arrays), gq.reference(g, arrays)
    assert got.dtype == formula.dtype == wanted.dtype and got.shape == wanted.shape
    nan = np.isnan(got.astype(np.float32))
    assert (nan == np.isnan(formula.astype(np.float32))).all()
    assert np.where(nan, 0, got).tobytes() == np.where(nan, 0, formula).tobytes()
    return got, wanted


def close(got, wanted, dtype):
    got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    bound = TOLERANCE[dtype] * np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=bound)


def residual(g, y, arrays, rng, dtype):
    """relu(y + r)"""
    arrays["r"] = rng.standard_normal(y.shape, np.float32).astype(STORAGE[dtype])
    return g.relu(g.add(y, g.input("r", shape=y.shape, dtype=dtype)))


GEOMETRIES = {
    "3x3": dict(sizes=(7, 6), channels=8, columns=16, kernel=(3, 3), pads=1),
    "odd channels, strides, dilation": dict(sizes=(8, 9), channels=5, columns=19, kernel=(3, 3), images=2,
                                            strides=(2, 1), pads=(1, 2), dilations=(1, 2)),
    "stem": dict(sizes=(9, 8), channels=3, columns=17, kernel=(7, 7), strides=2, pads=3),
    "stem of two channels": dict(sizes=(9, 8), channels=2, columns=5, kernel=(5, 4), strides=(1, 2), pads=(2, 1)),
    "1-D, groups": dict(sizes=(11,), channels=12, columns=8, kernel=(3,), groups=4, images=2, pads=1),
    "3-D": dict(sizes=(3, 4, 5), channels=6, columns=10, kernel=(2, 3, 3), pads=1, groups=2),
    "1x1": dict(sizes=(4, 5), channels=17, columns=33, kernel=(1, 1), images=2),
    "1x1 of one pixel": dict(sizes=(1, 1), channels=17, columns=33, kernel=(1, 1), images=7),
    "1x1 with strides": dict(sizes=(7, 7), channels=17, columns=16, kernel=(1, 1), strides=2),
    "1x1 of a pixel and of padding": dict(sizes=(1, 1), channels=9, columns=8, kernel=(1, 1), pads_end=(0, 1)),
    "cut at one end": dict(sizes=(9, 8), channels=4, columns=8, kernel=(3, 3), strides=(2, 1), pads=1,
                           pads_end=(-2, -3)),
    "1x1, cut": dict(sizes=(5, 6), channels=16, columns=33, kernel=(1, 1), images=2, pads_end=(-2, -1)),
    "depthwise, cut": dict(sizes=(9, 8), channels=21, columns=21, kernel=(3, 3), pads=1, pads_end=(-2, 0), groups=21),
    "same_upper": dict(sizes=(7, 6), channels=4, columns=8, kernel=(4, 3), strides=2, auto_pad="same_upper"),
    "more channels than a chain": dict(sizes=(3, 4), channels=131, columns=20, kernel=(3, 2), pads=1),
    "depthwise": dict(sizes=(5, 6), channels=21, columns=21, kernel=(3, 3), pads=1, groups=21),
    "depthwise, dilated": dict(sizes=(9, 8), channels=40, columns=40, kernel=(3, 2), pads=(2, 1), strides=(2, 1),
                               dilations=(2, 3), groups=40, images=2),
    "depthwise, 1-D, more taps than a chain": dict(sizes=(150,), channels=5, columns=5, kernel=(141,), pads=3,
                                                   groups=5),
    "depthwise, transposed": dict(sizes=(4, 5), channels=7, columns=7, kernel=(3, 2), strides=2, groups=7,
                                  op="conv_transpose"),
    "depthwise, transposed, padded": dict(sizes=(6, 7), channels=40, columns=40, kernel=(4, 4), strides=2, pads=1,
                                          groups=40, op="conv_transpose", images=2, dilations=(1, 2)),
    "depthwise, two columns a channel": dict(sizes=(5, 6), channels=21, columns=42, kernel=(3, 3), pads=1, groups=21),
    "depthwise, eight columns a channel": dict(sizes=(4, 3), channels=3, columns=24, kernel=(3, 2), pads=1, groups=3,
                                               strides=(1, 2), images=2),
    "depthwise, few columns": dict(sizes=(4, 3), channels=3, columns=6, kernel=(2, 2), groups=3),
    "depthwise, one pixel": dict(sizes=(3, 3), channels=12, columns=48, kernel=(3, 3), groups=12),
    "depthwise, three columns a channel": dict(sizes=(4, 5), channels=12, columns=36, kernel=(3, 3), groups=12),
    "depthwise, transposed, four columns a channel": dict(sizes=(4, 5), channels=7, columns=28, kernel=(3, 2),
                                                          strides=2, groups=7, op="conv_transpose"),
    "transposed": dict(sizes=(4, 5), channels=7, columns=8, kernel=(3, 3), strides=2, pads=1, op="conv_transpose",
                       output_padding=[1, 1]),
    "transposed in groups": dict(sizes=(5, 4), channels=6, columns=8, kernel=(3, 2), strides=(2, 1), pads=(1, 0),
                                 dilations=(2, 1), groups=2, op="conv_transpose"),
    "transposed, taps for some phases only": dict(sizes=(4, 3), channels=9, columns=20, kernel=(2, 1), strides=(3, 2),
                                                  op="conv_transpose", images=2),
    "no images": dict(sizes=(5, 6), channels=4, columns=8, kernel=(3, 3), images=0),
}


@pytest.mark.parametrize("name, dtype, width", all_pairs(GEOMETRIES, DTYPES, WIDTHS), indirect=["width"])
def test_geometry(name, dtype, width):
    g, arrays = build(**GEOMETRIES[name], dtype=dtype, epilogue=lambda g, y, *_: g.relu(y))
    close(*check(g, arrays, isa=width, threads=2), dtype)


@pytest.mark.parametrize("case, level", at_each_width(product([1, 2], DTYPES)), indirect=["level"])
def test_residuals(case, level):
    groups, dtype = case
    g, arrays = build((6, 7), 8, 18, (3, 3), dtype, images=2, pads=1, groups=groups, epilogue=residual)
    close(*check(g, arrays, isa=level, threads=2), dtype)


def test_the_order_of_the_sums():
    """Of bf16 each tap is padded to whole pairs, and chains of 256 products run on from tap to tap."""
    g, arrays = build((3, 3), 45, 4, (3, 3), "bf16", constant=False)
    x, w = (arrays[k].astype(np.float32) for k in "xw")
    windows, factors = np.zeros((1, 9, 46), np.float32), np.zeros((9, 46, 4), np.float32)
    windows[0, :, :45], factors[:, :45] = x.reshape(9, 45), w.reshape(4, 45, 9).T
    bias = next(v.data for n in g.nodes for v in n.operands if v.name == "b")
    wanted = float_sums(windows.reshape(1, -1), factors.reshape(-1, 4)) + bias.astype(np.float32)
    got, _ = check(g, arrays, strict=False)
    assert got.reshape(4).tobytes() == wanted.astype(STORAGE["bf16"]).tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts_and_splits(threads):
    g, arrays = build((13, 15), 16, 40, (3, 3), images=2, pads=1)
    got = gq.compile(g, threads=threads)(arrays)
    assert got.tobytes() == gq.compile(g, isa="scalar", threads=1)(arrays).tobytes()


@pytest.mark.parametrize("case, level", at_each_width(product([2, 3, 8], DTYPES)), indirect=["level"])
def test_special_values(case, level):
    """NaN and infinities reach the windows that hold them, and no others: neither zeros that pad taps nor groups."""
    channels, dtype = case
    g, arrays = build((9, 10), channels, 7, (3, 3), dtype, images=2, pads=2)
    arrays["x"][0, 2, 3, 0], arrays["x"][0, 7, 8, 1], arrays["x"][1, 8, 9, -1] = np.nan, np.inf, -np.inf
    got, wanted = check(g, arrays, isa=level)
    assert (np.isfinite(got.astype(np.float32)) == np.isfinite(wanted.astype(np.float32))).all()
    close(got, wanted, dtype)


@pytest.mark.parametrize("groups", [8, 4, 2])
def test_special_values_stay_in_their_group(groups):
    """Groups of floats are not joined with zeros between their weights: 0 times an infinity is NaN."""
    g, arrays = build((4, 5), 8, 8, (3, 3), groups=groups, pads=1)
    arrays["x"][..., 3] = np.inf
    got, _ = check(g, arrays)
    own = np.arange(8) * groups // 8 == 3 * groups // 8
    assert np.isfinite(got[..., ~own]).all() and not np.isfinite(got[..., own]).any()


@pytest.mark.parametrize("name, dtype, width", all_pairs(GEOMETRIES, DTYPES, WIDTHS), indirect=["width"])
def test_weights_that_are_inputs(name, dtype, width):
    """With the kernels of test_geometry."""
    g, arrays = build(**GEOMETRIES[name], dtype=dtype, constant=False, epilogue=lambda g, y, *_: g.relu(y))
    close(*check(g, arrays, isa=width, threads=2), dtype)


@pytest.mark.parametrize("format", ["OIX", "XIO"])
@pytest.mark.parametrize("groups, kernel", [(1, (1, 1)), (1, (3, 2)), (4, (3, 2)), (40, (3, 3))])
def test_weights_that_are_inputs_of_any_format_are_packed_by_kernels(format, groups, kernel):
    g, rng = gq.Graph("formats"), np.random.default_rng(groups)
    dims = dict(zip("OIX", ((40,), (40 // groups,), kernel), strict=True))
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 6, 5, 40), sum((dims[k] for k in format), ())))
    g.output(g.convolution(*(g.input(n, shape=v.shape, dtype="f32") for n, v in zip("xw", (x, w), strict=True)),
                           strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], groups=groups,
                           data_format="NXC", weights_format=format))
    close(*check(g, {"x": x, "w": w}, threads=2), "f32")
    assert "pack weights" not in str(gq.compile(g).profile(x=x, w=w, runs=1))


def test_channels_first_and_quantized_results():
    g, rng = gq.Graph("ncx"), np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 4, 6, 5), (8, 4, 3, 3)))
    y = g.convolution(g.input("x", shape=x.shape, dtype="f32"), g.constant(w), strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1], data_format="NCX", weights_format="OIX")
    g.output(g.quantize(y, dtype="s8", scales=[0.5]), name="y")
    model = gq.compile(g, strict=True)
    assert "convolution partition (convolution, quantize)" in model.explain()
    assert np.abs(model(x=x).astype(int) - gq.reference(g, x=x)).max() <= 1


LINES = {
    "causal": dict(length=67, taps=4, pads=(3, 0)),
    "no padding": dict(length=40, taps=4),
    "dilated": dict(length=33, taps=3, pads=(2, 2), dilations=2),
    "one tap": dict(length=16, taps=1),
    "most taps": dict(length=100, taps=8, pads=(7, 7)),
    "same_upper": dict(length=50, taps=4, auto_pad="same_upper"),
    "same_lower": dict(length=50, taps=4, auto_pad="same_lower"),
}


def lines(length, taps, dtype, *, pads=(0, 0), dilations=1, constant=True, channels=5, format="OIX", open_sizes=False,
          **attrs):
    """silu(a depthwise convolution of a channels-first signal), and its inputs."""
    g, rng = gq.Graph("lines"), np.random.default_rng(0)
    w, b, x = (rng.standard_normal(shape, np.float32).astype(STORAGE[dtype]) for shape in (
        (channels, 1, taps) if format == "OIX" else (taps, 1, channels), (channels,), (2, channels, length)))
    arrays = {"x": x} if constant else {"x": x, "w": w}
    y = g.convolution(g.input("x", shape=(None, channels, None) if open_sizes else x.shape, dtype=dtype),
                      g.constant(w) if constant else g.input("w", shape=w.shape, dtype=dtype), g.constant(b),
                      strides=[1], pads_begin=[pads[0]], pads_end=[pads[1]], dilations=[dilations], groups=channels,
                      data_format="NCX", weights_format=format, **attrs)
    g.output(g.multiply(y, g.sigmoid(y)), name="y")
    return g, arrays


def channels_last_bits(g, arrays):
    """The results of the kernel of channels-last convolutions."""
    last, (x, *more) = gq.Graph("last"), g.inputs
    outer = {x: last.static_transpose(last.input("x", shape=arrays["x"].shape, dtype=x.dtype), order=[0, 2, 1])}
    outer |= {v: last.input(v.name, shape=v.shape, dtype=v.dtype) for v in more}
    for node in g.nodes:
        operands = [outer[v] if v in outer else last.constant(v.data) for v in node.operands]
        attrs = {**node.attrs, "data_format": "NXC"} if "data_format" in node.attrs else node.attrs
        (outer[node.output],) = last.add_node(node.op, operands, attrs)
    last.output(last.static_transpose(outer[g.outputs[0]], order=[0, 2, 1]), name="y")
    model = gq.compile(last, strict=True, passes=AS_WRITTEN)
    assert "depthwise_" in model.explain()
    return model(arrays).tobytes()


@pytest.mark.parametrize("name, dtype, constant, format, level", pairs_at_each_width(
    LINES, DTYPES, [True, False], ["OIX", "XIO"]), indirect=["level"])
def test_lines_of_a_signal_are_not_reordered(name, dtype, constant, format, level):
    g, arrays = lines(**LINES[name], dtype=dtype, constant=constant, format=format)
    got, wanted = check(g, arrays, isa=level, threads=2)
    close(got, wanted, dtype)
    text = gq.compile(g).explain()
    assert "reorder" not in text and "channels-first" not in text and got.tobytes() == channels_last_bits(g, arrays)


def test_lines_of_any_length():
    g, _ = lines(20, 4, "f32", pads=(3, 0), open_sizes=True)
    model = gq.compile(g, strict=True)
    for length in (20, 1, 33, 4):
        fixed, arrays = lines(length, 4, "f32", pads=(3, 0))
        assert model(arrays).tobytes() == gq.compile(fixed)(arrays).tobytes()


def test_an_infinity_stays_in_its_line():
    g, arrays = lines(40, 4, "f32", pads=(3, 0))
    arrays["x"][1, 2, 39] = np.inf
    got, _ = check(g, arrays)
    assert np.argwhere(~np.isfinite(got)).tolist() == [[1, 2, 39]]


def test_integers_come_first():
    """What the integer fusion refuses is one of floats, on a dequantized source."""
    rng = np.random.default_rng(0)
    w = rng.integers(-9, 9, (4, 8, 1, 1)).astype(np.int8)
    varied = dict(scales=[0.1] * 4 + [0.2] * 4, qtype="per_channel", axis=3)
    for source, integer in (dict(scales=[0.1]), 1), (varied, 0):
        g = gq.Graph()
        x = g.dequantize(g.input("x", shape=(1, 3, 3, 8), dtype="u8"), **source)
        g.output(g.convolution(x, g.dequantize(g.constant(w), scales=[0.5]), strides=[1, 1], pads_begin=[0, 0],
                               pads_end=[0, 0], dilations=[1, 1], weights_format="OIX"), name="y")
        model = gq.compile(g, strict=True)
        assert f"({integer} integer), 0 operations outside" in model.explain()
        x = rng.integers(0, 256, (1, 3, 3, 8)).astype(np.uint8)
        close(model(x=x), gq.reference(g, x=x), "f32")


def test_refusals_have_reasons():
    def reasons(shape, data_format="NXC"):
        g = gq.Graph()
        y = g.convolution(g.input("x", shape=shape, dtype="f32"), g.constant(np.ones((4, 3, 1, 1), np.float32)),
                          strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1],
                          data_format=data_format, weights_format="OIX")
        g.output(g.relu(y), name="y")
        count, refusals = Fuse("convolution", floats=True).apply(g)
        assert count == 0
        return " ".join(r.reason for r in refusals)

    assert "channels-first (NCX)" in reasons((1, 3, 5, 5), "NCX")
    assert "known only at the first call" in reasons((None, 5, 5, 3))


def test_a_product_in_front_of_one_pixel_stays_outside():
    """Its result is the anchor's source, whose dimensions are 1 but for the channels (squeeze and excite)."""
    rng = np.random.default_rng(0)
    g = gq.Graph("gate")
    x = g.input("x", shape=(1, 8, 1, 1), dtype="f32")
    w = g.constant(rng.standard_normal((6, 8, 1, 1), np.float32))
    lists = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    y = g.convolution(g.multiply(x, g.sigmoid(x)), w, data_format="NCX", weights_format="OIX", **lists)
    g.output(g.sigmoid(y), name="y")
    arrays = {"x": rng.standard_normal((1, 8, 1, 1), np.float32)}
    np.testing.assert_allclose(gq.compile(g)(**arrays), gq.reference(g, **arrays), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["u16", "s16"])
def test_activations_of_16_bits_stay_in_the_epilogue(level, dtype):
    """quantize and dequantize of what no integer kernel takes are two operations of the convolution before them."""
    def rounded(g, y, arrays, rng, _):
        q = g.dequantize(g.quantize(g.relu(y), dtype=dtype, scales=[1e-3], zps=[100]), scales=[1e-3], zps=[100])
        return g.add(q, g.abs(q))

    g, arrays = build((6, 7), 20, 24, (3, 3), pads=1, epilogue=rounded)
    got = check(g, arrays, isa=level)[0]
    np.testing.assert_allclose(got, gq.reference(g, **arrays), atol=2.1e-3)
