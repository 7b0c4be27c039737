"""convolution and conv_transpose against ONNX's reference evaluator and SciPy. conv_transpose against a loop over
pixels and taps, in every layout, with groups, and its sizes and rules.
"""
from itertools import product

import numpy as np
import pytest

import graphq as gq
from graphq.base.budget import budget
from graphq.dtypes import DTYPES
from graphq.errors import CompileError, GraphError
from graphq.ops.conv import conv_transpose, more_at_end, transposed_padding, weight_axes

rng = np.random.default_rng(31)


def normal(*shape, dtype="f32"):
    return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)


def given(count, **attrs):
    """Attributes for `count` spatial axes, in oneDNN's NCX and OIX unless given."""
    return {"strides": [1] * count, "pads_begin": [0] * count, "pads_end": [0] * count, "dilations": [1] * count,
            "data_format": "NCX", "weights_format": "OIX", **attrs}


def as_onnx(attrs):
    out = {"strides": attrs["strides"], "dilations": attrs["dilations"], "group": attrs.get("groups", 1)}
    if attrs.get("auto_pad", "none") != "none":
        return {**out, "auto_pad": attrs["auto_pad"].upper()}
    return {**out, "pads": [*attrs["pads_begin"], *attrs["pads_end"]]}


CONVS = [
    ((2, 4, 9), (6, 4, 3), given(1)),
    ((1, 3, 7, 8), (5, 3, 3, 2), given(2, strides=[2, 1], pads_begin=[1, 0], pads_end=[2, 1])),
    ((2, 6, 9, 7), (4, 3, 3, 3), given(2, groups=2, dilations=[2, 1], pads_begin=[1, 1], pads_end=[1, 1])),
    ((1, 4, 6, 6), (8, 1, 3, 3), given(2, groups=4, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), given(3, strides=[1, 2, 3])),
    ((1, 2, 7, 8), (3, 2, 3, 4), given(2, strides=[2, 3], auto_pad="same_upper")),
    ((1, 2, 7, 8), (3, 2, 4, 4), given(2, strides=[2, 3], auto_pad="same_lower")),
    ((1, 2, 7, 8), (3, 2, 3, 4), given(2, pads_begin=[9, 9], auto_pad="valid")),
]


@pytest.mark.parametrize("shape, kernel, attrs", CONVS)
def test_convolution_as_onnx(run, onnx_node, shape, kernel, attrs):
    x, w, b = normal(*shape), normal(*kernel), normal(kernel[0])
    want = onnx_node("Conv", [x, w, b], **as_onnx(attrs))
    np.testing.assert_allclose(run("convolution", x, w, b, **attrs), want, rtol=1e-5, atol=1e-5)
    wide = onnx_node("Conv", [x.astype(np.float64), w.astype(np.float64)], **as_onnx(attrs))
    np.testing.assert_allclose(run("convolution", x, w, **attrs), wide, rtol=2e-7, atol=1e-6)


def test_negative_padding_at_an_end_leaves_windows_out(run, infer):
    x = np.float32([7, 3, 0, -4, -4, -9, -8]).reshape(1, 1, 1, 7)
    w = np.float32([-3, -2, 2]).reshape(1, 1, 1, 3)
    attrs = given(2, strides=[1, 2], pads_end=[0, -1])
    assert run("convolution", x, w, **attrs).tolist() == [[[[-27, 0]]]]  # what oneDNN 3.13 gave
    x, w = normal(2, 4, 9, 8), normal(6, 2, 3, 2)
    attrs = given(2, groups=2, strides=[2, 1], pads_begin=[1, 5])
    got, whole = (run("convolution", x, w, **{**attrs, "pads_end": ends}) for ends in ([-2, -9], [0, 0]))
    np.testing.assert_array_equal(got, whole[:, :, :3, :3])
    assert got.shape == (2, 6, 3, 3)
    assert infer("convolution", "f32[1,4,8,8]", "f32[6,4,3,3]", **given(2, pads_end=[-5, 0])) == "f32[1,6,1,6]"
    with pytest.raises(GraphError, match="a window of 3 elements does not fit into 8 padded by 0 and -6"):
        infer("convolution", "f32[1,4,8,8]", "f32[6,4,3,3]", **given(2, pads_end=[-6, 0]))


def test_convolution_as_scipy(run):
    from scipy import signal  # importing it takes a second, in each worker

    x, w = normal(1, 1, 12, 13), normal(1, 1, 5, 4)
    want = signal.correlate2d(x[0, 0].astype(np.float64), w[0, 0].astype(np.float64), "valid").astype(np.float32)
    np.testing.assert_array_equal(run("convolution", x, w, **given(2))[0, 0], want)
    full = signal.convolve2d(x[0, 0].astype(np.float64), w[0, 0].astype(np.float64), "full").astype(np.float32)
    got = run("conv_transpose", x, w, **given(2, weights_format="IOX"))
    np.testing.assert_allclose(got[0, 0], full, rtol=1e-6, atol=1e-6)


def test_convolution_in_chunks(run, monkeypatch):
    x, w, attrs = normal(3, 4, 11, 10), normal(6, 4, 3, 3), given(2, strides=[2, 1], pads_end=[1, 0])
    whole = run("convolution", x, w, **attrs)
    for elements in (1, 700, 5000):
        monkeypatch.setattr("graphq.ops.conv.COLUMNS", elements)
        np.testing.assert_array_equal(run("convolution", x, w, **attrs), whole)


@pytest.mark.parametrize("name, channels, weights", [("convolution", 6, {"OIX": (0, 1), "XIO": (1, 0)}),
                                                     ("conv_transpose", 4, {"OIX": (0, 1), "XIO": (1, 0),
                                                                            "IOX": (1, 0), "XOI": (0, 1)})])
def test_formats_agree(run, name, channels, weights):
    x = normal(2, channels, 6, 5)
    o, i = (4, 3) if name == "convolution" else (2, 4)
    w, b = normal(o, i, 3, 2), normal(4)
    attrs = given(2, groups=2, strides=[2, 1], pads_begin=[1, 0])
    want = run(name, x, w, b, **attrs)
    for form, order in weights.items():
        turned = w.transpose((*order, 2, 3) if form.endswith("X") else (2, 3, *order))
        got = run(name, np.moveaxis(x, 1, -1), turned, b, **{**attrs, "weights_format": form, "data_format": "NXC"})
        np.testing.assert_array_equal(np.moveaxis(got, -1, 1), want)


@pytest.mark.parametrize("name, weights", [("convolution", (4, 8, 3, 3)), ("conv_transpose", (8, 4, 3, 3))])
def test_half_precision_may_give_f32(run, name, weights):
    x, w = normal(1, 8, 5, 5, dtype="bf16"), normal(*weights, dtype="bf16")
    attrs = {"data_format": "NCX", "weights_format": "OIX" if name == "convolution" else "IOX", "strides": [1, 1],
             "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    got = run(name, x, w, dtype=DTYPES["f32"], **attrs)
    np.testing.assert_array_equal(got, run(name, x.astype(np.float32), w.astype(np.float32), **attrs))
    with pytest.raises(GraphError, match="dtype must be f32 for an operand of f32, got bf16"):
        run(name, *(v.astype(np.float32) for v in (x, w)), dtype=DTYPES["bf16"], **attrs)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_rounds_at_the_end(run, dtype):
    x, w, b = normal(1, 8, 5, 5, dtype=dtype), normal(4, 8, 3, 3, dtype=dtype), normal(4, dtype=dtype)
    for name, shape in (("convolution", "OIX"), ("conv_transpose", "OIX")):
        x = x if name == "convolution" else x[:, :, :3]
        wide = [a.astype(np.float32) for a in (x, w, b)]
        attrs = given(2, weights_format=shape)
        np.testing.assert_array_equal(run(name, x, w, b, **attrs), run(name, *wide, **attrs).astype(x.dtype))


TRANSPOSED = [
    ((2, 4, 5), (4, 3, 3), given(1)),
    ((1, 3, 4, 5), (3, 2, 3, 2), given(2, strides=[2, 3], pads_begin=[1, 0], pads_end=[0, 1])),
    ((1, 3, 4, 5), (3, 2, 3, 3), given(2, strides=[2, 3], dilations=[2, 1], output_padding=[1, 2])),
    ((1, 2, 3, 2, 4), (2, 3, 2, 3, 1), given(3, strides=[1, 2, 2])),
    ((1, 3, 4, 5), (3, 2, 3, 3), given(2, strides=[2, 1], auto_pad="valid")),
    ((1, 3, 4, 5), (3, 2, 3, 4), given(2, strides=[2, 2], auto_pad="same_upper")),
    ((1, 3, 4, 5), (3, 2, 3, 4), given(2, strides=[2, 2], auto_pad="same_lower")),
]


@pytest.mark.parametrize("shape, kernel, attrs", TRANSPOSED)
def test_conv_transpose_as_onnx(run, onnx_node, shape, kernel, attrs):
    attrs = {**attrs, "weights_format": "IOX"}
    x, w, b = normal(*shape), normal(*kernel), normal(kernel[1])
    more = {"output_padding": attrs["output_padding"]} if "output_padding" in attrs else {}
    want = onnx_node("ConvTranspose", [x, w, b], **as_onnx(attrs), **more)
    np.testing.assert_allclose(run("conv_transpose", x, w, b, **attrs), want, rtol=1e-5, atol=1e-5)


def test_conv_transpose_groups_are_independent(run):
    """ONNX's evaluator gives every group the first group's bias, and takes one output channel a group."""
    x, w, b, attrs = normal(2, 6, 4, 3), normal(6, 2, 3, 3), normal(6), given(2, weights_format="IOX", strides=[2, 1])
    parts = [run("conv_transpose", x[:, k:k + 2], w[k:k + 2], b[k:k + 2], **attrs) for k in (0, 2, 4)]
    np.testing.assert_array_equal(run("conv_transpose", x, w, b, groups=3, **attrs), np.concatenate(parts, axis=1))


@pytest.mark.parametrize("auto_pad, first", [("same_upper", 0), ("same_lower", 1)])
def test_conv_transpose_same_cuts_as_onednn(run, auto_pad, first):
    """oneDNN 3.13 cuts the odd element at the end for SAME_UPPER, at the beginning for SAME_LOWER."""
    x, w = normal(1, 1, 4), normal(1, 1, 3)
    full = run("conv_transpose", x, w, **given(1, strides=[2], weights_format="IOX"))
    got = run("conv_transpose", x, w, **given(1, strides=[2], weights_format="IOX", auto_pad=auto_pad))
    np.testing.assert_array_equal(got, full[:, :, first:first + 8])
    wide = run("conv_transpose", x, w[:, :, :2], **given(1, strides=[3], weights_format="IOX", auto_pad=auto_pad))
    assert wide.shape == (1, 1, 11)  # windows that do not span the stride: nothing to cut, nothing added


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_no_images_and_no_channels(run, name):
    attrs = given(2)
    out = (2, 2) if name == "convolution" else (6, 6)
    w = normal(5, 3, 3, 3)
    assert run(name, normal(0, 3, 4, 4), w, **attrs).shape == (0, 5, *out)
    assert (run(name, normal(1, 0, 4, 4), w[:, :0], normal(5) * 0 + 2, **attrs) == 2).all()


@pytest.mark.parametrize("types, attrs, want", [
    (["f32[?,3,8,8]", "f32[4,3,3,3]"], {}, "f32[?,4,6,6]"),
    (["f32[1,3,?,8]", "f32[?,3,3,?]"], {}, "f32[1,?,?,?]"),
    (["f32[1,3,?,8]", "f32[*]", "f32[4]"], {}, "f32[1,4,?,?]"),
    (["f32[*]", "f32[4,3,3,3]"], {}, "f32[?,4,?,?]"), (["f32[1,3,8,8]", "f32[4,3,3,3]", "f32[?]"], {}, "f32[1,4,6,6]"),
    (["bf16[1,8,8,3]", "bf16[3,3,3,?]"], {"data_format": "NXC", "weights_format": "XIO"}, "bf16[1,6,6,?]"),
    (["f32[1,3,7,?]", "f32[*]"], {"auto_pad": "same_upper", "strides": [2, 2]}, "f32[1,?,4,?]"),
])
def test_convolution_types(infer, types, attrs, want):
    assert infer("convolution", *types, **given(2, **attrs)) == want


@pytest.mark.parametrize("types, attrs, want", [
    (["f32[?,3,8,8]", "f32[4,3,3,3]"], {"strides": [2, 2]}, "f32[?,4,17,17]"),
    (["f32[1,3,1,1]", "f32[4,3,3,3]"], {"pads_begin": [1, 2], "pads_end": [1, 0]}, "f32[1,4,1,1]"),
    (["f32[1,3,?,8]", "f32[*]"], {"groups": 3}, "f32[1,?,?,?]"),
    (["f32[*]", "f32[4,3,3,3]"], {"groups": 3}, "f32[?,12,?,?]"),
    (["f32[2,16,5,5]", "f32[16,1,3,3]", "f32[16]"],
     {"groups": 16, "weights_format": "IOX", "output_padding": [0] * 12}, "f32[2,16,7,7]"),
])
def test_conv_transpose_types(infer, types, attrs, want):
    assert infer("conv_transpose", *types, **given(2, **attrs)) == want


X, W = "f32[1,4,8,8]", "f32[6,4,3,3]"
BOTH = [
    ([X, "f16[6,4,3,3]"], {}, "same dtype, got 'src' f32, 'weights' f16"),
    (["s8[1,4,8,8]", W], {}, "'src' must be f32, bf16 or f16, got s8"),
    (["f32[1,4]", W], {}, "must have a batch, a channel and spatial axes"),
    ([X, W], {"strides": [1]}, r"strides must be 2 values >= 1, .* got \[1\]"),
    ([X, W], {"dilations": [0, 1]}, r"dilations must be 2 values >= 1, .* got \[0, 1\]"),
    ([X, W], {"pads_begin": [0, -1]}, r"pads_begin must be 2 values >= 0, .* got \[0, -1\]"),
    ([X, W], {"pads_end": [-1]}, r"pads_end must be 2 values( >= 0)?, .* got \[-1\]"),
    ([X, "f32[6,4,3]"], {}, r"'weights' must have the rank of src, 4, got \[6,4,3\]"),
    ([X, "f32[6,4,0,3]"], {}, r"at least one element along each axis, got weights \[6,4,0,3\]"),
    ([X, W], {"groups": 0}, "groups must be positive, got 0"),
    ([X, W, "f32[6,1]"], {}, "'bias' must be one-dimensional"),
    ([X, W, "f32[5]"], {}, r"elements of 'bias' must be 6 \(the output's channels\), got 5"),
    ([X, "f32[6,5,3,3]"], {}, r"channels of 'src' must be 5 .*, got 4 in \[1,4,8,8\]"),
]


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("types, attrs, match", BOTH)
def test_rules_of_both(infer, name, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer(name, *types, **given(2, **attrs))


@pytest.mark.parametrize("name, types, attrs, match", [
    ("convolution", [X, "f32[6,4,9,3]"], {}, "a window of 9 elements does not fit into 8 padded by 0 and 0"),
    ("convolution", [X, "f32[5,2,3,3]"], {"groups": 2}, "multiple of groups, got 5 and 2"),
    ("convolution", [X, "f32[6,4,3,3]"], {"groups": 2}, "must be 8 .2 groups of the 4 in weights"),
    ("conv_transpose", ["f32[1,3,8,8]", "f32[6,3,3,3]"], {"groups": 2}, "multiple of groups, got 3"),
    ("conv_transpose", ["f32[1,4,1,1]", W], {"pads_begin": [3, 0]}, "an output axis would have 0 elements"),
    ("conv_transpose", ["f32[1,4,0,1]", W], {}, "an output axis would have"),
    ("conv_transpose", [X, W], {"output_padding": [1]}, r"output_padding must be 2 values >= 0, .*\[1\]"),
    ("conv_transpose", [X, W], {"output_padding": [0, 0, 1]}, r"output_padding must be 2 values >= 0"),
])
def test_rules(infer, name, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer(name, *types, **given(2, **attrs))


def by_loops(x, w, strides, dilations, begins, ends, more, groups):
    """x [n, c, h, w], w [outputs of a group, c, kh, kw]."""
    n, c, *sizes = x.shape
    o, _, *taps = w.shape
    full = [(size - 1) * stride + (k - 1) * d + 1 + m
            for size, stride, k, d, m in zip(sizes, strides, taps, dilations, more, strict=True)]
    y = np.zeros((n, o * groups, *full))
    for ch, (i, j), (a, b) in product(range(c), product(*map(range, sizes)), product(*map(range, taps))):
        first = ch // (c // groups) * o
        at = i * strides[0] + a * dilations[0], j * strides[1] + b * dilations[1]
        y[:, first:first + o, at[0], at[1]] += np.outer(x[:, ch, i, j], w[:, ch, a, b])
    return y[:, :, begins[0]:full[0] - ends[0], begins[1]:full[1] - ends[1]]


ORDERS = {"OIX": (0, 1, 2, 3), "XIO": (2, 3, 1, 0), "IOX": (1, 0, 2, 3), "XOI": (2, 3, 0, 1)}


@pytest.mark.parametrize("weights_format", ORDERS)
@pytest.mark.parametrize("data_format, groups, strides, dilations, begins, ends, more", [
    ("NCX", 1, (1, 1), (1, 1), (0, 0), (0, 0), (0, 0)), ("NXC", 2, (2, 3), (1, 2), (1, 0), (0, 2), (1, 0)),
    ("NCX", 4, (3, 1), (2, 1), (0, 1), (2, 1), (0, 2))])
def test_by_loops(weights_format, data_format, groups, strides, dilations, begins, ends, more):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-5, 6, (2, 4, 3, 4)).astype(np.float32), rng.integers(-5, 6, (3, 4, 2, 3)).astype(np.float32)
    bias = rng.integers(-5, 6, 3 * groups).astype(np.float32)
    want = by_loops(x, w, strides, dilations, begins, ends, more, groups) + bias[:, None, None]
    g = gq.Graph()
    given = x if data_format == "NCX" else np.moveaxis(x, 1, -1)
    packed = w.transpose(ORDERS[weights_format])
    assert np.array_equal(packed.transpose(weight_axes(weights_format, 2)), w)
    v, k, b = (g.input(n, dtype="f32", shape=a.shape) for n, a in (("x", given), ("w", packed), ("b", bias)))
    y = g.conv_transpose(v, k, b, strides=list(strides), dilations=list(dilations), pads_begin=list(begins),
                         pads_end=list(ends), output_padding=list(more), groups=groups, data_format=data_format,
                         weights_format=weights_format)
    g.output(y, name="y")
    got = gq.reference(g, {"x": given, "w": packed, "b": bias})
    assert got.shape == y.shape and np.array_equal(got if data_format == "NCX" else np.moveaxis(got, -1, 1), want)


@pytest.mark.parametrize("span, stride", [(3, 1), (3, 2), (4, 2), (2, 3), (5, 3)])
def test_automatic_padding(span, stride):
    total = span - stride if span > stride else 0
    upper, lower = (transposed_padding(pad, span, stride, 7, 9) for pad in ("same_upper", "same_lower"))
    assert sum(upper) == sum(lower) == total and upper == lower[::-1] and upper[0] <= upper[1]
    assert transposed_padding("none", span, stride, 7, 9) == (7, 9)
    assert transposed_padding("valid", span, stride, 7, 9) == (0, 0)


def test_padding_of_outputs():
    assert more_at_end(None, 2) == (0, 0) and more_at_end((1, 2), 2) == (1, 2)
    assert more_at_end((1, 2, *[0] * 10), 2) == (1, 2)
    for bad in ((1,), (-1, 0), (1, 2, 3)):
        with pytest.raises(GraphError, match=r"output_padding must be 2 values >= 0, one per spatial axis, got \["):
            more_at_end(bad, 2)


def test_memory_counts_before_it_is_taken():
    x, w = np.ones((2, 4, 5, 3), np.float32), np.ones((4, 2, 2, 3), np.float32)

    def run():
        return conv_transpose.reference(x, w, strides=[2, 3], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 2],
                                        output_padding=[1, 0], groups=2, data_format="NCX", weights_format="IOX")

    full = 8 * 2 * 4 * (4 * 2 + 2 + 1) * (2 * 3 + 5)
    with budget(full):
        assert run().shape == (2, 4, 11, 11)
    with budget(full - 1), pytest.raises(CompileError, match=r"the full result of \[2, 4, 5, 3\] at strides \[2, 3\]"):
        run()
