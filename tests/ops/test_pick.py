"""Ops that pick or place elements, and comparisons, against ONNX's reference evaluator and by hand."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import GraphError, GraphqError
from graphq.ir import TensorType
from graphq.ir.op import lookup

rng = np.random.default_rng(3)
X = rng.integers(-3, 4, (3, 4, 5)).astype(np.float32)  # with many equal elements
I34 = rng.integers(-3, 3, (2, 4, 5))
FOURS = np.zeros((2, 4, 5), DTYPES["u4"].numpy)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis, keep", [(0, True), (1, False), (-1, True)])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_arg(run, onnx_node, name, axis, keep, last):
    got = run({"ArgMax": "arg_max", "ArgMin": "arg_min"}[name], X, axis=axis, keep_dims=keep, select_last_index=last)
    want = onnx_node(name, [X], axis=axis, keepdims=int(keep), select_last_index=int(last))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis, k", [(0, 2), (1, 4), (-1, 0), (-1, 3)])
def test_top_k(run, axis, k, largest):
    values, places = run("top_k", X, k=k, axis=axis, largest=largest)
    rows, order = np.moveaxis(X, axis, -1).reshape(-1, X.shape[axis]), np.moveaxis(places, axis, -1)
    for row, got in zip(rows, order.reshape(len(rows), k), strict=True):
        assert got.tolist() == sorted(range(len(row)), key=lambda i: (-row[i] if largest else row[i], i))[:k]
    np.testing.assert_array_equal(values, np.take_along_axis(X, places, axis))


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, -2])
def test_cum_sum(run, onnx_node, axis, exclusive, reverse):
    got = run("cum_sum", X, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))
    want = onnx_node("CumSum", [X, np.asarray(axis)], exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(got, want)
    got = run("cum_prod", X, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))
    for k in range(X.shape[axis]):
        taken = np.arange(k + (not exclusive)) if not reverse else np.arange(k + exclusive, X.shape[axis])
        np.testing.assert_array_equal(got.take(k, axis), X.take(taken, axis).prod(axis))


def test_cum_sum_adds_one_by_one_in_its_dtype(run):
    x = np.float32([1, 2**-24, 2**-24, 2**-24])
    assert run("cum_sum", x, axis=0).tolist() == [1, 1, 1, 1]
    assert run("cum_sum", np.int8([127, 1]), axis=0).tolist() == [127, -128]


@pytest.mark.parametrize("axis", [0, -3])
def test_gather_elements(run, onnx_node, axis):
    np.testing.assert_array_equal(run("gather_elements", X, I34, axis=axis),
                                  onnx_node("GatherElements", [X, I34 % 3], axis=axis))


@pytest.mark.parametrize("shape, high, batch", [((2, 1), 3, 0), ((2, 2), 3, 0), ((3, 2, 1), 4, 1), ((3, 4, 6, 1), 5, 2),
                                                ((7, 3), 3, 0)])
def test_gather_nd(run, onnx_node, shape, high, batch):
    i = rng.integers(0, high, shape)
    want = onnx_node("GatherND", [X, i], batch_dims=batch)
    np.testing.assert_array_equal(run("gather_nd", X, i, batch_dims=batch), want)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(run, onnx_node, reduction):
    i = np.argsort(rng.standard_normal((3, 4, 5)), axis=1)[:, :2] if reduction == "none" else \
        rng.integers(-4, 4, (3, 2, 5))
    updates = rng.integers(-9, 9, i.shape).astype(np.float32)
    np.testing.assert_array_equal(run("scatter_elements", X, i, updates, axis=1, reduction=reduction),
                                  onnx_node("ScatterElements", [X, i, updates], axis=1, reduction=reduction))
    j = np.asarray([[2, 1], [0, -1], [1, 1]]) if reduction == "none" else np.asarray([[2, 1], [2, 1], [0, 3]])
    updates = rng.integers(-9, 9, (3, 5)).astype(np.float32)
    for shape in ((3,), (3, 1)):
        given = j.reshape(*shape, 2), updates.reshape(*shape, 5)
        np.testing.assert_array_equal(run("scatter_nd", X, *given, reduction=reduction),
                                      onnx_node("ScatterND", [X, *given], reduction=reduction))


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-7, -1, 0, 2, 7])
def test_trilu(run, onnx_node, k, upper):
    for x in (X, X[0]):
        want = onnx_node("Trilu", [x, np.asarray(k)], upper=upper)
        np.testing.assert_array_equal(run("trilu", x, k=k, upper=bool(upper)), want)


@pytest.mark.parametrize("name, arrays, attrs, match", [
    ("arg_max", [np.zeros((2, 0))], {"axis": 1}, "has no elements"), ("top_k", [X], {"k": 9}, r"k must be in \[0, 5\]"),
    ("gather_elements", [X, np.zeros((3, 4), int)], {}, "must have the rank"),
    ("gather_elements", [X, np.zeros((3, 9, 5), int)], {}, "fit into"),
    ("gather_nd", [X, np.zeros((2, 4), int)], {}, "do not fit"),
    ("gather_nd", [X, np.zeros((2, 0), int)], {}, "do not fit"), ("trilu", [X[0, 0]], {}, "two dimensions"),
    ("scatter_nd", [X, np.zeros((2, 4), int), X], {}, "do not fit"),
    ("scatter_nd", [X, np.zeros((2, 0), int), X], {}, "do not fit"), ("cum_sum", [X], {"axis": 3}, "axis must be"),
    ("equal", [X, X.astype(np.float64)], {}, "same dtype"), ("logical_and", [X, X], {}, "must be boolean"),
    ("logical_not", [X], {}, "must be boolean"), ("is_nan", [I34], {}, "must be"),
    ("equal", [FOURS] * 2, {}, "'src_0' must be"), ("choose", [I34 < 0, FOURS, FOURS], {}, "'src_0' must be"),
    ("arg_max", [FOURS], {}, "'src' must be"), ("arg_min", [FOURS], {}, "'src' must be"),
    ("top_k", [FOURS], {"k": 1}, "'src' must be"), ("cum_sum", [FOURS], {"axis": 0}, "'src' must be"),
    *((name, [X, X, X][:2 + name.startswith("scatter")], {}, "'indices' must be s32 or s64")
      for name in ("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"))])
def test_refused_types(name, arrays, attrs, match):
    op = lookup(name)
    with pytest.raises(GraphError, match=match):
        op.infer(*(TensorType(as_dtype(a.dtype), a.shape) for a in arrays), **op.complete(attrs))


@pytest.mark.parametrize("name, arrays, attrs", [
    ("gather_elements", [X, I34 - 3], {}), ("gather_nd", [X, np.asarray([[5]])], {}),
    ("gather_nd", [X, np.zeros((2, 1, 1), int)], {"batch_dims": 1}), ("scatter_nd", [X, np.asarray([[3]]), X[:1]], {}),
    ("scatter_nd", [X, np.asarray([[0]]), X], {}), ("scatter_elements", [X, I34, X], {}),
    ("scatter_elements", [X, I34 + 9, X[:2]], {})])
def test_what_only_running_shows(name, arrays, attrs):
    op = lookup(name)
    with pytest.raises(GraphqError, match=name):
        op.reference(*arrays, **op.complete(attrs))


COMPARED = {"equal": np.equal, "greater": np.greater, "less": np.less, "less_equal": np.less_equal}


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_, np.float16])
@pytest.mark.parametrize("name", COMPARED)
def test_comparisons(run, name, dtype):
    a, b = rng.integers(0, 4, (3, 1, 5)).astype(dtype), rng.integers(0, 4, (4, 1)).astype(dtype)
    np.testing.assert_array_equal(run(name, a, b), COMPARED[name](a, b))


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_with_nan_are_false_without_a_warning(run, float_dtype, name):
    nan = np.asarray([np.nan, 1]).astype(DTYPES[float_dtype].numpy)
    assert run(name, nan, nan).tolist() == [False, "equal" in name]


def test_s64_is_compared_exactly(run):
    a = np.asarray([2**53 + 1])
    assert run("greater", a, a - 1).tolist() == [True] and run("equal", a, a - 1).tolist() == [False]


def test_booleans_and_special_numbers(run):
    a, b = np.asarray([0, 0, 1, 1], bool), np.asarray([0, 1, 0, 1], bool)
    for name, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert run(f"logical_{name}", a, b).tolist() == want.tolist()
    assert run("logical_not", a).tolist() == [True, True, False, False]
    x = np.float32([np.nan, np.inf, -np.inf, 1, -0.0])
    assert run("is_nan", x).tolist() == [True, False, False, False, False]
    assert run("is_inf", x).tolist() == [False, True, True, False, False]
    assert run("is_inf", x, detect_negative=False).tolist() == [False, True, False, False, False]
    assert run("equal", x, x).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("name, want", [("floor", [-2, 1, -0.0]), ("ceil", [-1, 2, -0.0]), ("sign", [-1, 1, 0])])
def test_rounding_and_signs(run, float_dtype, name, want):
    x = np.asarray([-1.5, 1.5, -0.0]).astype(DTYPES[float_dtype].numpy)
    assert run(name, x).tolist() == want


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_circular_functions_are_rounded_once(run, name):
    x = rng.uniform(-100, 100, 1000).astype(np.float32)
    np.testing.assert_array_equal(run(name, x), getattr(np, name)(x.astype(np.float64)).astype(np.float32))
