"""References where CPUs, or NumPy on them, differ: NaN and large numbers as integers, zeros of both signs, NaN in f4.

x86 converts NaN and numbers beyond the range to the least s32, Arm to 0 and to the nearest s32. NumPy's maximum of two
zeros is the second one on x86, and +0 on Arm. All expected numbers are stated here.
"""
import numpy as np
import pytest

from graphq import Graph
from graphq.errors import GraphError
from graphq.ir.op import OPS
from graphq.kernels.numbers import recurrent

NAN, INF = np.nan, np.inf
LARGE = [2.0**31, -2.0**31, 1e30, -1e30, INF, -INF, NAN, -NAN, -0.0, 2.5, -2.5]
SIGNS = np.array([[0, 0], [0, -0.0], [-0.0, 0], [-0.0, -0.0], [-1, 0], [-0.0, -1], [NAN, 0], [0, NAN]])


def run(name, *arrays, **attrs):
    return OPS[name].reference(*arrays, **attrs)


def assert_bits(got, expected):
    """Equal numbers and signs of zeros, except that all NaNs are one."""
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("dtype, low, high", [
    ("s8", -128, 127), ("u8", 0, 255), ("s16", -2**15, 2**15 - 1), ("u16", 0, 2**16 - 1), ("s32", -2**31, 2**31 - 1)])
def test_casts_saturate_and_nan_becomes_0(dtype, low, high, source):
    got = run("cast", np.array(LARGE, source), dtype=Graph().input("x", dtype=dtype, shape=()).dtype)
    assert got.tolist() == [high, low, high, low, high, low, 0, 0, 0, 2, max(low, -2)]


@pytest.mark.parametrize("number, dtype", [
    (2.0**31, "s32"), (2.0**32, "u32"), (2.0**63, "s64"), (2.0**64, "u64"), (128.0, "s8"), (256.0, "u8"), (-1.0, "u8"),
    (-2.0**32, "s32"), (INF, "s32"), (NAN, "s32"), (0.5, "s32")])
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_constants_that_are_not_exact_integers_of_the_dtype_are_refused(number, dtype, source):
    with pytest.raises(GraphError, match="does not fit into"):
        Graph().constant(np.array([number], source), dtype=dtype)


@pytest.mark.parametrize("number, dtype", [
    (2.0**31 - 128, "s32"), (-2.0**31, "s32"), (2.0**32 - 256, "u32"), (-2.0**63, "s64"), (2.0**63, "u64"),
    (-0.0, "u8")])
def test_constants_at_the_ends_of_an_integer_range(number, dtype):
    assert Graph().constant(np.array([number], np.float32), dtype=dtype).data.tolist() == [int(number)]


def test_of_two_equal_zeros_the_second_is_the_maximum_or_minimum():
    a, b = SIGNS.T
    for function, numbers in (("maximum", [0, -0.0, 0, -0.0, 0, -0.0, NAN, NAN]),
                              ("minimum", [0, -0.0, 0, -0.0, -1, -1, NAN, NAN])):
        for copies in (1, 9):
            got = run("arithmetic", *(np.repeat(x, copies) for x in (a, b)), function=function)
            assert_bits(got, np.repeat(np.float64(numbers), copies))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("reduction, expected", [("max", [0, -0.0, 0, -0.0, 0, -0.0, NAN, NAN]),
                                                 ("min", [0, -0.0, 0, -0.0, -1, -1, NAN, NAN])])
def test_scattered_zeros_have_the_sign_of_the_last(reduction, expected, dtype):
    src, updates = SIGNS.T.astype(dtype)
    at = np.arange(src.size)
    assert_bits(run("scatter_elements", src, at, updates, reduction=reduction), np.array(expected, dtype))
    rows = [np.stack([x, x], axis=1) for x in (src, updates, np.array(expected, dtype))]
    assert_bits(run("scatter_nd", rows[0], at[:, None], rows[1], reduction=reduction), rows[2])


def test_zeros_of_both_signs_in_reductions_and_pools():
    rows = np.float32([[0, -0.0, -0.0], [-0.0, -0.0, 0], [-0.0, -0.0, -0.0], [-1, -0.0, -2], [0, 0, 0], [NAN, 0, -0.0]])
    for copies in (1, 7):
        x = np.repeat(rows, copies, axis=1)
        assert_bits(run("reduce_max", x, axes=(1,)), np.float32([0, 0, -0.0, -0.0, 0, NAN]))
        assert_bits(run("reduce_min", -x, axes=(1,)), np.float32([-0.0, -0.0, 0, 0, -0.0, NAN]))
    window = dict(strides=[1], pads_begin=[0], pads_end=[0], kernel=[2])
    pooled = run("max_pool", SIGNS.astype(np.float32)[:, :, None], **window)
    assert_bits(pooled.ravel(), np.float32([0, -0.0, 0, -0.0, 0, -0.0, NAN, NAN]))


def test_nan_becomes_0_in_a_float_without_nan():
    x = np.float32([0, 1, NAN, -NAN, INF])
    for scale, expected in ((0, [0, 6, 0, 0, 6]), (INF, [0, 0, 0, 0, 0]), (1, [0, 1, 0, 0, 6])):
        got = run("quantize_linear", x, np.float32(scale), dtype=Graph().input("x", dtype="f4_e2m1", shape=()).dtype)
        assert_bits(got.astype(np.float32), np.float32(expected))


def test_nan_of_a_recurrent_state_is_quantized_to_0():
    units, scale = recurrent.quantized(np.float32([[INF, 1, -3, 0]]))
    assert scale == INF and units.tolist() == [[0, 0, 0, 0]]
