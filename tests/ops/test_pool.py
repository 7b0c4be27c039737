"""max_pool and avg_pool against ONNX's reference evaluator, oneDNN's measured values and windows written out."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError

rng = np.random.default_rng(5)
INF, NAN = np.inf, np.nan


def given(kernel, **attrs):
    count = len(kernel)
    return {"kernel": kernel, "strides": [1] * count, "pads_begin": [0] * count, "pads_end": [0] * count,
            "data_format": "NCX", **attrs}


def as_onnx(attrs):
    out = {"kernel_shape": attrs["kernel"], "strides": attrs["strides"],
           "ceil_mode": int(attrs.get("rounding_type") == "ceil")}
    if "auto_pad" in attrs:
        return {**out, "auto_pad": attrs["auto_pad"].upper()}
    return {**out, "pads": [*attrs["pads_begin"], *attrs["pads_end"]]}


POOLS = [
    ((2, 3, 9), given([3])),
    ((1, 2, 7, 8), given([3, 2], strides=[2, 3], pads_begin=[1, 0], pads_end=[1, 1])),
    ((1, 2, 7, 8), given([2, 2], strides=[2, 3], rounding_type="ceil")),
    ((1, 2, 5, 4, 6), given([2, 3, 2], strides=[1, 1, 2])),
    ((1, 2, 7, 8), given([3, 4], strides=[2, 2], auto_pad="same_upper")),
    ((1, 2, 7, 8), given([3, 4], strides=[2, 2], auto_pad="valid")),
]


@pytest.mark.parametrize("shape, attrs", POOLS)
def test_max_pool_as_onnx(run, onnx_node, shape, attrs):
    x = rng.standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(run("max_pool", x, **attrs), onnx_node("MaxPool", [x], **as_onnx(attrs)))


@pytest.mark.parametrize("exclude_pad", [True, False])
@pytest.mark.parametrize("shape, attrs", POOLS)
def test_avg_pool_as_onnx(run, onnx_node, shape, attrs, exclude_pad):
    x = rng.standard_normal(shape).astype(np.float32)
    want = onnx_node("AveragePool", [x], count_include_pad=int(not exclude_pad), **as_onnx(attrs))
    got = run("avg_pool", x, exclude_pad=exclude_pad, **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, more", [("max_pool", {}), ("avg_pool", {"exclude_pad": True}),
                                        ("avg_pool", {"exclude_pad": False})])
def test_same_lower_mirrors_same_upper(run, name, more):
    x = rng.integers(-99, 99, (1, 2, 7, 8)).astype(np.float32)  # whose sums are exact in any order
    attrs = given([4, 3], strides=[2, 3], **more)
    upper = run(name, x[:, :, ::-1, ::-1], auto_pad="same_upper", **attrs)
    np.testing.assert_array_equal(run(name, x, auto_pad="same_lower", **attrs), upper[:, :, ::-1, ::-1])


def test_max_pool_dilations(run, onnx_node):
    x = rng.standard_normal((1, 2, 9, 8)).astype(np.float32)
    attrs = given([3, 2], strides=[2, 1])
    want = onnx_node("MaxPool", [x], dilations=[2, 3], **as_onnx(attrs))
    np.testing.assert_array_equal(run("max_pool", x, dilations=[2, 3], **attrs), want)


Z = np.arange(1, 13, dtype=np.float32).reshape(1, 1, 3, 4)
CORNER = given([3, 2], strides=[2, 2], pads_begin=[1, 1])


def test_as_onednn(run):
    """Values that oneDNN 3.13 gave."""
    got = run("avg_pool", Z, exclude_pad=True, **CORNER)
    np.testing.assert_array_equal(got[0, 0], np.float32([[3, 4.5]]))
    got = run("avg_pool", Z, exclude_pad=True, rounding_type="ceil", **CORNER)
    np.testing.assert_array_equal(got[0, 0], np.float32([[3, 4.5, 6], [7, 8.5, 10]]))
    np.testing.assert_array_equal(run("avg_pool", Z, exclude_pad=False, **CORNER)[0, 0], np.float32([[1, 3]]))
    got = run("max_pool", Z, rounding_type="ceil", **CORNER)
    np.testing.assert_array_equal(got[0, 0], np.float32([[5, 7, 8], [9, 11, 12]]))


LINE = np.float32([[[7, 3, 0, -4, -4, -9, -8]]])
CUT = [  # kernel, stride, pads, whether sizes are rounded up, and what oneDNN 3.13 gave: means, maxima
    (2, 1, 0, -1, False, [5, 1.5, -2, -4, -6.5], [7, 3, 0, -4, -4]),
    (3, 2, 1, -1, False, [5, -1 / 3, -17 / 3], [7, 3, -4]),
    (3, 2, 0, -1, False, [10 / 3, -8 / 3], [7, 0]),
    (3, 3, 0, -2, False, [10 / 3], [7]),
    (2, 2, 1, -2, False, [7, 1.5, -4], [7, 3, -4]),
    (3, 3, 0, -2, True, [10 / 3, -17 / 3], [7, -4]),  # the last window has an element that the padding takes away
    (3, 2, 0, -1, True, [10 / 3, -8 / 3, -7], [7, 0, -4]),
]


@pytest.mark.parametrize("kernel, stride, begin, end, ceil, means, maxima", CUT)
def test_negative_padding_at_the_end_as_onednn(run, kernel, stride, begin, end, ceil, means, maxima):
    attrs = given([kernel], strides=[stride], pads_begin=[begin], pads_end=[end],
                  rounding_type="ceil" if ceil else "floor")
    assert run("avg_pool", LINE, exclude_pad=True, **attrs).tolist() == [[np.float32(means).tolist()]]
    assert run("max_pool", LINE, **attrs).tolist() == [[maxima]]
    if not ceil:  # which oneDNN refuses
        means = [3.5, *means[1:]] if (kernel, begin) == (2, 1) else [10 / 3, *means[1:]] if begin else means
        assert run("avg_pool", LINE, exclude_pad=False, **attrs).tolist() == [[np.float32(means).tolist()]]


@pytest.mark.parametrize("exclude_pad, want", [
    (True, [0.875, -1.0, 1.5, 2.5, 37 / 12, 0.0, 1.625, 0.5, 0.875, -1.75, -2.75, 1.5, 1.5, 2.5, -1 / 12, 2.625,
            0.25, 0.5]),
    (False, [7 / 12, -2 / 3, 1.0, 2.5, 37 / 12, 0.0, 13 / 12, 1 / 3, 7 / 12, -7 / 6, -11 / 6, 1.0, 1.5, 2.5, -1 / 12,
             1.75, 1 / 6, 1 / 3])])
def test_a_mean_over_three_axes_as_onednn(run, exclude_pad, want):
    """oneDNN's benchdnn has such a pool, with pads_end [-1, 1, 0]."""
    x = np.float32("""3 8 0 2 9 4 3 1 1 8 -4 6 3 -9 -2 7 1 -9 5 4 7 -6 -8 7 -9 1 -8 -4 0 -1
        -2 -9 -9 -7 -9 3 0 3 -5 2 5 -2 -1 9 6 9 -2 4 9 3 6 4 4 -2 7 -7 1 4 7 0
        -2 -4 -1 0 4 7 -8 8 1 -3 3 1 -5 -3 4 2 0 -3 5 -2 -3 7 -4 -5 4 2 -9 -8 -2 6
        -2 5 -3 -5 6 7 -8 -8 3 -3 1 -7 7 -1 8 6 4 -5 5 -9 1 -2 9 -6 8 -8 2 2 8 -4""".split()).reshape(1, 1, 4, 5, 6)
    got = run("avg_pool", x, exclude_pad=exclude_pad,
              **given([2, 3, 2], strides=[1, 2, 2], pads_begin=[0, 1, 0], pads_end=[-1, 1, 0]))
    np.testing.assert_array_equal(got, np.float32(want).reshape(1, 1, 2, 3, 3))


def test_what_rounding_up_adds_does_not_count(run):
    # Rows 2 and the padding's 3 of column 3: (12 + 8) / (rows 1, 2 of column 3 inside, one column beyond).
    got = run("avg_pool", Z, exclude_pad=False, rounding_type="ceil", **CORNER)
    np.testing.assert_array_equal(got[0, 0], np.float32([[6 / 6, 18 / 6, 12 / 3], [14 / 4, 34 / 4, 20 / 2]]))


def test_special_values(run):
    x = np.float32([[[1, NAN, 2, -INF, -INF, -INF, 3]]])
    np.testing.assert_array_equal(run("max_pool", x, **given([2])), np.float32([[[NAN, NAN, 2, -INF, -INF, 3]]]))
    padded = given([2], pads_begin=[2], pads_end=[1])
    assert run("max_pool", x[:, :, 3:4], **padded).tolist() == [[[-INF, -INF, -INF]]]
    got = run("avg_pool", np.float32([[[4, 2]]]), exclude_pad=True, **padded)
    np.testing.assert_array_equal(got, np.float32([[[NAN, 4, 3, 2]]]))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision(run, dtype):
    x = rng.standard_normal((1, 3, 6, 6)).astype(DTYPES[dtype].numpy)
    wide = x.astype(np.float32)
    attrs = given([3, 3], pads_begin=[1, 1])
    np.testing.assert_array_equal(run("max_pool", x, **attrs), run("max_pool", wide, **attrs).astype(x.dtype))
    want = run("avg_pool", wide, exclude_pad=False, **attrs).astype(x.dtype)
    np.testing.assert_array_equal(run("avg_pool", x, exclude_pad=False, **attrs), want)


def test_channels_last(run):
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    for name, more in (("max_pool", {}), ("avg_pool", {"exclude_pad": True})):
        attrs = given([3, 2], strides=[2, 1], pads_end=[1, 1], **more)
        got = run(name, np.moveaxis(x, 1, -1), **{**attrs, "data_format": "NXC"})
        np.testing.assert_array_equal(np.moveaxis(got, -1, 1), run(name, x, **attrs))
    assert run("max_pool", x[:0], **given([2, 2])).shape == (0, 3, 5, 4)


@pytest.mark.parametrize("type, attrs, want", [
    ("f32[?,3,?,8]", given([3, 3]), "f32[?,3,?,6]"), ("f16[*]", given([3, 3]), "f16[?,?,?,?]"),
    ("f32[1,9,9,?]", given([3, 2], data_format="NXC", strides=[2, 2], rounding_type="ceil"), "f32[1,4,5,?]"),
])
def test_types(infer, type, attrs, want):
    assert infer("max_pool", type, **attrs) == want
    assert infer("avg_pool", type, exclude_pad=True, **attrs) == want


@pytest.mark.parametrize("type, attrs, match", [
    ("f32[1,3,8,8]", given([3]), "kernel must be 2 values >= 1"),
    ("f32[1,3,8,8]", given([3, 0]), r"kernel must be 2 values >= 1.*got \[3, 0\]"),
    ("f32[1,3,8,8]", given([3, 3], strides=[0, 1]), "strides must be 2 values >= 1"),
    ("f32[1,3,8,8]", given([3, 3], pads_begin=[-1, 0]), "pads_begin must be 2 values >= 0"),
    ("f32[1,3,8,2]", given([3, 3]), "a window of 3 elements does not fit into 2"),
    ("f32[1,3]", given([]), "must have a batch, a channel and spatial axes"),
    ("s8[1,3,8,8]", given([3, 3]), "'src' must be f32"),
])
def test_rules(infer, type, attrs, match):
    for name, more in (("max_pool", {}), ("avg_pool", {"exclude_pad": True})):
        with pytest.raises(GraphError, match=match):
            infer(name, type, **attrs, **more)
