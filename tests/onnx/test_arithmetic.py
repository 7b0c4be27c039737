"""Integers and f64: what models compute of positions and masks, against ONNX Runtime, by operations of graphq."""
import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx_runtime import results

import graphq as gq
from graphq.errors import InputError

rng = np.random.default_rng(7)
DTYPES = [np.int64, np.int32, np.float64]


def model(op, feeds, opset=17, result=None, **attrs):
    def info(name, x):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)

    last = next(reversed(feeds.values()))
    graph = helper.make_graph([helper.make_node(op, list(feeds), ["y"], **attrs)], "net",
                              [info(n, x) for n, x in feeds.items()], [info("y", last if result is None else result)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def compare(m, feeds, tmp_path):
    want, = results(m, feeds)
    g = gq.load_onnx(m)
    compiled = gq.compile(g)
    np.testing.assert_array_equal(compiled(feeds), want)
    assert "onnx_node" not in compiled.explain()
    gq.save_onnx(g, tmp_path / "m.onnx")
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(tmp_path / "m.onnx"))(feeds), want)


def numbers(dtype, *shape):
    return rng.integers(-40, 40, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_two_numbers(op, dtype, tmp_path):
    b = numbers(dtype, 3, 5)
    b[b == 0] = 7
    feeds = {"a": numbers(dtype, 2, 1, 5), "b": b}
    compare(model(op, feeds, result=numbers(dtype, 2, 3, 5)), feeds, tmp_path)


@pytest.mark.parametrize(("fmod", "dtype"), [(0, np.int64), (1, np.int64), (1, np.float32), (1, np.float64)])
def test_what_a_division_leaves(fmod, dtype, tmp_path):
    signs = np.asarray([-1, 1, 1, -1, 1], dtype)
    feeds = {"a": numbers(dtype, 4, 5), "b": rng.integers(1, 9, (4, 5)).astype(dtype) * signs}
    compare(model("Mod", feeds, fmod=fmod), feeds, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["Neg", "Abs", "Clip", "Where"])
def test_others(op, dtype, tmp_path):
    if (op, dtype) == ("Abs", np.float64):
        pytest.skip("by ONNX's reference")
    feeds = {"Where": {"c": numbers(np.int64, 3, 1) > 0, "a": numbers(dtype, 5)},
             "Clip": {}}.get(op, {}) | {"x": numbers(dtype, 3, 5)}
    if op == "Clip":
        feeds |= {"low": np.asarray(-9, dtype), "high": np.asarray(20, dtype)}
    compare(model(op, feeds, result=feeds["x"]), feeds, tmp_path)


def test_sums_wrap():
    g = gq.Graph()
    x = g.input("x", shape=(1,), dtype="s64")
    g.output(g.arithmetic(x, np.int64([1]), function="add"), name="y")
    assert gq.reference(g, x=np.int64([2**63 - 1])).tolist() == [-2**63]


@pytest.mark.parametrize("function", ["divide", "modulo", "remainder"])
def test_division_by_zero_is_an_error(function):
    g = gq.Graph()
    x = g.input("x", shape=(2,), dtype="s64")
    g.output(g.arithmetic(x, x, function=function), name="y")
    with pytest.raises(InputError, match="divided by zero"):
        gq.compile(g)(x=np.int64([1, 0]))


@pytest.mark.parametrize("source, dtype", [
    *((x, y) for x in (bool, np.int8, np.uint8, np.int16, np.uint16) for y in (np.float16, ml_dtypes.bfloat16)),
    (np.int32, np.float16), (np.int64, np.float16)])
def test_integers_become_narrow_floats_in_kernels(source, dtype):
    """As masks of attention do."""
    x = np.arange(2) if source is bool else np.r_[
        np.int64([np.iinfo(source).min, np.iinfo(source).max, 0]), rng.integers(-70000, 70000, 200), 2049, 2051, 65519,
        65520, 2**24 + 1]
    x = x.astype(source)
    m = model("Cast", {"x": x}, result=np.zeros(1, dtype), to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    with np.errstate(over="ignore"):
        want = x.astype(dtype)
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(m), strict=True)(x), want)
