"""batch_norm_inference, layer_norm, group_norm, rms_norm and lrn against ONNX's reference and formulas in f64."""
import numpy as np
import pytest
from scipy import special

from graphq.dtypes import DTYPES
from graphq.errors import GraphError

rng = np.random.default_rng(77)


def normal(*shape, dtype="f32"):
    return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_batch_norm_as_onnx(run, onnx_node):
    x, g, b, m, v = normal(2, 3, 4, 5), normal(3), normal(3), normal(3), abs(normal(3))
    want = onnx_node("BatchNormalization", [x, g, b, m, v], opset=15, epsilon=0.0625)
    close(run("batch_norm_inference", x, g, b, m, v, epsilon=0.0625, data_format="NCX"), want)
    last = run("batch_norm_inference", np.moveaxis(x, 1, -1), g, b, m, v, epsilon=0.0625)
    close(np.moveaxis(last, -1, 1), want)


@pytest.mark.parametrize("axis", [-1, 1, 2, -3, 0])
def test_layer_norm_as_onnx(run, onnx_node, axis):
    x = normal(4, 3, 5)
    g, b = normal(*x.shape[axis:]), normal(*x.shape[axis:])
    want, mean, _ = onnx_node("LayerNormalization", [x, g, b], opset=17, outputs=3, axis=axis, epsilon=0.01)
    for gamma, beta in ((g, b), (g.reshape(-1), b.reshape(-1))):
        y, m, v = run("layer_norm", x, gamma, beta, begin_norm_axis=axis, epsilon=0.01)
        close(y, want)
        close(m, mean.reshape(m.shape))
    axes = tuple(range(axis % 3, 3))
    np.testing.assert_allclose(v, x.astype(np.float64).var(axis=axes), rtol=1e-6)


def test_layer_norm_without_affine(run):
    x = normal(6, 50)
    want = run("layer_norm", x, np.ones(50, np.float32), np.zeros(50, np.float32), keep_stats=False)
    np.testing.assert_array_equal(run("layer_norm", x, use_affine=False, keep_stats=False), want)
    # oneDNN ignores gamma and beta then
    np.testing.assert_array_equal(
        run("layer_norm", x, normal(50), normal(50), use_affine=False, keep_stats=False), want)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm_as_onnx(run, onnx_node, groups):
    x, g, b = normal(2, 6, 4, 3), normal(6), normal(6)
    want = onnx_node("GroupNormalization", [x, g, b], opset=21, num_groups=groups)
    y, mean, variance = run("group_norm", x, g, b, groups=groups, data_format="NCX")
    close(y, want)
    parts = x.reshape(2, groups, -1).astype(np.float64)
    close(mean, parts.mean(axis=-1))
    close(variance, parts.var(axis=-1))
    plain, *_ = run("group_norm", x, groups=groups, data_format="NCX", use_affine=False)
    np.testing.assert_array_equal(run("group_norm", x, g, b, groups=groups, data_format="NCX", use_affine=False,
                                      keep_stats=False), plain)
    last = run("group_norm", np.moveaxis(x, 1, -1), g, b, groups=groups, keep_stats=False)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), y)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm_by_its_formula(run, axis):
    x, g = normal(4, 3, 5), normal(*(3, 5)[axis % 3 - 1:])
    wide, axes = x.astype(np.float64), tuple(range(axis % 3, 3))
    want = wide / np.sqrt((wide**2).mean(axis=axes, keepdims=True) + 0.5)
    close(run("rms_norm", x, begin_norm_axis=axis, epsilon=0.5), want)
    close(run("rms_norm", x, g, begin_norm_axis=axis, epsilon=0.5), want * g)
    close(run("rms_norm", x, g.reshape(-1), begin_norm_axis=axis, epsilon=0.5), want * g)


def test_a_constant_row_and_nothing(run):
    x = np.full((2, 4), 3, np.float32)
    y, mean, variance = run("layer_norm", x, use_affine=False)
    assert (y == 0).all() and (mean == 3).all() and (variance == 0).all()
    assert (run("rms_norm", x * 0) == 0).all()
    assert run("layer_norm", x[:, :0], use_affine=False)[0].shape == (2, 0)
    assert run("rms_norm", x[:0]).shape == (0, 4)
    assert run("group_norm", np.zeros((0, 4, 2), np.float32), groups=2, use_affine=False)[1].shape == (0, 2)


@pytest.mark.parametrize("dtype, parameters", [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32")])
def test_half_precision_rounds_once(run, dtype, parameters):
    x = normal(3, 4, 6, dtype=dtype)
    p = [abs(normal(6, dtype=parameters)) for _ in range(4)]
    wide = [a.astype(np.float32) for a in (x, *p)]
    for name, count, attrs in (("batch_norm_inference", 4, {"epsilon": 1e-3}), ("layer_norm", 2, {}),
                               ("group_norm", 2, {"groups": 2}), ("rms_norm", 1, {})):
        got, want = run(name, x, *p[:count], **attrs), run(name, *wide[:count + 1], **attrs)
        if isinstance(got, tuple):
            for a, b in zip(got[1:], want[1:], strict=True):
                assert a.dtype == p[0].dtype
                np.testing.assert_array_equal(a, b.astype(a.dtype))
            got, want = got[0], want[0]
        np.testing.assert_array_equal(got, want.astype(x.dtype))


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (3, 4, 2), (4, 1, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 20])
def test_lrn_by_its_definition(run, shape, size, data_format):
    """An element over the mean square of the channels around its own, one element at a time in f64."""
    x = normal(*shape)
    want = np.empty(shape)
    for place in np.ndindex(shape):
        n, c, *rest = place
        first, last = max(0, c - (size - 1) // 2), min(shape[1] - 1, c + size // 2)
        total = sum(float(x[(n, k, *rest)])**2 for k in range(first, last + 1))
        want[place] = x[place] / (1.5 + 0.25 / size * total)**np.float32(0.7)
    given = x if data_format == "NCX" else np.moveaxis(x, 1, -1)
    got = run("lrn", given, size=size, alpha=0.25, beta=0.7, bias=1.5, data_format=data_format)
    np.testing.assert_allclose(got if data_format == "NCX" else np.moveaxis(got, -1, 1), want, rtol=1e-6)
    if size == 3:  # the defaults
        np.testing.assert_array_equal(run("lrn", given, size=3, data_format=data_format), run(
            "lrn", given, size=3, alpha=1e-4, beta=0.75, bias=1.0, data_format=data_format))


@pytest.mark.parametrize("name, types, attrs, want", [
    ("batch_norm_inference", ["f32[?,?,8]", "f32[4]", "f32[?]", "f32[*]", "f32[4]"],
     {"epsilon": 0.1, "data_format": "NCX"}, "f32[?,4,8]"),
    ("batch_norm_inference", ["bf16[*]", "bf16[4]", "bf16[?]", "bf16[*]", "bf16[4]"], {"epsilon": 0.1}, "bf16[*]"),
    ("layer_norm", ["bf16[?,3,4]", "bf16[4]", "bf16[*]"], {}, ("bf16[?,3,4]", "bf16[?,3]", "bf16[?,3]")),
    ("layer_norm", ["bf16[*]"], {"use_affine": False}, ("bf16[*]", "f32[*]", "f32[*]")),
    ("layer_norm", ["f32[2,?,4]", "f32[12]", "f32[3,?]"], {"begin_norm_axis": 1, "keep_stats": False}, "f32[2,?,4]"),
    ("group_norm", ["f16[?,6,?]", "f32[6]", "f32[?]"], {"groups": 3, "data_format": "NCX"},
     ("f16[?,6,?]", "f32[?,3]", "f32[?,3]")),
    ("group_norm", ["f32[*]"], {"groups": 3, "use_affine": False}, ("f32[*]", "f32[?,3]", "f32[?,3]")),
    *((name, ["f32[2,6]"], {"epsilon": 0.0, "use_affine": False, "keep_stats": False, **attrs}, "f32[2,6]")
      for name, attrs in (("layer_norm", {}), ("group_norm", {"groups": 3}))),
    ("batch_norm_inference", ["f32[2,3]", *["f32[3]"] * 4], {"epsilon": 0.0}, "f32[2,3]"),
    ("rms_norm", ["f32[2,3]"], {"epsilon": 0.0}, "f32[2,3]"),
    ("lrn", ["bf16[2,?,3]"], {"size": 3, "data_format": "NCX"}, "bf16[2,?,3]"),
    ("lrn", ["f32[*]"], {"size": 3}, "f32[*]"),
    ("rms_norm", ["f16[2,3]", "f16[3]"], {}, "f16[2,3]"), ("rms_norm", ["f32[*]"], {}, "f32[*]"),
])
def test_types(infer, name, types, attrs, want):
    assert infer(name, *types, **attrs) == want


@pytest.mark.parametrize("name, types, attrs, match", [
    ("batch_norm_inference", ["f32[2,3]", "f32[3]", "f32[3]", "f32[2]", "f32[3]"], {"epsilon": 0.1},
     r"'mean' must be \[3\], the channels of f32\[2,3\] in NXC, got \[2\]"),
    ("batch_norm_inference", ["f16[2,3]", *["f16[3]"] * 4], {"epsilon": 0.1}, "'gamma' must be f32, got f16"),
    ("batch_norm_inference", ["bf16[2,3]", "f32[3]", *["bf16[3]"] * 3], {"epsilon": 0.1}, "same dtype"),
    ("batch_norm_inference", ["f32[2,3]", *["f32[3]"] * 4], {"epsilon": -0.1},
     "epsilon must not be negative, got -0.1"),
    ("batch_norm_inference", ["f32[2,3]", *["f32[4]"] * 4], {"epsilon": 0.1}, r"'gamma' must be \[3\]"),
    *((name, ["f32[2,3]"], {**attrs, "epsilon": -0.1, "use_affine": False}, "epsilon must not be negative")
      for name, attrs in (("layer_norm", {}), ("group_norm", {"groups": 1}))),
    ("rms_norm", ["f32[2,3]"], {"epsilon": -0.1}, "epsilon must not be negative"),
    ("group_norm", ["f32[2,3]"], {"groups": 1}, "use_affine needs both, got none and use_affine True"),
    ("group_norm", ["f32[2,3]", "f32[3]"], {"groups": 1, "use_affine": False}, "must come together"),
    ("layer_norm", ["f32[2,3]"], {}, "use_affine needs both, got none and use_affine True"),
    ("layer_norm", ["f32[2,3]", "f32[3]"], {}, "come together, .* got gamma and use_affine True"),
    ("layer_norm", ["f32[2,3]", "f32[3]", "f32[2]"], {}, r"'beta' must be \[3\], the axes of f32\[2,3\] from 1 on"),
    ("layer_norm", ["f32[2,3]"], {"begin_norm_axis": 2, "use_affine": False}, "begin_norm_axis must be in .* got 2"),
    ("layer_norm", ["f32[2,3]"], {"epsilon": float("nan"), "use_affine": False}, "epsilon must be a finite f32"),
    ("group_norm", ["f32[2,6,3]"], {"groups": 4, "use_affine": False, "data_format": "NCX"},
     "divide the channels, got 4"),
    ("group_norm", ["f32[2,3,0]"], {"groups": 2, "use_affine": False}, "groups must be positive and divide"),
    ("group_norm", ["f32[2,6,3]"], {"groups": 0, "use_affine": False}, "divide the channels, got 0"),
    ("group_norm", ["f32[6]"], {"groups": 1, "use_affine": False}, "a batch and a channel axis"),
    ("group_norm", ["f32[2,6]", "f32[2]", "f32[6]"], {"groups": 2}, r"'gamma' must be \[6\]"),
    ("rms_norm", ["f32[2,3]", "f32[2,3]"], {}, r"'gamma' must be \[3\]"),
    ("rms_norm", ["f32[2,3]", "bf16[3]"], {}, "'gamma' must be f32, got bf16"),
    ("lrn", ["f32[2,3]"], {"size": 0}, "size must be positive, got 0"),
    *(("lrn", ["f32[2,3]"], {"size": 1, name: float("inf")}, f"{name} must be a finite f32")
      for name in ("alpha", "beta", "bias")),
    ("lrn", ["f64[2,3]"], {"size": 1}, "'src' must be f32, bf16 or f16, got f64"),
    ("lrn", ["f32[2]"], {"size": 1, "data_format": "NCX"}, "data_format NCX needs a channel axis"),
])
def test_rules(infer, name, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer(name, *types, **attrs)


INF, NAN = np.inf, np.nan
rng_of_norm = np.random.default_rng(9)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_softmax_values(run, float_dtype, axis):
    x = (rng_of_norm.standard_normal((3, 4, 50)) * 20).astype(DTYPES[float_dtype].numpy)
    want = special.softmax(x.astype(np.float64), axis=axis).astype(np.float32)
    for out in [float_dtype, "f32"]:
        got = run("softmax", x, axis=axis, dtype=out)
        expected = want.astype(DTYPES[out].numpy).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-7 if out == "f32" else 0)


def test_softmax_to_half_precision(run):
    x = rng_of_norm.standard_normal((3, 8)).astype(np.float32)
    for out in ("bf16", "f16"):
        np.testing.assert_array_equal(run("softmax", x, dtype=out), run("softmax", x).astype(DTYPES[out].numpy))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_stepwise_softmax_rounds_each_step(run, dtype):
    """As of 300 equal elements the sum does: bf16 has no 300 * 0.3711, and f16 no power of -9."""
    half = DTYPES[dtype].numpy
    x = (rng_of_norm.standard_normal((3, 2, 300)) * 4).astype(half)
    x[0, 0] = 1
    less = (x.astype(np.float32) - x.max(axis=-1, keepdims=True).astype(np.float32)).astype(half)
    powers = np.exp(less.astype(np.float64)).astype(np.float32).astype(half)
    total = powers.sum(axis=-1, keepdims=True, dtype=np.float64).astype(np.float32).astype(half)
    want = (powers.astype(np.float32) / total.astype(np.float32)).astype(half)
    got = run("softmax", x, axis=-1, mode="stepwise")
    assert got.dtype == half and (got != run("softmax", x, axis=-1)).any()
    np.testing.assert_array_equal(got, want)


ROWS = np.float32([[-INF, -INF, -INF], [0, -INF, 0], [NAN, 0, 1], [INF, 0, 1], [3e38, -3e38, 3e38]])


@pytest.mark.parametrize("mode, first", [("none", NAN), ("inf_as_zero", 0)])
def test_softmax_special_rows(run, mode, first):
    want = np.float32([[first] * 3, [0.5, 0, 0.5], [NAN] * 3, [NAN] * 3, [0.5, 0, 0.5]])
    np.testing.assert_array_equal(run("softmax", ROWS, mode=mode), want)


def test_softmax_stats(run):
    x = rng_of_norm.standard_normal((4, 6, 5)).astype(np.float32)
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

    x = rng_of_norm.standard_normal((5, 7)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "g", [value("x", 1, x.shape)],
                              [value("y", 1, x.shape)])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    np.testing.assert_allclose(run("softmax", x, axis=-1), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize("type, attrs, want", [
    ("f32[?,3]", {}, "f32[?,3]"), ("bf16[*]", {"axis": 9}, "bf16[*]"), ("f32[2,?]", {"dtype": "f16"}, "f16[2,?]"),
    ("f16[2,?]", {"mode": "stepwise", "dtype": "f16"}, "f16[2,?]"),
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
    ("f32[2,3]", {"mode": "stepwise"}, "is for f16 and bf16, without another dtype or statistics, got f32"),
    ("f16[2,3]", {"mode": "stepwise", "keep_stats": True}, "got f16"),
    ("bf16[2,3]", {"mode": "stepwise", "dtype": "f32"}, "got bf16"),
    ("bf16[2,3]", {"dtype": "f16"}, "dtype must be f32 or bf16 for an operand of bf16, got f16"),
])
def test_softmax_rules(infer, type, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("softmax", type, **attrs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_log_softmax_values(run, float_dtype, axis):
    x = (rng_of_norm.standard_normal((3, 4, 50)) * 20).astype(DTYPES[float_dtype].numpy)
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
