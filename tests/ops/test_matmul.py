import ml_dtypes
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError

rng = np.random.default_rng(3)


def normal(*shape, dtype="f32"):
    return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)


SHAPES = [((4, 5), (5, 3)), ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (5,)),
          ((5,), (2, 5, 3)), ((7, 1, 4, 5), (2, 5, 3)), ((1, 4, 5), (6, 5, 3)), ((0, 5), (5, 3)), ((4, 0), (0, 3)),
          ((4, 5), (5, 0)), ((0, 4, 5), (1, 5, 3))]


@pytest.mark.parametrize("a, b", SHAPES)
def test_ranks_as_numpy(run, a, b):
    x, w = normal(*a), normal(*b)
    want = np.matmul(x.astype(np.float64), w.astype(np.float64))
    got = run("matmul", x, w)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_transposes(run, ta, tb, batch):
    x, w = normal(*batch, 4, 5), normal(*batch, 5, 3)
    want = run("matmul", x, w)
    got = run("matmul", x.swapaxes(-1, -2) if ta else x, w.swapaxes(-1, -2) if tb else w, transpose_a=ta,
              transpose_b=tb)
    np.testing.assert_array_equal(got, want)


def test_one_dimensional_operands_ignore_transposes(run):
    x, w = normal(5), normal(5, 3)
    np.testing.assert_array_equal(run("matmul", x, w, transpose_a=True), run("matmul", x, w))
    np.testing.assert_array_equal(run("matmul", w.T, x, transpose_b=True), run("matmul", w.T, x))


def test_integers_are_exact(run):
    x = rng.integers(-255, 256, (3, 700)).astype(np.float32)
    w = rng.integers(-127, 128, (700, 4)).astype(np.float32)
    want = x.astype(np.int64) @ w.astype(np.int64)
    np.testing.assert_array_equal(run("matmul", x, w), want.astype(np.float32))


def test_bias_is_bias_add(run):
    x, w, b = normal(2, 4, 5), normal(5, 3), normal(3)
    want = run("bias_add", run("matmul", x, w), b)
    np.testing.assert_array_equal(run("matmul", x, w, b), want)
    np.testing.assert_array_equal(run("matmul", x, w, b.reshape(1, 3)), want)


def test_half_precision_is_rounded_once(run, float_dtype):
    x, w, b = normal(6, 300, dtype=float_dtype), normal(300, 5, dtype=float_dtype), normal(5, dtype=float_dtype)
    acc = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    want = acc + b.astype(np.float32)
    np.testing.assert_array_equal(run("matmul", x, w, b, dtype="f32"), want)
    np.testing.assert_array_equal(run("matmul", x, w, b), want.astype(x.dtype))


def test_overflow_and_nan_are_quiet(run):
    x = np.array([[3e38, 3e38], [np.inf, -np.inf], [np.nan, 1]], np.float32)
    np.testing.assert_array_equal(run("matmul", x, np.ones((2, 1), np.float32)).ravel(), [np.inf, np.nan, np.nan])
    big = np.full((1, 1), 6e4, np.float16)
    assert run("matmul", big, big)[0, 0] == np.inf
    assert run("matmul", big, big, dtype="f32")[0, 0] == np.float32(float(big[0, 0]) ** 2)


def test_as_onnx(run):
    onnx = pytest.importorskip("onnx")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    x, w = normal(2, 4, 5), normal(5, 3)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                              [value("x", 1, x.shape), value("w", 1, w.shape)], [value("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    np.testing.assert_allclose(run("matmul", x, w), ReferenceEvaluator(model).run(None, {"x": x, "w": w})[0], rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize("a, b, attrs, want", [
    ("f32[?,5]", "f32[5,3]", {}, "f32[?,3]"),
    ("f32[4,?]", "f32[5,3]", {}, "f32[4,3]"),
    ("f32[?,?,5]", "f32[2,5,3]", {}, "f32[2,?,3]"),
    ("f32[?,4,5]", "f32[1,5,3]", {}, "f32[?,4,3]"),
    ("f32[?,4]", "f32[?,?]", {"transpose_a": True, "transpose_b": True}, "f32[4,?]"),
    ("f32[*]", "f32[5,3]", {}, "f32[*]"),
    ("f32[5,3]", "f32[*]", {}, "f32[*]"),
    ("bf16[4,5]", "bf16[5,3]", {"dtype": "f32", "accumulation_mode": "relaxed"}, "f32[4,3]"),
])
def test_types(infer, a, b, attrs, want):
    assert infer("matmul", a, b, **attrs) == want


@pytest.mark.parametrize("weights, bias", [("f32[5,3]", "f32[7,3]"), ("f32[2,5,3]", "f32[7,1]"),
                                           ("f32[5,3]", "f32[?]")])
def test_a_bias_of_a_product_of_unknown_rank_needs_its_columns_only(infer, weights, bias):
    assert infer("matmul", "f32[*]", weights, bias) == "f32[*]"


@pytest.mark.parametrize("a, b, bias, attrs, match", [
    ("f32[4,5]", "f32[6,3]", None, {}, r"k must agree, got 5 and 6 in \[4,5\] times \[6,3\]"),
    ("f32[4,5]", "f32[5,3]", None, {"transpose_b": True}, r"k must agree, got 5 and 3 in \[4,5\] times \[3,5\]"),
    ("f32[4,5]", "f32[5,3]", None, {"transpose_a": True}, r"k must agree, got 4 and 5 in \[5,4\] times"),
    ("f32[5]", "f32[6]", None, {}, "k must agree, got 5 and 6"),
    ("f32[5]", "f32[6]", None, {"transpose_b": True}, "k must agree, got 5 and 6"),
    ("f32[4,5]", "f32[6]", None, {}, "k must agree, got 5 and 6"),
    ("f32[?,5]", "f32[6,?]", None, {}, "k must agree, got 5 and 6"),
    ("f32[2,4,5]", "f32[3,5,6]", None, {}, r"batch dimensions of .* \[2\] and \[3\] do not broadcast: 2 against"),
    ("f32[]", "f32[5,3]", None, {}, "'src' must have at least one dimension"),
    ("f32[5]", "f32[]", None, {}, "'weights' must have at least one dimension"),
    ("f32[4,5]", "f32[5,3]", "f32[4]", {}, r"'bias' must broadcast to the output \[4,3\], as \[3\] does, got f32\[4\]"),
    ("f32[4,5]", "f32[5,3]", "f32[2,1]", {}, r"'bias' must broadcast"),
    ("f32[4,5]", "f32[5,3]", "f32[3,3]", {}, r"'bias' must broadcast to the output \[4,3\]"),
    ("f32[4,5]", "f32[5,3]", "f32[1,1,3]", {}, r"'bias' must broadcast to the output \[4,3\].*got f32\[1,1,3\]"),
    ("f32[5]", "f32[5,3]", "f32[1,3]", {}, r"'bias' must broadcast to the output \[3\]"),
    ("f32[4,5]", "f32[5,3]", "f32[]", {}, r"'bias' must have at least one dimension"),
    ("f32[4,5]", "f32[5]", "f32[1]", {}, "'bias' needs weights with columns"),
    ("f32[*]", "f32[5,3]", "f32[4]", {}, r"'bias' must broadcast.*as \[3\] does"),
    ("f32[4,5]", "f16[5,3]", None, {}, "same dtype, got 'src' f32, 'weights' f16"),
    ("bf16[4,5]", "bf16[5,3]", "f32[3]", {}, "same dtype, got .* 'bias' f32"),
    ("u8[4,5]", "s8[5,3]", None, {}, "'src' must be f32, bf16 or f16, got u8"),
    ("f32[4,5]", "f32[5,3]", None, {"accumulation_mode": "f64"}, "'accumulation_mode' must be one of"),
])
def test_rules(infer, a, b, bias, attrs, match):
    with pytest.raises(GraphError, match=r"matmul\(.*" + match):
        infer("matmul", a, b, bias, **attrs)


# -- bias_add -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format, shape, axis", [("NXC", (2, 4, 3), 2), ("NCX", (2, 3, 4, 5), 1),
                                                      ("NCX", (2, 3), 1), ("NXC", (3,), 0), ("NXC", (0, 3), 1)])
def test_bias_add(run, float_dtype, data_format, shape, axis):
    x, b = normal(*shape, dtype=float_dtype), normal(shape[axis], dtype=float_dtype)
    want = np.stack([x.take(c, axis).astype(np.float32) + np.float32(b[c]) for c in range(len(b))], axis)
    np.testing.assert_array_equal(run("bias_add", x, b, data_format=data_format), want.astype(x.dtype))


@pytest.mark.parametrize("src, bias, data_format, want", [
    ("f32[?,?]", "f32[3]", "NXC", "f32[?,3]"), ("f32[2,?,4]", "f32[3]", "NCX", "f32[2,3,4]"),
    ("f32[*]", "f32[3]", "NCX", "f32[*]"), ("f32[2,3]", "f32[?]", "NXC", "f32[2,3]"),
    ("f32[2,?]", "f32[*]", "NXC", "f32[2,?]"),
])
def test_bias_add_types(infer, src, bias, data_format, want):
    assert infer("bias_add", src, bias, data_format=data_format) == want


@pytest.mark.parametrize("src, bias, data_format, match", [
    ("f32[2,3]", "f32[2]", "NXC", r"'bias' must be \[3\], the channels at axis 1 of f32\[2,3\] in NXC, got f32\[2\]"),
    ("f32[2,3,4]", "f32[4]", "NCX", r"'bias' must be \[3\], the channels at axis 1"),
    ("f32[2,3]", "f32[1]", "NXC", r"'bias' must be \[3\]"),
    ("f32[2,3]", "f32[1,3]", "NXC", "'bias' must be one-dimensional"),
    ("f32[3]", "f32[3]", "NCX", r"data_format NCX needs a channel axis, got shape \[3\]"),
    ("f32[]", "f32[3]", "NXC", r"data_format NXC needs a channel axis, got shape \[\]"),
    ("f32[2,3]", "f32[3]", "NHWC", "'data_format' must be one of 'NCX', 'NXC'"),
])
def test_bias_add_rules(infer, src, bias, data_format, match):
    with pytest.raises(GraphError, match=match):
        infer("bias_add", src, bias, data_format=data_format)


def test_bf16_bias_add_rounds_once(run):
    x = np.array([[1.0]], ml_dtypes.bfloat16)
    b = np.array([2.0**-8 + 2.0**-15], ml_dtypes.bfloat16)
    assert run("bias_add", x, b)[0, 0] == ml_dtypes.bfloat16(np.float32(1) + np.float32(b[0]))
