"""Histograms by the bits of floats: kernel equals reference, reference equals a count by hand."""
import numpy as np
import pytest
from guarded_memory import guarded

import graphq as gq
from graphq.kernels.moves.histogram import PART, plan_histogram
from graphq.kernels.numbers.observed import BINS
from graphq.kernels.target.isa import level_named
from graphq.ops.reduce import histogram
from graphq.plan.plan import Target

RNG = np.random.default_rng(3)


def found(x, threads):
    """What the kernels store, on memory that ends with the tensor."""
    source, counts, extremes = guarded(x), np.full(BINS, -1, np.int32), np.zeros(2, np.float32)
    count, add = plan_histogram(x.size, Target(level_named("scalar"), threads))
    parts = np.full(PART * count.blocks, 77, np.uint8)
    count.run(count.arguments({"source": source.ctypes.data, "parts": parts.ctypes.data}))
    add.run(add.arguments({"parts": parts.ctypes.data, "counts": counts.ctypes.data,
                           "extremes": extremes.ctypes.data}))
    return counts, extremes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 4095, 4097, 70_001])
def test_any_count(count, threads):
    x = RNG.standard_normal(count).astype(np.float32) * 100
    for got, want in zip(found(x, threads), histogram.reference(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("count", [0, 1, 100, 30_000])
def test_extremes_alone(count):
    x = RNG.standard_normal(count).astype(np.float32)
    g = gq.Graph()
    g.output(g.histogram(g.input("x", dtype="f32", shape=(count,)))[1], name="extremes")
    np.testing.assert_array_equal(gq.compile(g, strict=True)(x), histogram.reference(x)[1])


def test_special_values():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38], np.float32)
    (counts, extremes), want = found(x, 1), histogram.reference(x)
    np.testing.assert_array_equal(counts, want[0])
    np.testing.assert_array_equal(extremes.view(np.int32), want[1].view(np.int32))
    assert extremes[0] == -np.inf and np.isnan(extremes[1])


NANS = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
NAN_BIN = 0x7FC00000 >> 18


@pytest.mark.parametrize("numbers", [0, 1, 200])
def test_every_nan_is_the_same_value(numbers):
    x = np.concatenate([np.full(numbers, -3, np.float32), NANS])
    for counts, extremes in (found(x, 1), histogram.reference(x)):
        assert counts[NAN_BIN] == len(NANS) and counts.sum() == len(x)
        assert extremes.view(np.int32)[1] == 0x7FC00000
        assert extremes[0] == (-3 if numbers else np.inf)


def test_a_computed_nan_has_no_sign():
    """CPUs differ in the sign of inf - inf."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(5,))
    g.output(g.histogram(g.subtract(x, x))[0], name="counts")
    assert gq.compile(g, strict=True)(np.full(5, np.inf, np.float32))[NAN_BIN] == 5


def test_the_reference_by_hand():
    """32 bins in [1, 2): 1 and 1.03 share one, 1.04 has the next; the sign is the highest bit."""
    counts, extremes = histogram.reference(np.float32([1, 1.03, 1.04, -1]))
    one = 127 << 5
    assert counts[one] == 2 and counts[one + 1] == 1 and counts[one | 1 << 13] == 1 and counts.sum() == 4
    assert extremes.tolist() == [-1, np.float32(1.04)]


def test_in_a_model_beside_a_convolution():
    """The layout of what is counted does not matter, so that nothing is reordered for it."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(1, 3, 9, 9))
    y = g.relu(g.convolution(x, RNG.standard_normal((8, 3, 3, 3)).astype(np.float32), weights_format="OIX",
                             data_format="NCX", strides=1, dilations=1, pads_begin=0, pads_end=0))
    z = g.convolution(y, RNG.standard_normal((8, 8, 1, 1)).astype(np.float32), weights_format="OIX",
                      data_format="NCX", strides=1, dilations=1, pads_begin=0, pads_end=0)
    counts, extremes = g.histogram(y)
    for value, name in ((counts, "counts"), (extremes, "extremes"), (y, "y"), (z, "z")):
        g.output(value, name=name)
    out = gq.compile(g, strict=True)(RNG.standard_normal((1, 3, 9, 9)).astype(np.float32))
    want = histogram.reference(out["y"])
    np.testing.assert_array_equal(out["counts"], want[0])
    np.testing.assert_array_equal(out["extremes"], want[1])


def test_other_dtypes_are_refused():
    g = gq.Graph()
    with pytest.raises(gq.GraphError, match="'src' must be f32, got s8"):
        g.histogram(g.input("x", dtype="s8", shape=(4,)))
