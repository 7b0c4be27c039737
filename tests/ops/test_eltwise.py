"""Unary ops against SciPy and NumPy in f64, against ONNX, and at the special values by hand."""
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from graphq.dtypes import DTYPES
from graphq.errors import GraphError

INF, NAN = np.inf, np.nan
rng = np.random.default_rng(11)
SAMPLE = np.concatenate([rng.standard_normal(400) * s for s in (1e-3, 1.0, 10.0, 80.0)]
                        + [[0.0, -0.0, 0.5, 1.5, 2.5, -0.5, 3.0, -3.0, 1e-30, -1e-30, 88.9, -104.0, 1e30, -1e30]])


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


# op, attributes, the function in f64; `ulp`: how many f32 steps the f32 arithmetic may be off (0: correctly rounded)
FUNCTIONS = [
    ("abs", {}, np.abs, 0), ("square", {}, np.square, 0), ("sqrt", {}, np.sqrt, 0), ("round", {}, np.rint, 0),
    ("reciprocal", {}, lambda x: 1 / x, 0), ("exp", {}, np.exp, 0), ("log", {}, np.log, 0), ("tanh", {}, np.tanh, 0),
    ("sigmoid", {}, special.expit, 0), ("gelu", {}, lambda x: x * special.ndtr(x), 0),
    ("mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(np.minimum(x, 700)))), 0),
    ("softplus", {}, lambda x: -special.log_expit(-x), 0),
    ("softplus", {"beta": -2.5}, lambda x: special.log_expit(2.5 * x) / 2.5, 0),
    ("pow", {"beta": 3.0}, lambda x: x * x * x, 2), ("pow", {"beta": 2.0}, np.square, 0),
    ("pow", {"beta": 0.5}, lambda x: np.sqrt(np.where(x == -INF, INF, x)), 0),
    ("pow", {"beta": 0.0}, np.ones_like, 0), ("relu", {}, lambda x: np.maximum(x, 0), 0),
    ("clamp", {"min": -1.5, "max": 6}, lambda x: np.clip(x, -1.5, 6), 0),
    ("clamp", {"min": -INF, "max": 2}, lambda x: np.minimum(x, 2), 0),
    ("leaky_relu", {"alpha": 0.25}, lambda x: np.where(x < 0, x / 4, x), 0),
    ("elu", {"alpha": 1.0}, lambda x: np.where(x < 0, np.expm1(x), x), 0),
    ("elu", {"alpha": 0.5}, lambda x: np.where(x < 0, np.expm1(x) / 2, x), 0),
    ("elu", {"alpha": 0.0}, lambda x: np.where(x < 0, -0.0, x), 0),
    ("hard_sigmoid", {"alpha": 0.25, "beta": 0.5}, lambda x: np.clip(x / 4 + 0.5, 0, 1), 1),
    ("hard_swish", {}, lambda x: x * np.clip(x + 3, 0, 6) / 6, 3),
]


@pytest.mark.parametrize("name, attrs, function, ulp", FUNCTIONS, ids=lambda p: p if isinstance(p, str) else None)
def test_values(run, float_dtype, name, attrs, function, ulp):
    dtype = DTYPES[float_dtype].numpy
    with np.errstate(all="ignore"):
        x = SAMPLE.astype(np.float32).astype(dtype)
        want = function(x.astype(np.float64)).astype(np.float32)
    got = run(name, x, **attrs)
    if ulp == 0 or float_dtype != "f32":
        with np.errstate(all="ignore"):
            want = want.astype(dtype)
    # x / 6 + 1/2 rounds in f32: near x = -3 that is an absolute error, not a relative one
    rtol = ulp * 2e-7 if float_dtype == "f32" else 0
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=ulp * 1e-7)


@pytest.mark.parametrize("mode", ["gelu_erf", "gelu_tanh"])
def test_gelu_has_full_relative_precision(run, mode):
    x = np.linspace(-12, 12, 2001).astype(np.float32)
    got = run("gelu", x, mode=mode)
    if mode == "gelu_erf":
        np.testing.assert_allclose(got, x * special.ndtr(x.astype(np.float64)), rtol=6e-8, atol=1e-45)
    else:
        np.testing.assert_allclose(got, gelu_tanh(x.astype(np.float64)), rtol=6e-8, atol=1e-15)


SPECIAL = [0.0, -0.0, INF, -INF, NAN, -1.0]


@pytest.mark.parametrize("name, attrs, want", [
    ("abs", {}, [0.0, 0.0, INF, INF, NAN, 1]), ("exp", {}, [1, 1, INF, 0.0, NAN, np.exp(-1)]),
    ("log", {}, [-INF, -INF, INF, NAN, NAN, NAN]), ("sqrt", {}, [0.0, -0.0, INF, NAN, NAN, NAN]),
    ("square", {}, [0.0, 0.0, INF, INF, NAN, 1]), ("reciprocal", {}, [INF, -INF, 0.0, -0.0, NAN, -1]),
    ("round", {}, [0.0, -0.0, INF, -INF, NAN, -1]), ("relu", {}, [0.0, -0.0, INF, 0.0, NAN, 0.0]),
    ("sigmoid", {}, [0.5, 0.5, 1, 0.0, NAN, special.expit(-1)]), ("tanh", {}, [0.0, -0.0, 1, -1, NAN, np.tanh(-1)]),
    ("gelu", {}, [0.0, -0.0, INF, NAN, NAN, -special.ndtr(-1)]),
    ("gelu", {"mode": "gelu_tanh"}, [0.0, -0.0, INF, NAN, NAN, gelu_tanh(-1.0)]),
    ("mish", {}, [0.0, -0.0, INF, NAN, NAN, -np.tanh(np.log1p(np.exp(-1)))]),
    ("softplus", {}, [np.log(2), np.log(2), INF, 0.0, NAN, np.log1p(np.exp(-1))]),
    ("hard_swish", {}, [0.0, -0.0, INF, NAN, NAN, -1 / 3]),
    ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}, [0.5, 0.5, 1, 0.0, NAN, 0.3]),
    ("clamp", {"min": 0, "max": 6}, [0.0, -0.0, 6, 0.0, NAN, 0.0]),
    ("clamp", {"min": 2, "max": 2}, [2, 2, 2, 2, NAN, 2]),
    ("leaky_relu", {"alpha": 0.5}, [0.0, -0.0, INF, -INF, NAN, -0.5]),
    ("elu", {"alpha": 2}, [0.0, -0.0, INF, -2, NAN, 2 * np.expm1(-1)]),
    ("pow", {"beta": -1}, [INF, -INF, 0.0, -0.0, NAN, -1]),
    ("pow", {"beta": 0.5}, [0.0, 0.0, INF, INF, NAN, NAN]),
])
def test_special_values(run, float_dtype, name, attrs, want):
    dtype = DTYPES[float_dtype].numpy
    got = run(name, np.array(SPECIAL, np.float32).astype(dtype), **attrs).astype(np.float32)
    want = np.array(want, np.float32).astype(dtype).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2e-7 if float_dtype == "f32" else 0)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize("name, attrs", [(f[0], f[1]) for f in FUNCTIONS])
def test_shapes(run, name, attrs, shape):
    assert run(name, np.ones(shape, ml_dtypes.bfloat16), **attrs).shape == shape


ONNX_OPS = [
    ("relu", {}, "Relu", 14, {}), ("elu", {"alpha": 0.7}, "Elu", 6, {"alpha": 0.7}), ("round", {}, "Round", 11, {}),
    ("leaky_relu", {"alpha": 0.1}, "LeakyRelu", 16, {"alpha": 0.1}), ("hard_swish", {}, "HardSwish", 14, {}),
    ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}, "HardSigmoid", 6, {"alpha": 0.2, "beta": 0.5}),
    ("gelu", {}, "Gelu", 20, {}), ("gelu", {"mode": "gelu_tanh"}, "Gelu", 20, {"approximate": "tanh"}),
    ("mish", {}, "Mish", 18, {}), ("softplus", {}, "Softplus", 1, {}), ("sigmoid", {}, "Sigmoid", 13, {}),
]


@pytest.mark.parametrize("name, attrs, onnx_op, opset, onnx_attrs", ONNX_OPS)
def test_as_onnx(run, name, attrs, onnx_op, opset, onnx_attrs):
    onnx = pytest.importorskip("onnx")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    x = rng.uniform(-8, 8, (40, 7)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node(onnx_op, ["x"], ["y"], **onnx_attrs)], "g", [value("x", 1, x.shape)],
                              [value("y", 1, x.shape)])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    want = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(run(name, x, **attrs), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name, attrs, match", [
    ("clamp", {"min": 1, "max": 0}, "min must not exceed max, and neither may be NaN, got min 1.0, max 0.0"),
    ("clamp", {"min": NAN, "max": 0}, "min must not exceed max, and neither may be NaN, got min nan"),
    ("clamp", {"min": 0, "max": NAN}, "min must not exceed max.* max nan"),
    ("elu", {"alpha": -1}, "alpha must not be negative, got -1.0"),
    ("elu", {"alpha": NAN}, "alpha must be a finite f32, got nan"),
    ("leaky_relu", {"alpha": INF}, "alpha must be a finite f32, got inf"),
    ("leaky_relu", {"alpha": 1e39}, r"alpha must be a finite f32, got 1e\+39"),
    ("hard_sigmoid", {"alpha": NAN, "beta": 0}, "alpha must be a finite f32"),
    ("hard_sigmoid", {"alpha": 0, "beta": NAN}, "beta must be a finite f32"),
    ("softplus", {"beta": 0}, "beta must not be zero as an f32, got 0.0"),
    ("softplus", {"beta": 1e-60}, "beta must not be zero as an f32, got 1e-60"),
    ("softplus", {"beta": INF}, "beta must be a finite f32"),
    ("pow", {"beta": NAN}, "beta must be a finite f32, got nan"),
])
def test_rules(infer, name, attrs, match):
    with pytest.raises(GraphError, match=rf"{name}\(x0: f32\[4\]\): {match}"):
        infer(name, "f32[4]", **attrs)


@pytest.mark.parametrize("type", ["f32[?,3]", "bf16[*]", "f16[]"])
@pytest.mark.parametrize("name", ["relu", "exp", "gelu"])
def test_unknown_shapes_pass(infer, name, type):
    assert infer(name, type) == type


# -- type_cast ----------------------------------------------------------------------------------------------------


def test_type_cast_rounds_to_nearest_even(run):
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 3.4e38, INF, NAN], np.float32)
    got = run("type_cast", x, dtype="bf16").astype(np.float32)
    np.testing.assert_array_equal(got, np.float32([1, 1, 1 + 2**-6, -1, INF, INF, NAN]))
    half = run("type_cast", np.array([65504, 65519, 65520, 1 + 2**-11, 1 + 3 * 2**-11], np.float32), dtype="f16")
    np.testing.assert_array_equal(half, np.float16([65504, 65504, INF, 1, 1 + 2**-9]))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_type_cast_widens_exactly(run, dtype):
    x = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype].numpy)
    y = run("type_cast", x, dtype="f32")
    numbers = ~np.isnan(y)
    back = run("type_cast", y, dtype=dtype)
    np.testing.assert_array_equal(back.view(np.uint16)[numbers], x.view(np.uint16)[numbers])
