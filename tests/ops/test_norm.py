import numpy as np
import pytest
from scipy import special

from graphq.dtypes import DTYPES
from graphq.errors import GraphError

INF, NAN = np.inf, np.nan
rng = np.random.default_rng(9)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_softmax_values(run, float_dtype, axis):
    x = (rng.standard_normal((3, 4, 50)) * 20).astype(DTYPES[float_dtype].numpy)
    want = special.softmax(x.astype(np.float64), axis=axis).astype(np.float32)
    for out in [float_dtype, "f32"]:
        got = run("softmax", x, axis=axis, dtype=out)
        expected = want.astype(DTYPES[out].numpy).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-7 if out == "f32" else 0)


def test_softmax_to_half_precision(run):
    x = rng.standard_normal((3, 8)).astype(np.float32)
    for out in ("bf16", "f16"):
        np.testing.assert_array_equal(run("softmax", x, dtype=out), run("softmax", x).astype(DTYPES[out].numpy))


ROWS = np.float32([[-INF, -INF, -INF], [0, -INF, 0], [NAN, 0, 1], [INF, 0, 1], [3e38, -3e38, 3e38]])


@pytest.mark.parametrize("mode, first", [("none", NAN), ("inf_as_zero", 0)])
def test_softmax_special_rows(run, mode, first):
    want = np.float32([[first] * 3, [0.5, 0, 0.5], [NAN] * 3, [NAN] * 3, [0.5, 0, 0.5]])
    np.testing.assert_array_equal(run("softmax", ROWS, mode=mode), want)


def test_softmax_stats(run):
    x = rng.standard_normal((4, 6, 5)).astype(np.float32)
    out, stats = run("softmax", x, axis=-2, keep_stats=True)
    np.testing.assert_array_equal(out, run("softmax", x, axis=-2))
    want = special.logsumexp(x.astype(np.float64), axis=-2, keepdims=True)
    np.testing.assert_allclose(stats, want, rtol=1e-7, atol=1e-8)
    zeros, low = run("softmax", ROWS[:1], mode="inf_as_zero", keep_stats=True)
    assert zeros.tolist() == [[0, 0, 0]] and low.tolist() == [[-INF]]


@pytest.mark.parametrize("shape, axis", [((0,), 0), ((3, 0), 1), ((3, 0), 0), ((2, 0, 4), -1)])
def test_softmax_of_nothing(run, shape, axis):
    out, stats = run("softmax", np.zeros(shape, np.float32), axis=axis, keep_stats=True)
    assert out.shape == shape and stats.shape[axis] == 1


def test_softmax_as_onnx(run):
    onnx = pytest.importorskip("onnx")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    x = rng.standard_normal((5, 7)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "g", [value("x", 1, x.shape)],
                              [value("y", 1, x.shape)])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    np.testing.assert_allclose(run("softmax", x, axis=-1), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize("type, attrs, want", [
    ("f32[?,3]", {}, "f32[?,3]"), ("bf16[*]", {"axis": 9}, "bf16[*]"), ("f32[2,?]", {"dtype": "f16"}, "f16[2,?]"),
    ("bf16[2,?]", {"keep_stats": True}, ("bf16[2,?]", "f32[2,1]")),
    ("f16[*]", {"keep_stats": True}, ("f16[*]", "f32[*]")),
])
def test_softmax_types(infer, type, attrs, want):
    assert infer("softmax", type, **attrs) == want


@pytest.mark.parametrize("type, attrs, match", [
    ("f32[3]", {}, r"axis must be in \[-r, r-1\] with r = 1 for shape \[3\], got 1"),
    ("f32[2,3]", {"axis": -3}, "with r = 2 .*, got -3"),
    ("f32[]", {"axis": 0}, "with r = 0"),
    ("s32[2,3]", {}, "'src' must be f32, bf16 or f16, got s32"),
    ("bf16[2,3]", {"dtype": "f16"}, "dtype must be f32 or bf16 for a source of bf16, got f16"),
])
def test_softmax_rules(infer, type, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("softmax", type, **attrs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_log_softmax_values(run, float_dtype, axis):
    x = (rng.standard_normal((3, 4, 50)) * 20).astype(DTYPES[float_dtype].numpy)
    want = special.log_softmax(x.astype(np.float64), axis=axis).astype(np.float32).astype(x.dtype)
    np.testing.assert_allclose(run("log_softmax", x, axis=axis).astype(np.float32), want.astype(np.float32), rtol=1e-6)


def test_log_softmax_special_rows(run):
    want = np.float32([[NAN] * 3, [-np.log(2), -INF, -np.log(2)], [NAN] * 3, [NAN] * 3, [-np.log(2), -INF, -np.log(2)]])
    got = run("log_softmax", ROWS)
    np.testing.assert_allclose(np.where(got < -1e38, -INF, got), want, rtol=1e-7)
    assert run("log_softmax", np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_log_softmax_rules(infer):
    assert infer("log_softmax", "bf16[?,3]") == "bf16[?,3]"
    assert infer("log_softmax", "f32[*]", axis=8) == "f32[*]"
    with pytest.raises(GraphError, match="axis must be in .* got 2"):
        infer("log_softmax", "f32[2,3]", axis=2)
    with pytest.raises(GraphError, match="'src' must be f32, bf16 or f16, got s8"):
        infer("log_softmax", "s8[2,3]")
