"""Functions of f32: accuracy against f64, and edges."""
import numpy as np
import pytest
from scipy import special

from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import DEFINITIONS, STORAGE, load

X = load(0, "f32", "vector")
EXACT = {"exp": np.exp, "log": np.log, "tanh": np.tanh, "sigmoid": special.expit, "erf": special.erf}
INF, NAN = float("inf"), float("nan")


def exact_gelu_tanh(x):
    return x * special.expit(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3))


def exact_mish(x):
    e = np.exp(-np.abs(x))
    return x * np.where(x < 0, e * (e + 2) / (e * e + 2 * e + 2), (2 * e + 1) / (2 * e * e + 2 * e + 1))


def exact_softplus(x, beta):
    return np.where(beta * x > 0, x, -0.0) + np.log1p(np.exp(-np.abs(beta * x))) / beta


def exact_elu(x, alpha):
    return np.where(x < 0, alpha * np.expm1(x), x)


# Name, exact function, parameters, bound in ulp; measured on finer grids: 5.1, 3.1, 4.5, 3.8 and 1.7.
COMPOSITE = [("gelu_erf", lambda x: 0.5 * x * special.erfc(-x * np.sqrt(0.5)), (), 5.1),
             ("gelu_tanh", exact_gelu_tanh, (), 4), ("mish", exact_mish, (), 5),
             *(("softplus", exact_softplus, (beta,), 4) for beta in (1, 0.7, -1, -3.3, 1e-3, 20.1, 1e30, -1e-30)),
             *(("elu", exact_elu, (alpha,), 2) for alpha in (1, 0.7, 1e-5, 1e30, 0))]


def all_over_f32(step):
    """Every step-th f32 by its bits, and the neighborhood of interesting numbers."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    near = np.array([0, -0.0, 1, -1, 2.0**-126, 2.0**-149, INF, 88.72284, -87.33655, -103.97208, 0.625, 0.927734375,
                     9.01, 2**-0.5, 2**0.5], np.float32).view(np.uint32)
    near = (near[:, None].astype(np.int64) + np.arange(-300, 301)).astype(np.uint32).ravel()
    return np.concatenate([bits, near]).view(np.float32)


def ulps(got, exact):
    """Distance from the exact value in units of the last place of f32 there."""
    exponent = np.frexp(exact)[1]
    return np.abs(got.astype(np.float64) - exact) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


def test_every_function_is_tried():
    functions = {name for name in vars(elementary) if name in DEFINITIONS}
    others = {"hard_sigmoid", "hard_swish", "round_bf16"}
    tried = EXACT.keys() | {name for name, *_ in COMPOSITE} | {f"near_{name}" for name in elementary.NEAR}
    assert functions - others == tried, "a function has a line in a list"


def test_bf16_is_the_nearest():
    """Ties go to even; a NaN stays one, whatever its bits are."""
    bits = np.array([0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFF8000, 0xFFFFFFFF], np.uint32)
    x = np.concatenate([all_over_f32(4093), bits.view(np.float32)])
    with np.errstate(all="ignore"):
        exact = x.astype(STORAGE["bf16"]).astype(np.float32)
    got = evaluate(elementary.round_bf16(X), None, [x])
    np.testing.assert_array_equal(got, exact)
    assert np.isnan(got[-len(bits):]).all()


@pytest.mark.parametrize("name", EXACT)
def test_at_most_2_ulp_over_all_of_f32(name):
    x = all_over_f32(4093)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    got = evaluate(getattr(elementary, name)(X), None, [x])
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])  # inf and NaN where they should be
    assert ulps(got[finite], exact[finite]).max() <= 2


@pytest.mark.parametrize(("name", "exact", "parameters", "bound"), COMPOSITE)
def test_activations_keep_their_tails(name, exact, parameters, bound):
    x = np.concatenate([all_over_f32(40_009), np.linspace(-20, 20, 40_001, dtype=np.float32),
                        np.linspace(-180, -20, 10_001, dtype=np.float32)])
    parameters = [np.float32(p) for p in parameters]
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64), *(np.float64(p) for p in parameters))
        rounded = expected.astype(np.float32)
    scalars = (load(k + 1, "f32", "scalar") for k in range(len(parameters)))
    got = evaluate(getattr(elementary, name)(X, *scalars), None, [x, *parameters])
    finite, number = np.isfinite(rounded), rounded == rounded
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(rounded[number]))
    assert ulps(got[finite], expected[finite]).max() <= bound


@pytest.mark.parametrize("name", elementary.NEAR)
def test_near_functions_keep_their_distance(name):
    x = all_over_f32(1009)
    x = x[np.isfinite(x)]
    exact, near = (evaluate(f(X), None, [x]).astype(np.float64) for f in (
        getattr(elementary, name), elementary.NEAR[name]))
    assert (np.abs(near - exact) <= elementary.NEAR_ERROR + 2.0**-23 * np.abs(exact)).all()
    assert np.isnan(evaluate(elementary.NEAR[name](X), None, [np.float32([NAN])])).all()


def test_hard_activations_are_their_formulas():
    x = all_over_f32(40_009)
    alpha, beta = np.float32(0.2), np.float32(0.5)
    y = elementary.hard_sigmoid(X, load(1, "f32", "scalar"), load(2, "f32", "scalar"))
    got = evaluate(y, None, [x, alpha, beta])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.clip(alpha * x + beta, np.float32(0), np.float32(1)))
        expected = x * np.clip(x * np.float32(1 / 6) + np.float32(0.5), np.float32(0), np.float32(1))
    np.testing.assert_array_equal(evaluate(elementary.hard_swish(X), None, [x]), expected)


@pytest.mark.parametrize(("name", "x", "expected"), [
    ("exp", [0, -0.0, INF, -INF, 89, -105, NAN], [1, 1, INF, 0, INF, 0, NAN]),
    ("log", [1, 0, -0.0, INF, -1, -INF, NAN], [0, -INF, -INF, INF, NAN, NAN, NAN]),
    ("tanh", [0, -0.0, INF, -INF, 10, NAN], [0, -0.0, 1, -1, 1, NAN]),
    ("sigmoid", [0, -0.0, INF, -INF, 20, NAN], [0.5, 0.5, 1, 0, 1, NAN]),
    ("erf", [0, -0.0, INF, -INF, 5, NAN], [0, -0.0, 1, -1, 1, NAN]),
    ("gelu_erf", [0, -0.0, INF, -INF, 20, -20, NAN], [0, -0.0, INF, NAN, 20, -0.0, NAN]),
    ("gelu_tanh", [0, -0.0, INF, -INF, 20, -20, NAN], [0, -0.0, INF, NAN, 20, -0.0, NAN]),
    ("mish", [0, -0.0, INF, -INF, 120, -120, NAN], [0, -0.0, INF, NAN, 120, -0.0, NAN]),
    ("hard_swish", [0, -0.0, INF, -INF, 12, -4, NAN], [0, -0.0, INF, NAN, 12, -0.0, NAN]),
])
def test_edges(name, x, expected):
    got = evaluate(getattr(elementary, name)(X), None, [np.array(x, np.float32)])
    np.testing.assert_array_equal(got, np.array(expected, np.float32))
    numbers = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(np.array(expected)[numbers]))


@pytest.mark.parametrize("dtype", elementary.SMALL_FLOATS)
def test_small_floats_by_integers(dtype):
    type_ = STORAGE[dtype]
    codes = np.arange(256**type_.itemsize, dtype=f"u{type_.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = codes.view(type_).astype(np.float32)
    number = expected == expected
    got = evaluate(elementary.small_float_value(load(0, "s32", "vector"), dtype), None, [codes.astype(np.int32)])
    np.testing.assert_array_equal(got[number].view(np.int32), expected[number].view(np.int32))
    assert np.isnan(got[~number]).all()

    x = np.concatenate([all_over_f32(4093), (np.arange(-3, 4) + np.arange(0, 2**32, 0x1000)[:, None]).astype(np.uint32)
                        .ravel().view(np.float32)])  # every tie and its neighbors
    bits = evaluate(elementary.small_float_bits(X, dtype), None, [x]).astype(codes.dtype)
    with np.errstate(all="ignore"):
        expected, number = x.astype(type_), x == x
    np.testing.assert_array_equal(bits[number], expected[number].view(codes.dtype))
    assert np.isnan(bits[~number].view(type_).astype(np.float32)).all()
