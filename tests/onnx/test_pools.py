"""Pools that round up: which windows there are, and their numbers, against ONNX Runtime."""
import numpy as np
import pytest
from onnx_node import by_onnx_runtime, node_model
from onnx_runtime import results

import graphq as gq
from graphq.errors import GraphError
from graphq.onnx.protos import fallback

CASES = {  # shape, attributes; the spatial axes of the result
    "a window in nothing": ([1, 3, 8, 5], dict(kernel_shape=[2, 1], strides=[3, 3]), (3, 2)),
    "1x1": ([1, 1, 2, 2], dict(kernel_shape=[1, 1], strides=[2, 2]), (1, 1)),
    "a window in the padding": ([1, 2, 5], dict(kernel_shape=[2], strides=[4], pads=[1, 1]), (2,)),
    "one that fits into the padding": ([1, 2, 6], dict(kernel_shape=[2], strides=[3], pads=[0, 1]), (2,)),
    "one axis rounds up, one leaves out": ([1, 2, 5, 5], dict(kernel_shape=[3, 1], strides=[3, 3]), (2, 2)),
    "with padding": ([1, 2, 5, 5], dict(kernel_shape=[3, 2], strides=[3, 4], pads=[0, 1, 0, 1]), (2, 2)),
    "rounds up": ([2, 3, 7, 8], dict(kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 1, 1]), (4, 5)),
}


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("op,more", [("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})])
@pytest.mark.parametrize("name", CASES)
def test_no_window_starts_beyond_the_source(name, op, more, opset):
    shape, attrs, sizes = CASES[name]
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    for open_shapes in (False, True):
        m = node_model(op, [("x", x)], {**attrs, **more, "ceil_mode": 1}, opset=opset, domain="",
                       open_shapes=open_shapes)
        model = gq.compile(gq.load_onnx(m))
        y = model(x=x)
        assert y.shape[2:] == sizes and "onnx_node" not in model.explain()
        np.testing.assert_allclose(y, results(m, {"x": x})[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 10, 11, 18, 19, 22])
@pytest.mark.parametrize("more", [{}, {"count_include_pad": 1}, {"ceil_mode": 1},
                                  {"count_include_pad": 1, "ceil_mode": 1}], ids=str)
def test_means_add_in_the_order_of_the_kernel_of_their_version(opset, more):
    """Bit for bit those of ONNX Runtime, whose kernels before version 19 add in another order than those since."""
    if opset < 10 and "ceil_mode" in more:
        pytest.skip("ceil_mode came with version 10")
    x = np.random.default_rng(5).standard_normal((2, 3, 11, 13)).astype(np.float32)
    model = node_model("AveragePool", [("x", x)], dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1], **more),
                       domain="", opset=opset)
    assert np.array_equal(gq.reference(gq.load_onnx(model), {"x": x}), by_onnx_runtime(model, [("x", x)])[0])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("ceil", [0, 1])
def test_dilated_windows_that_pad_by_themselves(op, auto, ceil):
    x = np.random.default_rng(5).standard_normal((1, 2, 9, 8)).astype(np.float32)
    for strides, dilations in ([2, 1], [2, 2]), ([1, 3], [1, 2]), ([1, 1], [2, 1]):
        attrs = dict(kernel_shape=[3, 3], strides=strides, dilations=dilations, auto_pad=auto, ceil_mode=ceil)
        m = node_model(op, [("x", x)], attrs, domain="", opset=22)
        spans = [d * (k - 1) + 1 for k, d in zip((3, 3), dilations, strict=True)]
        sizes = [-(-n // s) if auto != "VALID" else (n - w) // s + 1
                 for n, s, w in zip((9, 8), strides, spans, strict=True)]
        totals = [max((o - 1) * s + w - n, 0) for o, s, w, n in zip(sizes, strides, spans, (9, 8), strict=True)]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = less + more if auto == "SAME_UPPER" else more + less
        plain = node_model(op, [("x", x)], {**attrs, "auto_pad": "NOTSET", "pads": pads, "ceil_mode": 0}, domain="",
                           opset=22)
        got = gq.reference(gq.load_onnx(m), {"x": x})
        assert list(got.shape[2:]) == sizes
        np.testing.assert_allclose(got, results(plain, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_integers():
    x = np.random.default_rng(3).integers(0, 256, (1, 3, 8, 5)).astype(np.uint8)
    m = node_model("MaxPool", [("x", x)], dict(kernel_shape=[2, 1], strides=[3, 3], ceil_mode=1), opset=12, domain="")
    y = gq.compile(gq.load_onnx(m))(x=x)
    assert np.array_equal(y, np.maximum(x[:, :, :8:3, ::3], x[:, :, 1::3, ::3]))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_valid_rounds_up_as_the_formula_says(op):
    """ceil((7 - 2 + 1) / 2) = 3"""
    x = np.random.default_rng(3).standard_normal((1, 1, 7, 7)).astype(np.float32)
    valid = dict(kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID")
    got, want = (gq.compile(gq.load_onnx(node_model(op, [("x", x)], attrs, opset=22, domain="")))(x=x)
                 for attrs in ({**valid, "ceil_mode": 1}, valid))
    assert got.shape == (1, 1, 3, 3) and np.array_equal(got, want)


@pytest.mark.parametrize("op,outputs", [("LpPool", 1), ("MaxPool", 2)])
def test_norms_and_indices(op, outputs):
    """Indices are by ONNX's reference, of which the shape inference before version 22 has a window more."""
    x = np.random.default_rng(3).standard_normal((1, 3, 8, 5)).astype(np.float32)
    m = node_model(op, [("x", x)], dict(kernel_shape=[2, 1], strides=[3, 3], ceil_mode=1), outputs, opset=18, domain="")
    got = gq.compile(gq.load_onnx(m))(x=x)
    for y, want in zip(got.values() if outputs > 1 else [got], results(m, {"x": x}), strict=True):
        assert y.shape == (1, 3, 3, 2)
        np.testing.assert_allclose(y, want, rtol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("more", [{}, {"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"ceil_mode": 1}])
def test_norms_of_windows(p, more):
    x = np.random.default_rng(3).standard_normal((1, 3, 8, 6)).astype(np.float32)
    m = node_model("LpPool", [("x", x)], dict(kernel_shape=[3, 2], strides=[2, 3], p=p, **more), opset=18, domain="")
    model = gq.compile(gq.load_onnx(m))
    assert "onnx_node" not in model.explain()
    np.testing.assert_allclose(model(x=x), results(m, {"x": x})[0], rtol=1e-5)


def test_a_reference_that_contradicts_the_inference_is_named(monkeypatch):
    class Wrong:
        def run(self, _, feeds):
            return [feeds["x"][:2]]

    x = np.zeros((3, 2, 2), np.float32)
    g = gq.load_onnx(node_model("Det", [("x", x)], opset=17, domain=""))
    monkeypatch.setattr(fallback, "_evaluator", lambda model: Wrong())
    with pytest.raises(GraphError, match=r"ONNX Det '': the reference gives shape \[2, 2, 2\].*f32\[3\]"):
        gq.compile(g)(x=x)


@pytest.mark.parametrize("open_shapes", [False, True])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "Conv", "MaxPool indices"])
@pytest.mark.parametrize("attrs", [{}, {"auto_pad": "VALID"}, {"strides": [2, 2]}, {"ceil_mode": 1}])
def test_a_window_larger_than_its_padded_source_is_refused(op, attrs, open_shapes):
    if op == "Conv" and "ceil_mode" in attrs:
        pytest.skip("convolutions do not round")
    x, w = np.ones((1, 2, 3, 3), np.float32), np.ones((2, 2, 5, 5), np.float32)
    operands = [("x", x), ("W", w)] if op == "Conv" else [("x", x)]
    m = node_model(op.split()[0], operands, {**attrs, "kernel_shape": [5, 5]}, 2 if "indices" in op else 1, opset=18,
                   domain="", open_shapes=open_shapes)
    with pytest.raises(GraphError, match="a window of 5 elements does not fit into 3 padded by 0 and 0"):
        gq.compile(gq.load_onnx(m))(x=x)


@pytest.mark.parametrize("order", [0, 1])
def test_places_of_maxima_where_shapes_are_open(order):
    """One plan for all sizes: places count the elements of images and channels, padding has none."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 5, 4)).astype(np.float32)
    attrs = {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [1, 2], "storage_order": order}
    model = gq.compile(gq.load_onnx(node_model("MaxPool", [("x", x)], attrs, 2, opset=18, domain="", open_shapes=True)))
    for shape in ((2, 3, 5, 4), (3, 2, 7, 6), (1, 1, 2, 5)):
        x = rng.standard_normal(shape).astype(np.float32)
        values, places = model(x=x).values()
        padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 1)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), axis=(2, 3))[:, :, :, ::2]
        assert np.array_equal(values, windows.max(axis=(4, 5)))
        n, c, *image = np.unravel_index(places, shape if order == 0 else (*shape[:2], *shape[:1:-1]))
        h, w = image[::-1] if order else image
        assert np.array_equal(x[n, c, h, w], values)
        assert (n == np.arange(shape[0])[:, None, None, None]).all() and (c == np.arange(shape[1])[:, None, None]).all()


def test_rounding_up_of_a_window_that_reaches_beyond_the_source():
    x = np.random.default_rng(1).standard_normal((1, 2, 3, 3)).astype(np.float32)
    m = node_model("MaxPool", [("x", x)], dict(kernel_shape=[5, 5], strides=[3, 3], ceil_mode=1), opset=18, domain="")
    assert np.array_equal(gq.compile(gq.load_onnx(m))(x=x), x.max(axis=(2, 3), keepdims=True))


def test_the_greatest_of_nothing_is_refused():
    for open_shapes in (False, True):
        m = node_model("GlobalMaxPool", [("x", np.ones((1, 2, 0, 3), np.float32))], opset=17, domain="",
                       open_shapes=open_shapes)
        with pytest.raises(GraphError, match="without pixels"):
            gq.compile(gq.load_onnx(m))(x=np.ones((1, 2, 0, 3), np.float32))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("axis", [0, 1])
def test_images_and_channels_are_resized_too(axis, mode):
    """By ONNX's reference: kernels resize along spatial axes alone."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    scales = np.ones(4, np.float32)
    scales[axis] = 2
    attrs = dict(mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    got = gq.compile(gq.load_onnx(node_model("Resize", [("x", x), ("roi", None), ("S", scales)], attrs, opset=19,
                                             domain="")))(x=x)
    if mode == "linear":
        after = x.take(np.minimum(np.arange(x.shape[axis]) + 1, x.shape[axis] - 1), axis)
        want = np.stack([x, (x + after) / 2], axis + 1).reshape(got.shape)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, x.repeat(2, axis))


@pytest.mark.parametrize("axes", [None, [2, 3]])
@pytest.mark.parametrize("length", ["?", "*"])
def test_sizes_of_a_resize_may_have_an_unknown_length(length, axes):
    """ONNX's shape inference takes the unknown length for 0 and refuses it."""
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    sizes = np.array([6, 8] if axes else [1, 2, 6, 8])
    m = node_model("Resize", [("x", x), ("roi", None), ("S", None), ("n", sizes)], {"axes": axes} if axes else {},
                   opset=19, domain="")
    if length == "?":
        m.graph.input[-1].type.tensor_type.shape.dim[0].Clear()
    else:
        m.graph.input[-1].type.tensor_type.ClearField("shape")
    compiled = gq.compile(gq.load_onnx(m))
    np.testing.assert_array_equal(compiled(x=x, n=sizes), x.repeat(2, 2).repeat(2, 3))
    with pytest.raises(GraphError):
        compiled(x=x, n=np.append(sizes, 1))


@pytest.mark.parametrize("mode,length,scale,places", [
    ("align_corners", 13, 1.7, np.arange(22) * 12 / (13 * 1.7 - 1)), ("pytorch_half_pixel", 3, 0.5, np.array([0.5])),
    ("align_corners", 4, 0.6, np.array([0, 3 / 1.4]))])
def test_a_resized_length_has_its_fraction(mode, length, scale, places):
    """As docs/onnx.md says; the last is ONNX's node test."""
    x = np.random.default_rng(0).standard_normal((1, 1, length)).astype(np.float32)
    m = node_model("Resize", [("x", x), ("roi", None), ("S", np.float32([1, 1, scale]))],
                   dict(mode="linear", coordinate_transformation_mode=mode), opset=19, domain="")
    want = np.interp(places, np.arange(length), x[0, 0])
    np.testing.assert_allclose(gq.compile(gq.load_onnx(m))(x=x)[0, 0], want, rtol=1e-5, atol=1e-6)
