"""Compiled pools against their formulas, bit for bit, and against the reference."""
import numpy as np
import pytest
from all_pairs import all_pairs
from guarded_memory import guarded
from levels import WIDTHS

import graphq as gq
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.operands.windows import windows
from graphq.kernels.pixels.blocks import Pixels
from graphq.kernels.pool import means
from graphq.kernels.pool import tiles as pool
from graphq.kernels.target import isa
from graphq.plan.plan import Target

SCALE, ZP = 0.0173, 7

CASES = {  # sizes, attributes
    "3x3/2": ((9, 8), dict(strides=[2, 2], kernel=[3, 3], pads_begin=[1, 1], pads_end=[1, 0])),
    "2x2/2": ((6, 6), dict(strides=[2, 2], kernel=[2, 2], pads_begin=[0, 0], pads_end=[0, 0])),
    "ceil": ((7, 8), dict(strides=[2, 2], kernel=[2, 2], pads_begin=[0, 1], pads_end=[0, 0], rounding_type="ceil")),
    "same": ((7, 5), dict(strides=[3, 2], kernel=[3, 4], pads_begin=[0, 0], pads_end=[0, 0], auto_pad="same_upper")),
    "1d": ((11,), dict(strides=[1], kernel=[5], pads_begin=[2], pads_end=[2])),
    "3d": ((4, 3, 5), dict(strides=[1, 2, 1], kernel=[2, 3, 2], pads_begin=[1, 1, 0], pads_end=[0, 1, 1])),
    "cut": ((9, 8), dict(strides=[2, 1], kernel=[3, 2], pads_begin=[1, 1], pads_end=[-2, -4])),
    "cut, rounded up": ((9, 8), dict(strides=[3, 2], kernel=[3, 2], pads_begin=[0, 1], pads_end=[-1, -3],
                                     rounding_type="ceil")),
    "many taps": ((15, 14), dict(strides=[1, 1], kernel=[15, 13], pads_begin=[0, 0], pads_end=[0, 0])),
}


def graph(op, case, dtype, channels, batch=2, quantize=True, scale=0.0219, **more):
    """Relu and quantize follow the pool, unless it is to keep the scale of its source."""
    sizes, attrs = CASES[case] if isinstance(case, str) else case
    if op == "avg_pool":
        attrs = {"exclude_pad": False, **attrs, **more}
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=(batch, *sizes, channels))
    y = g.dequantize(x, scales=[SCALE], zps=[ZP]) if dtype in ("u8", "s8") else x
    y = getattr(g, op)(y, **attrs)
    if quantize:
        y = g.quantize(y if scale == SCALE else g.relu(y), dtype="u8", scales=[scale], zps=[ZP])
    g.output(y, name="y")
    return g


def check(g, level, threads=1, seed=0):
    """The compiled graph, wholly of kernels, gives its formula's bits; its result, and the reference's."""
    model = gq.compile(g, isa=level, threads=threads, strict=True)
    inputs = gq.testing.random_inputs(g, seed)
    got, want = model(**inputs), model.formula(**inputs)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert got.tobytes() == want.tobytes()
    return got, gq.reference(g, inputs)


def close(got, reference):
    """Within one step, in at most one of 10,000 elements."""
    off = np.abs(got.astype(int) - reference.astype(int))
    assert off.max(initial=0) <= 1 and (off > 0).sum() <= off.size / 10_000


@pytest.mark.parametrize("case, width, op, operand", all_pairs(
    CASES, WIDTHS, ["max_pool", "avg_pool"], [("u8", 3), ("s8", 87)]), indirect=["width"])
def test_integers(width, op, case, operand):
    close(*check(graph(op, case, *operand), width, threads=2))


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (4, 4), (7, 7), (2, 3)])
@pytest.mark.parametrize("ratio", [1, 2, 1.37, 0.5])
def test_means_of_commensurate_scales(kernel, ratio):
    """Up to half of these means are ties, which the roundings of dequantized taps and of their sums decide."""
    attrs = dict(strides=[2, 3], kernel=kernel, pads_begin=[0, 0], pads_end=[0, 0])
    g = graph("avg_pool", ((76, 116), attrs), "u8", 80, scale=SCALE * ratio)
    got, reference = check(g, None)
    assert got.size >= 200_000
    close(got, reference)


def test_means_of_commensurate_scales_a_channel(width):
    scales = np.float32(np.linspace(0.01, 0.1, 67))
    g = gq.Graph()
    x = g.input("x", dtype="s8", shape=(8, 24, 16, 67))
    per_channel = dict(qtype="per_channel", axis=-1, scales=scales.tolist(), zps=[*range(-33, 34)])
    y = g.avg_pool(g.dequantize(x, **per_channel), strides=[1, 1], kernel=[2, 2], pads_begin=[1, 1], pads_end=[0, 0],
                   exclude_pad=False)
    g.output(g.quantize(y, dtype="s8", **per_channel), name="y")
    close(*check(g, width))


def chain(parts, start=0.0):
    """The sum of some arrays in order."""
    total = np.float32(start)
    for part in parts:
        total = total + part
    return total


def by_lanes(x, lanes, start=0.0):
    """The sum over the first axis in lanes, whose halves are added; four elements more join four lanes."""
    n = len(x)
    done = n - n % lanes
    sums = [chain(x[lane:done:lanes], start) for lane in range(lanes)]
    while len(sums) > 1:
        if len(sums) == 4 and n - done >= 4:
            sums = [y + x[done + lane] for lane, y in enumerate(sums)]
            done += 4
        sums = [y + z for y, z in zip(sums[:len(sums) // 2], sums[len(sums) // 2:], strict=True)]
    return chain(x[done:], sums[0])


def window(x, kernel, strides):
    """The taps [taps, outputs..., channels] of windows on images [n, h, w, channels] without padding."""
    v = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(1, 2))[:, ::strides[0], ::strides[1]]
    return np.moveaxis(v.reshape(*v.shape[:4], -1), -1, 0)


@pytest.mark.parametrize("sizes,kernel,strides,order", [
    ((9, 8), (3, 3), (2, 2), "columns"), ((9, 8), (6, 7), (1, 1), "columns"), ((9, 11), (3, 3), (3, 3), "taps"),
    ((9, 11), (5, 7), (1, 4), "taps"), ((6, 3), (6, 3), (1, 1), "fours"), ((7, 7), (7, 7), (1, 1), "fours"),
    ((3, 5), None, None, "eights"), ((5, 9), None, None, "eights")])
def test_orders_of_sums(width, sizes, kernel, strides, order):
    """Means of floats as the operations are written, with windows that have code of their own and larger ones."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, *sizes, 39))
    g.output(g.reduce_mean(x, axes=[1, 2], keep_dims=True) if kernel is None else
             g.avg_pool(x, strides=strides, pads_begin=[0, 0], pads_end=[0, 0], kernel=kernel, exclude_pad=True))
    x = np.random.default_rng(1).normal(size=(2, *sizes, 39)).astype(np.float32)
    taps = window(x, kernel or sizes, strides or (1, 1))
    match order:
        case "columns":
            total = chain(chain(taps[k::kernel[1]]) for k in range(kernel[1]))
        case "taps":
            total = chain(taps)
        case _:
            total = by_lanes(taps, 4) if order == "fours" else by_lanes(taps, 8, -0.0)
    want = total / np.float32(len(taps))
    assert (gq.compile(g, isa=width, strict=True)(x=x) == want).all() and (gq.reference(g, x=x) == want).all()
    assert (want != taps.astype(np.float64).mean(axis=0).astype(np.float32)).any()


def test_sums_in_the_order_of_taps(width):
    g = graph("avg_pool", "3x3/2", "f32", 39, quantize=False, in_order=True)
    got, reference = check(g, width)
    assert (got == reference).all()
    assert (got != check(graph("avg_pool", "3x3/2", "f32", 39, quantize=False), width)[0]).any()


@pytest.mark.parametrize("case", ["3x3/2", "ceil", "same", "3d"])
def test_excluded_padding(width, case):
    close(*check(graph("avg_pool", case, "s8", 17, exclude_pad=True), width))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype,channels", [("u8", 3), ("s8", 65)])
def test_maxima_that_keep_their_scale(width, case, dtype, channels):
    """Source and result have the same scale: of u8 they are the integers' maxima."""
    got, reference = check(graph("max_pool", case, dtype, channels, scale=SCALE), width)
    assert (got == reference).all()


@pytest.mark.parametrize("dtype", ["s8", "f32", "bf16", "f16"])
def test_maxima_of_negative_numbers(width, dtype):
    """Also of s8 that stay s8: no maximum starts from 0."""
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=(1, 6, 6, 19))
    y = g.max_pool(g.dequantize(x, scales=[SCALE]) if dtype == "s8" else x, **CASES["2x2/2"][1])
    g.output(g.quantize(y, dtype="s8", scales=[SCALE]) if dtype == "s8" else y, name="y")
    given = (-np.random.default_rng(0).integers(1, 128, x.type.dims)).astype(x.dtype.numpy)
    assert gq.compile(g, isa=width, strict=True)(x=given).tobytes() == gq.reference(g, x=given).tobytes()


def test_dilation(width):
    attrs = dict(strides=[1, 2], kernel=[3, 2], pads_begin=[2, 3], pads_end=[2, 3], dilations=[2, 5])
    close(*check(graph("max_pool", ((8, 9), attrs), "s8", 5), width))


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("channels", [3, 70])
def test_floats(width, op, dtype, channels):
    got, reference = check(graph(op, "3x3/2", dtype, channels, quantize=False), width)
    wide = got.astype(np.float64), reference.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=0 if op == "max_pool" else {"f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}[dtype],
                               atol=0 if op == "max_pool" else 1e-6)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_floats_with_nan_and_infinities(width, op):
    g = graph(op, "3x3/2", "f32", 19, quantize=False)
    x = np.random.default_rng(0).choice(np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -2, 3e38]), (2, 9, 8, 19))
    with np.errstate(all="ignore"):
        model = gq.compile(g, isa=width)
        got, want, reference = model(x=x), model.formula(x=x), gq.reference(g, x=x)
    np.testing.assert_array_equal(got, want)
    if op == "max_pool":
        np.testing.assert_array_equal(got, reference)


def test_a_float_window_of_padding_alone(width):
    attrs = dict(strides=[1, 1], kernel=[1, 1], pads_begin=[1, 0], pads_end=[0, 2])
    got, reference = check(graph("max_pool", ((2, 2), attrs), "f32", 3, quantize=False), width)
    assert (got == reference).all() and np.isneginf(got[:, 0]).all()
    got, reference = check(graph("avg_pool", ((2, 2), attrs), "u8", 3, exclude_pad=True), width)
    assert (got == reference).all() and (got[:, 0] == ZP).all()  # the mean of nothing is NaN


@pytest.mark.parametrize("keep_dims", [True, False])
def test_means_over_spatial_axes(width, keep_dims):
    g = gq.Graph()
    x = g.input("x", dtype="u8", shape=(2, 7, 7, 70))
    y = g.reduce_mean(g.dequantize(x, scales=[SCALE], zps=[ZP]), axes=[1, 2], keep_dims=keep_dims)
    g.output(g.quantize(y, dtype="s8", scales=[0.004], zps=[-3]), name="y")
    close(*check(g, width, threads=2))


def test_operands_of_the_epilogue(width):
    g = gq.Graph()
    x, z = g.input("x", dtype="s8", shape=(3, 6, 5, 17)), g.input("z", dtype="u8", shape=(3, 1, 5, 17))
    b, r = g.input("b", dtype="f32", shape=(17,)), g.input("r", dtype="f32", shape=(3, 1, 1, 1))
    per_channel = dict(qtype="per_channel", axis=-1, scales=np.linspace(0.01, 0.1, 17), zps=[*range(-8, 9)])
    y = g.avg_pool(g.dequantize(x, **per_channel), strides=[1, 1], kernel=[3, 3], pads_begin=[1, 1], pads_end=[1, 1],
                   exclude_pad=True)
    y = g.multiply(g.add(g.add(y, g.dequantize(z, scales=[0.01])), b), r)
    g.output(g.quantize(y, dtype="s8", scales=[0.05]), name="y")
    check(g, width, threads=2)


@pytest.mark.parametrize("batch,channels", [(0, 5), (2, 0)])
def test_nothing_to_do(width, batch, channels):
    got, _ = check(graph("max_pool", "3x3/2", "u8", channels, batch=batch), width)
    assert got.size == 0


@pytest.mark.parametrize("how,dtype,total", [("max", "u8", "u8"), ("max", "f32", "f32"), ("mean", "s8", "f32")])
@pytest.mark.parametrize("channels", [1, 67])
def test_nothing_beyond_the_buffers_is_touched(width, how, dtype, total, channels):
    """Source and result lie at the end of readable memory."""
    x, out = guarded(np.ones((1, 3, 4, channels), STORAGE[dtype])), guarded(np.zeros((4, channels), STORAGE[total]))
    epilogue = Epilogue(acc("f32" if total == "f32" else "s32"), total)
    w = windows((3, 4), (2, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), (2, 2), channels * x.itemsize)
    block = w.block(np.zeros(channels, x.dtype))
    chosen = next(one for one in isa.available() if one.name == width)
    step = pool.plan_pool(epilogue, how, Pixels(dtype, w, channels, 1, 4), Target(chosen))
    scales = means.Scales(np.full(channels, 0.5, np.float32), np.full(channels, -3, np.float32))
    tables = means.tables(scales, np.full(4, 6))
    header = {"images": x.ctypes.data, "windows": block.ctypes.data, "weights": tables.ctypes.data}
    step.run(step.arguments(header, [(out.ctypes.data, 0, channels * out.itemsize)]))
    assert (out == (1 if how == "max" else 2)).all()


def test_little_work_is_serial_however_many_its_blocks():
    steps = []
    for size in (4, 400):
        view = windows((size, size), (2, 2), (1, 1), (1, 1), [(0, 0)] * 2, (size - 1, size - 1), 8)
        pixels = Pixels("u8", view, 8, size - 1, size - 1)
        steps.append(pool.plan_pool(Epilogue(acc("f32"), "f32"), "mean", pixels, Target(isa.level_named("scalar"), 2)))
    assert [s.pieces for s in steps] == [0, 2] and steps[0].blocks > 1
