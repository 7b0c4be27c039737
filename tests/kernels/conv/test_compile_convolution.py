"""Compiled integer convolutions: equal to their formula at every level, close to the reference, odd geometry."""
import re
from itertools import product

import numpy as np
import pytest
from bound import BOUND
from geometries import convolution
from levels import at_each_width, pairs_at_each_width

import graphq as gq
from graphq.kernels.target import isa
from graphq.passes.pipeline import PIPELINE
from graphq.testing import random_inputs

NUMPY = {"u8": np.uint8, "s8": np.int8}


def numbers(rng, shape, dtype):
    lo, hi = (0, 256) if dtype == "u8" else (-128, 128)
    return rng.integers(lo, hi, shape).astype(NUMPY[dtype])


def build(sizes, channels, columns, kernel, *, images=1, strides=1, pads=0, dilations=1, groups=1, x="u8", w="s8",
          x_zp=120, w_zps=0, constant=True, op="convolution", epilogue=None, out="u8", pads_end=None, x_scales=None,
          w_axis=None, w_group_axis=None, **attrs):
    """A quantized convolution and its inputs; numbers stand for one value a spatial axis."""
    rng = np.random.default_rng(len(sizes) + channels + 10 * columns)
    dims, geometry = convolution(op, len(sizes), channels, columns, groups, strides=strides, pads=pads,
                                 pads_end=pads_end, dilations=dilations)
    g = gq.Graph("conv")
    arrays = {"x": numbers(rng, (images, *sizes, channels), x)}
    source = g.input("x", shape=arrays["x"].shape, dtype=x)
    weights = numbers(rng, (*dims, *kernel), w)
    weights[:, :dims[1] // 2] //= 2  # so that vpmaddubsw takes some
    if constant:
        weights = g.constant(weights, name="w")
    else:
        arrays["w"], weights = weights, g.input("w", shape=weights.shape, dtype=w)
    axis = int(op == "conv_transpose" and columns > groups) if w_axis is None else w_axis
    many = dims[axis] * (1 if w_group_axis is None else groups)
    quantized = {"qtype": "per_channel", "axis": axis, "scales": rng.uniform(1e-4, 9e-4, many).tolist(),
                 "zps": [w_zps] * many, "group_axis": w_group_axis} if many > 1 else {"scales": [4e-4], "zps": [w_zps]}
    bias = g.constant(rng.standard_normal(columns).astype(np.float32), name="b")
    given = {"scales": [0.02], "zps": [x_zp]} if x_scales is None else \
        {"qtype": "per_channel", "axis": -1, "scales": x_scales, "zps": x_zp}
    y = getattr(g, op)(g.dequantize(source, **given), g.dequantize(weights, **quantized), bias, **geometry,
                       **attrs)
    if epilogue is not None:
        y = epilogue(g, y, arrays, rng)
    g.output(g.quantize(y, dtype=out, scales=[0.05], zps=[3]), name="y")
    return g, arrays


def check(g, arrays, isa=None, threads=1, strict=True):
    """Compiled: the formula's bits, one integer partition, and the reference's numbers but for rare single steps."""
    model = gq.compile(g, isa=isa, threads=threads, strict=strict)
    assert "1 partition (1 integer), 0 operations outside" in model.explain()
    got, expected = model(arrays), gq.reference(g, arrays)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert (got == model.formula(arrays)).all()
    off = np.abs(got.astype(int) - expected.astype(int))
    assert off.max(initial=0) <= 1 and np.count_nonzero(off) <= max(1, off.size // 10_000)
    return got


def residual(g, y, arrays, rng):
    """relu(y + dequantize(r))"""
    arrays["r"] = numbers(rng, y.shape, "s8")
    return g.relu(g.add(y, g.dequantize(g.input("r", shape=y.shape, dtype="s8"), scales=[0.03], zps=[-5])))


def squeeze_excite(g, y, arrays, rng):
    """y * s, with one factor an image and channel"""
    arrays["s"] = numbers(rng, (y.shape[0], *[1] * (len(y.shape) - 2), y.shape[-1]), "u8")
    return g.multiply(y, g.dequantize(g.input("s", shape=arrays["s"].shape, dtype="u8"), scales=[1 / 255]))


def columns_of_pixels(g, y, arrays, rng):
    """y + c, with one number an image column"""
    arrays["c"] = rng.standard_normal((1, y.shape[2], 1)).astype(np.float32)
    return g.add(y, g.input("c", shape=arrays["c"].shape, dtype="f32"))


GEOMETRIES = {
    "3x3": dict(sizes=(7, 9), channels=8, columns=16, kernel=(3, 3), pads=1),
    "odd channels, strides, dilation": dict(sizes=(8, 9), channels=5, columns=19, kernel=(3, 3), images=2,
                                            strides=(2, 1), pads=(1, 2), dilations=(1, 2), x="s8", x_zp=-7),
    "stem": dict(sizes=(13, 12), channels=3, columns=17, kernel=(7, 7), strides=2, pads=3),
    "stem of s8": dict(sizes=(13, 12), channels=3, columns=17, kernel=(7, 7), strides=2, pads=3, x="s8", x_zp=4),
    "dilated few channels": dict(sizes=(9, 9), channels=3, columns=5, kernel=(3, 3), dilations=2),
    "1-D, groups": dict(sizes=(11,), channels=12, columns=8, kernel=(3,), groups=4, images=2, pads=1),
    "3-D": dict(sizes=(4, 5, 6), channels=6, columns=10, kernel=(2, 3, 3), pads=1, groups=2),
    "1x1": dict(sizes=(6, 7), channels=16, columns=33, kernel=(1, 1), images=2),
    "1x1 of one pixel": dict(sizes=(1, 1), channels=16, columns=33, kernel=(1, 1), images=7),
    "1x1 to one pixel": dict(sizes=(2, 3), channels=16, columns=33, kernel=(1, 1), images=7, strides=(2, 3)),
    "1x1 of one pixel, in groups": dict(sizes=(1, 1), channels=34, columns=6, kernel=(1, 1), groups=2, images=3),
    "1x1 in groups": dict(sizes=(6, 7), channels=34, columns=6, kernel=(1, 1), groups=2, images=2),
    "groups, some joined": dict(sizes=(6, 7), channels=20, columns=50, kernel=(3, 3), groups=10, images=2, pads=1),
    "groups joined of weights with zero points": dict(sizes=(5, 6), channels=8, columns=24, kernel=(3, 2), groups=8,
                                                      w="u8", w_zps=3, x="s8"),
    "1x1 with strides": dict(sizes=(7, 7), channels=17, columns=16, kernel=(1, 1), strides=2),
    "a pad larger than the kernel": dict(sizes=(5, 4), channels=4, columns=8, kernel=(2, 3), pads=5),
    "1x1 of a pixel and of padding": dict(sizes=(1, 1), channels=20, columns=8, kernel=(1, 1), pads=0, pads_end=(0, 1)),
    "pads at one end": dict(sizes=(6, 6), channels=4, columns=8, kernel=(3, 3), strides=2, pads=0, pads_end=1),
    "cut at one end": dict(sizes=(9, 8), channels=4, columns=8, kernel=(3, 3), strides=(2, 1), pads=1,
                           pads_end=(-2, -3)),
    "1x1, cut": dict(sizes=(5, 6), channels=16, columns=33, kernel=(1, 1), images=2, pads_end=(-2, -1)),
    "depthwise, cut": dict(sizes=(9, 8), channels=16, columns=16, kernel=(3, 3), pads=1, pads_end=(-2, 0), groups=16),
    "same_upper": dict(sizes=(7, 6), channels=4, columns=8, kernel=(4, 3), strides=2, auto_pad="same_upper"),
    "one pixel": dict(sizes=(3, 3), channels=20, columns=40, kernel=(3, 3)),
    "one output channel": dict(sizes=(5, 6), channels=4, columns=1, kernel=(3, 3), pads=1),
    "many channels": dict(sizes=(5, 5), channels=130, columns=70, kernel=(3, 3), pads=1),
    "long lines": dict(sizes=(3, 40), channels=64, columns=20, kernel=(3, 3), pads=1, x="s8", x_zp=-3),
    "long lines, strides": dict(sizes=(5, 67), channels=80, columns=33, kernel=(3, 3), strides=2, pads=1),
    "u8 weights about 128": dict(sizes=(6, 6), channels=4, columns=8, kernel=(3, 3), pads=1, w="u8", w_zps=128),
    "u8 weights": dict(sizes=(6, 6), channels=4, columns=8, kernel=(3, 3), pads=1, w="u8"),
    "s8 weights with zero points": dict(sizes=(6, 6), channels=3, columns=8, kernel=(3, 3), pads=1, w_zps=9),
    "transposed": dict(sizes=(5, 6), channels=4, columns=8, kernel=(3, 3), strides=2, pads=1, op="conv_transpose",
                       output_padding=[1, 1]),
    "transposed in groups": dict(sizes=(5, 6), channels=6, columns=8, kernel=(3, 2), strides=(2, 1), pads=(1, 0),
                                 dilations=(2, 1), groups=2, op="conv_transpose"),
    "transposed, taps for some phases only": dict(sizes=(4, 5), channels=24, columns=20, kernel=(2, 1), strides=(3, 2),
                                                  op="conv_transpose", images=2),
    "transposed, 1-D": dict(sizes=(7,), channels=5, columns=6, kernel=(4,), strides=2, pads=1, images=2,
                            op="conv_transpose"),
    "transposed, 3-D": dict(sizes=(3, 2, 4), channels=8, columns=6, kernel=(3, 2, 4), strides=2, pads=1,
                            op="conv_transpose"),
    "transposed of s8": dict(sizes=(9, 20), channels=64, columns=24, kernel=(2, 2), strides=2, x="s8", x_zp=3,
                             op="conv_transpose"),
    "1x1 of weights with zero points": dict(sizes=(6, 7), channels=16, columns=9, kernel=(1, 1), w_zps=9),
    "transposed depthwise": dict(sizes=(5, 6), channels=5, columns=5, kernel=(3, 3), strides=2, groups=5,
                                 op="conv_transpose"),
    "depthwise": dict(sizes=(7, 9), channels=37, columns=37, kernel=(3, 3), pads=1, groups=37),
    "depthwise of s8, strides": dict(sizes=(9, 8), channels=17, columns=17, kernel=(3, 3), strides=2, pads=1, groups=17,
                                     x="s8", x_zp=5),
    "depthwise, two columns a channel": dict(sizes=(6, 5), channels=3, columns=6, kernel=(3, 3), groups=3, x="s8"),
    "depthwise, four columns a channel": dict(sizes=(7, 6), channels=29, columns=116, kernel=(3, 2), groups=29, pads=1,
                                              strides=2, images=2),
    "depthwise, eight columns a channel": dict(sizes=(6, 5), channels=9, columns=72, kernel=(7, 5), groups=9, pads=3,
                                               w="u8", w_zps=99),
    "depthwise, three columns a channel": dict(sizes=(6, 5), channels=20, columns=60, kernel=(3, 3), groups=20),
    "transposed depthwise, two columns a channel": dict(sizes=(5, 6), channels=21, columns=42, kernel=(3, 3), strides=2,
                                                        groups=21, op="conv_transpose", x="s8", x_zp=3),
    "transposed in groups, weights with zero points": dict(
        sizes=(5, 6), channels=6, columns=24, kernel=(3, 2), groups=3, op="conv_transpose", w="u8", w_zps=99, x="s8"),
    "transposed depthwise, a scale a group": dict(sizes=(5, 6), channels=21, columns=63, kernel=(2, 2), strides=2,
                                                  groups=21, op="conv_transpose", w_axis=0),
    "transposed, scales of all groups": dict(sizes=(5, 6), channels=6, columns=8, kernel=(3, 2), strides=2, groups=2,
                                             op="conv_transpose", w_axis=1, w_group_axis=0, w="u8", w_zps=7),
    "transposed depthwise, scales of all groups": dict(sizes=(5, 6), channels=5, columns=5, kernel=(3, 3), groups=5,
                                                       op="conv_transpose", w_axis=1, w_group_axis=0),
    "no output channels": dict(sizes=(5, 6), channels=4, columns=0, kernel=(3, 3)),
    "no images": dict(sizes=(5, 6), channels=4, columns=8, kernel=(3, 3), images=0),
}


@pytest.mark.parametrize("name, level", at_each_width(GEOMETRIES), indirect=["level"])
def test_geometry(name, level):
    g, arrays = build(**GEOMETRIES[name], epilogue=lambda g, y, *_: g.relu(y))
    check(g, arrays, level, threads=2)


@pytest.mark.parametrize("columns,kernel", [(24, "depthwise_u8"), (36, "matmul")])
def test_kernel_of_columns_a_channel(columns, kernel):
    g, _ = build((6, 5), 12, columns, (3, 3), groups=12)
    assert kernel in gq.compile(g).explain()


@pytest.mark.parametrize("case, level", at_each_width(product([1, 2], [residual, squeeze_excite, columns_of_pixels])),
                         indirect=["level"])
def test_epilogues(case, level):
    groups, epilogue = case
    g, arrays = build((6, 7), 8, 18, (3, 3), images=2, pads=1, groups=groups, epilogue=epilogue, out="s8")
    check(g, arrays, level, threads=2)


@pytest.mark.parametrize("epilogue", [None, residual, squeeze_excite])
def test_images_of_one_pixel_are_the_rows_of_one_product(epilogue):
    """As the pixels of an image are; blocks of one row each would read the weights for each."""
    steps = []
    for images, sizes in ((12, (1, 1)), (1, (3, 4))):
        g, arrays = build(sizes, 24, 70, (1, 1), images=images, epilogue=epilogue)
        check(g, arrays)
        steps.append(re.search(r"0: (\w+) +\((\d+) block", gq.compile(g, threads=1).explain(kernels=True)).groups())
    assert steps[0] == steps[1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts_and_splits(threads):
    g, arrays = build((29, 31), 32, 80, (3, 3), images=2, pads=1)
    got = check(g, arrays, threads=threads)
    assert (got == gq.compile(g, isa="scalar", threads=1)(arrays)).all()


@pytest.mark.parametrize(("dtype", "zp"), [("u8", 0), ("u8", 255), ("s8", -128), ("s8", 5)])
@pytest.mark.parametrize(("groups", "inner"), [(1, 7), (1, 12), (2, 16), (3, 6), (20, 1)])
def test_pairs_of_weights_on_the_bound(level, groups, inner, dtype, zp):
    """Of windows and groups; sums are integers that f32 holds, so that they equal the reference's."""
    rng = np.random.default_rng(inner)
    pairs = rng.permutation(np.array([(*x, *y) for x in BOUND for y in BOUND])).ravel()
    w = np.resize(pairs, (3, 3, 20 * groups, inner)).transpose(2, 3, 0, 1).astype(np.int8)
    ends = np.array([0, 255]) if dtype == "u8" else np.array([-128, 127])
    x = rng.choice(ends, (2, 5, 6, groups * inner)).astype(NUMPY[dtype])
    x[0] = ends[1]
    g = gq.Graph("bound")
    source = g.dequantize(g.input("x", shape=x.shape, dtype=dtype), scales=[1.0], zps=[zp])
    y = g.convolution(source, g.dequantize(g.constant(w), scales=[1.0]), strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1], groups=groups, data_format="NXC", weights_format="OIX")
    g.output(y, name="y")
    model = gq.compile(g, isa=level, strict=True)
    assert (model(x=x) == gq.reference(g, {"x": x})).all() and model.coverage().share == 1


@pytest.mark.parametrize("x_zp", [0, 255])
def test_padding_is_the_zero_point(x_zp):
    """A source that is the zero point everywhere is 0.0 everywhere, padding included: the result is the bias."""
    g, arrays = build((5, 5), 4, 8, (3, 3), pads=2, x_zp=x_zp)
    arrays["x"][...] = x_zp
    got = check(g, arrays)
    assert (got == got[0, 0, 0]).all()


@pytest.mark.parametrize("x", ["u8", "s8"])
@pytest.mark.parametrize("op", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("groups", [1, 2])
def test_weights_that_are_inputs(x, op, groups):
    g, arrays = build((6, 6), 6, 8, (3, 3), pads=1, strides=2, constant=False, x=x, x_zp=9, op=op, groups=groups)
    check(g, arrays, strict=False)


def test_channels_first_runs_channels_last():
    g = gq.Graph("ncx")
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (1, 4, 6, 5), "u8"), numbers(rng, (8, 4, 3, 3), "s8")
    y = g.convolution(g.dequantize(g.input("x", shape=x.shape, dtype="u8"), scales=[0.1], zps=[7]),
                      g.dequantize(g.constant(w), scales=[0.01]), strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1],
                      dilations=[1, 1], data_format="NCX", weights_format="OIX")
    g.output(g.quantize(y, dtype="s8", scales=[0.5]), name="y")
    model = gq.compile(g)
    assert "convolution partition" in model.explain()
    assert np.abs(model(x=x).astype(int) - gq.reference(g, x=x)).max() <= 1


def test_a_dequantize_stays_with_the_operation_that_follows():
    g = gq.Graph("chain")
    rng = np.random.default_rng(1)
    x = g.dequantize(g.input("x", shape=(1, 8, 8, 4), dtype="u8"), scales=[0.02], zps=[7])
    w = g.dequantize(g.constant(numbers(rng, (8, 4, 3, 3), "s8")), scales=[0.01])
    lists = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    y = g.quantize(g.convolution(x, w, **lists, dilations=[1, 1], weights_format="OIX"), dtype="u8", scales=[0.1])
    y = g.quantize(g.max_pool(g.dequantize(y, scales=[0.1]), **lists, kernel=[2, 2]), dtype="u8", scales=[0.1])
    w = g.dequantize(g.constant(numbers(rng, (200, 5), "s8")), scales=[0.01])
    y = g.matmul(g.dequantize(g.static_reshape(y, shape=[1, 200]), scales=[0.1]), w)
    g.output(g.quantize(y, dtype="s8", scales=[0.3]), name="y")
    model = gq.compile(g, strict=True)
    kinds = [n.attrs["anchor"] for n in model.graph.nodes if n.op.name == "partition"]
    assert kinds == ["convolution", "pool", "matmul"]
    arrays = {"x": numbers(rng, (1, 8, 8, 4), "u8")}
    assert (model(arrays) == model.formula(arrays)).all()


def refusals(g):
    graph = g.copy()
    from graphq.passes.pipeline import run_passes

    return " ".join(r.reason or "" for r in run_passes(graph, PIPELINE))


def test_refusals_have_reasons():
    g, _ = build((6, 6), 4, 8, (3, 3), constant=False, w_zps=3)
    assert "the weights are u8 or have zero points, and are not constant" in refusals(g)


def test_sums_beyond_s32_are_refused():
    g, _ = build((1,), 70_000, 1, (1,), constant=False, x_zp=255)
    assert "beyond s32" in refusals(g)


def test_depthwise_weights_that_are_not_constant(level):
    """u8 with zero points: packed at run time, with their column sums."""
    rng = np.random.default_rng(5)
    g = gq.Graph()
    x, w = g.input("x", shape=(2, 5, 4, 21), dtype="s8"), g.input("w", shape=(3, 3, 1, 21), dtype="u8")
    quantized = g.dequantize(w, qtype="per_channel", axis=3, scales=rng.uniform(1e-3, 2e-3, 21).tolist(),
                             zps=rng.integers(90, 160, 21).tolist())
    y = g.convolution(g.dequantize(x, scales=[0.02], zps=[-9]), quantized, strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1], groups=21)
    g.output(g.quantize(y, dtype="s8", scales=[0.05]), name="y")
    check(g, {"x": numbers(rng, (2, 5, 4, 21), "s8"), "w": numbers(rng, (3, 3, 1, 21), "u8")}, isa=level)


@pytest.mark.parametrize("x, columns, constant, level", pairs_at_each_width(
    ["u8", "s8"], [40, 80], [True, False]), indirect=["level"])
def test_depthwise_sources_with_a_scale_for_each_channel(level, x, columns, constant):
    """Each output channel reads one input channel, whose zero point is its padding, too."""
    low = -128 if x == "s8" else 0
    scales, zps = np.linspace(0.004, 0.04, 40).tolist(), [low + 6 * k for k in range(40)]
    options = dict(groups=40, pads=1, strides=[1, 2], x=x, x_scales=scales, x_zp=zps, constant=constant)
    for threads in (1, 2):
        check(*build((9, 11), 40, columns, (3, 3), **options), isa=level, threads=threads)


def test_sources_with_a_scale_for_each_channel_that_are_summed_up_stay_floats():
    g, arrays = build((5, 6), 8, 8, (3, 3), groups=2, x_scales=[0.01 * k + 0.01 for k in range(8)], x_zp=[3] * 8)
    model = gq.compile(g)
    assert "0 integer" in model.explain() and "its scale would vary inside the sum" in model.explain()
    assert np.abs(model(arrays).astype(int) - gq.reference(g, arrays)).max() <= 1


@pytest.mark.parametrize("kernel", [(1, 1), (1, 3)])
def test_a_line_of_one_channel_and_a_residual(level, kernel):
    pads = [0, kernel[1] // 2]
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, 1, 16, 20), dtype="u8"), scales=[0.05], zps=[7])
    w = np.random.default_rng(0).integers(-99, 100, (1, 20, *kernel)).astype(np.int8)
    y = g.convolution(x, g.dequantize(g.constant(w), scales=[0.01]), strides=[1, 1], pads_begin=pads, pads_end=pads,
                      dilations=[1, 1], weights_format="OIX")
    z = g.add(y, g.dequantize(g.input("z", shape=(1, 1, 16, 1), dtype="u8"), scales=[0.3], zps=[3]))
    g.output(g.quantize(z, dtype="s8", scales=[0.7], zps=[5]))
    feeds = random_inputs(g)
    assert np.array_equal(gq.compile(g, isa=level, strict=True)(feeds), gq.reference(g, feeds))


@pytest.mark.parametrize("channels", [3, 8])
def test_a_line_of_few_channels_is_settled_by_all_taps(level, channels):
    rng = np.random.default_rng(0)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(2, 157, channels), dtype="u8"), scales=[0.05], zps=[7])
    w = rng.integers(-128, 128, (3, channels, 200)).astype(np.int8)
    y = g.convolution(x, g.dequantize(g.constant(w), scales=[0.01]), strides=[1], pads_begin=[1], pads_end=[1],
                      dilations=[1], weights_format="XIO")
    g.output(g.quantize(y, dtype="u8", scales=[0.07], zps=[128]))
    feeds = random_inputs(g)
    model = gq.compile(g, isa=level, strict=True)
    assert np.array_equal(model(feeds), model.formula(feeds))


def test_groups_of_whole_panels_transposed(level):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(1, 5, 8), dtype="u8"), scales=[0.05], zps=[7])
    w = np.random.default_rng(0).integers(-128, 128, (2, 16, 8)).astype(np.int8)
    y = g.conv_transpose(x, g.dequantize(g.constant(w), scales=[0.01]), strides=[2], pads_begin=[0], pads_end=[0],
                         dilations=[1], groups=2, weights_format="XOI")
    g.output(g.quantize(y, dtype="u8", scales=[0.07], zps=[128]))
    feeds = random_inputs(g)
    model = gq.compile(g, isa=level, strict=True)
    assert np.array_equal(model(feeds), model.formula(feeds))


def test_rooms_for_copies_are_as_many_as_threads():
    """Of AMX: the blocks of a large image are many."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(8, 56, 56, 64), dtype="u8"), scales=[0.05], zps=[7])
    w = np.zeros((3, 3, 64, 128), np.int8)
    y = g.convolution(x, g.dequantize(g.constant(w), scales=[0.01]), strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1])
    g.output(g.quantize(y, dtype="u8", scales=[0.07], zps=[128]))
    with isa.emulate("amx"):
        sizes = [gq.compile(g, isa="amx", threads=n).plans.fixed.arena_bytes for n in (1, 2)]
    assert 0 < sizes[1] <= 2 * sizes[0] <= 2 << 20


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("op, sizes, kernel, strides", [
    ("convolution", (3, 3), (3, 3), 1), ("convolution", (1, 1), (1, 1), 1), ("convolution", (5, 1), (3, 1), 1),
    ("convolution", (3, 3, 4), (2, 3, 3), 1), ("conv_transpose", (4, 1), (3, 1), (2, 1)),
    ("conv_transpose", (4, 1), (3, 1), 2), ("conv_transpose", (2, 3, 3), (2, 2, 3), 2)])
def test_several_images_of_few_outputs(op, sizes, kernel, strides, groups):
    """Which pixels are rows together depends on all operands: lines may have one pixel, and images, too."""
    check(*build(sizes, 8, 40, kernel, images=3, strides=strides, groups=groups, op=op, epilogue=squeeze_excite))
