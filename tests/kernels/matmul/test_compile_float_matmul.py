"""Float matmuls with epilogues: compiled equals the formula bit for bit, and the reference within rounding errors."""
from itertools import product

import numpy as np
import pytest
from compiled import AS_WRITTEN
from float_arrays import float_array
from levels import at_each_width

import graphq as gq
from graphq.dtypes import f32
from graphq.testing import random_inputs

TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 2e-3}


def check(g, arrays, **options):
    """Compile strictly and run; the result and the report."""
    model = gq.compile(g, strict=True, passes=AS_WRITTEN, **options)
    got, formula, wanted = model(arrays), model.formula(arrays), gq.reference(g, arrays)
    assert got.dtype == formula.dtype == wanted.dtype and got.shape == wanted.shape
    nan = np.isnan(got.astype(np.float32)) if got.dtype.kind != "u" else np.zeros(got.shape, bool)
    assert (nan == np.isnan(formula.astype(np.float32))).all()
    assert (np.where(nan, 0, got).tobytes() == np.where(nan, 0, formula).tobytes())
    return got, wanted, model.explain()


def close(got, wanted, dtype):
    got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    bound = TOLERANCE[dtype] * np.abs(wanted).max(initial=1.0)
    np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=bound)


def dense(dtype, a, b, *, constant=True, post=None, **attrs):
    """A matmul of arrays, whose weights are constant or an input."""
    g = gq.Graph()
    x = g.input("x", shape=a.shape, dtype=dtype)
    w = g.constant(b) if constant else g.input("w", shape=b.shape, dtype=dtype)
    y = g.matmul(x, w, **attrs)
    g.output(y if post is None else post(g, y), name="y")
    return g, {"x": a} if constant else {"x": a, "w": b}


@pytest.mark.parametrize("case, level", at_each_width(product([1, 2], ["f32", "bf16", "f16"])), indirect=["level"])
def test_dense_layer_at_every_width(level, case):
    threads, dtype = case
    a, b = float_array(dtype, (19, 135), 1), float_array(dtype, (135, 50), 2)
    bias, rest = float_array(dtype, (50,), 3), float_array(dtype, (19, 50), 4)

    def post(g, y):
        return g.add(g.gelu(g.bias_add(y, g.constant(bias))), g.input("rest", shape=rest.shape, dtype=dtype))

    g, arrays = dense(dtype, a, b, post=post)
    got, wanted, text = check(g, arrays | {"rest": rest}, isa=level, threads=threads)
    close(got, wanted, dtype)
    assert "(matmul, bias_add, gelu, add)" in text and "1 partition (0 integer), 0 operations outside" in text


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("a", "b", "attrs"), [
    ((7, 13), (13, 21), {}), ((7, 13), (21, 13), dict(transpose_b=True)), ((13, 7), (13, 21), dict(transpose_a=True)),
    ((2, 3, 7, 5), (5, 6), {}), ((3, 5, 7), (3, 6, 5), dict(transpose_a=True, transpose_b=True)),
    ((2, 1, 4, 5), (3, 5, 6), {}), ((4, 5), (3, 5, 6), {}), ((1, 4, 9), (2, 4, 5), dict(transpose_a=True)),
    ((5,), (5, 6), {}), ((1, 1), (1, 1), {}), ((0, 5), (5, 6), {}), ((4, 5), (5, 0), {}), ((4, 0), (0, 6), {}),
    ((9, 20), (9, 800), dict(transpose_a=True)), ((3, 70, 9), (3, 70, 6), dict(transpose_a=True)),
    ((0, 4), (0, 6), dict(transpose_a=True)), ((2, 1, 6), (2, 1, 6), dict(transpose_a=True)),
])
def test_shapes(dtype, a, b, attrs, constant):
    g, arrays = dense(dtype, float_array(dtype, a, 1), float_array(dtype, b, 2), constant=constant, **attrs)
    got, wanted, _ = check(g, arrays, threads=2)
    close(got, wanted, dtype)


@pytest.mark.parametrize("case, level", at_each_width(product([True, False], ["f32", "bf16", "f16"])),
                         indirect=["level"])
def test_special_values(level, case):
    constant, dtype = case
    a, b = float_array(dtype, (9, 31), 1, special=True), float_array(dtype, (31, 35), 2, special=True)
    g, arrays = dense(dtype, a, b, constant=constant)
    check(g, arrays, isa=level)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_results_of_f32(dtype):
    """The output may be f32 where the operands are narrow; else the sum, and the bias, is rounded to their type."""
    a, b, bias = float_array(dtype, (9, 31), 1), float_array(dtype, (31, 35), 2), float_array(dtype, (35,), 3)
    for out in (f32, None):
        g = gq.Graph()
        y = g.matmul(g.input("x", shape=a.shape, dtype=dtype), g.constant(b), g.constant(bias), dtype=out)
        g.output(g.relu(y), name="y")
        got, wanted, _ = check(g, {"x": a})
        close(got, wanted, "f32" if out else dtype)
        assert (got == wanted).mean() > 0.99 or out


def test_quantized_results_and_dequantized_post_ops():
    g = gq.Graph()
    y = g.matmul(g.input("x", shape=(9, 40), dtype="f32"), g.constant(float_array("f32", (40, 33), 2)))
    y = g.add(y, g.dequantize(g.input("r", shape=(9, 33), dtype="u8"), scales=[0.1], zps=[7]))
    g.output(g.quantize(y, dtype="u8", scales=[0.2], zps=[100]), name="y")
    r = np.random.default_rng(0).integers(0, 256, (9, 33), dtype=np.uint8)
    got, wanted, text = check(g, {"x": float_array("f32", (9, 40)), "r": r})
    assert np.abs(got.astype(int) - wanted).max() <= 1 and "(matmul, dequantize, add, quantize)" in text


def test_an_operand_may_also_be_a_post_op():
    g = gq.Graph()
    x = g.input("x", shape=(8, 8), dtype="f32")
    g.output(g.add(g.matmul(x, x), x), name="y")
    got, wanted, _ = check(g, {"x": float_array("f32", (8, 8))})
    close(got, wanted, "f32")


def test_dequantized_operands_that_integers_refuse():
    """The source is quantized along k: its scale stands in the sum, which is one of floats then."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), qtype="per_channel", axis=1, scales=[0.1] * 4 + [0.2] * 4)
    g.output(g.matmul(x, g.dequantize(g.constant(np.ones((8, 3), np.int8)), scales=[0.5])), name="y")
    _, _, text = check(g, {"x": np.arange(32, dtype=np.uint8).reshape(4, 8)})
    assert "2 partitions (0 integer)" in text and "vary inside the sum" in text


def test_a_quantize_of_quantized_numbers_divides(level):
    """0.7 and 1 are in a ratio that makes ties, of which 1 / scale would decide another way."""
    g = gq.Graph()
    y = g.matmul(g.input("x", shape=(40, 20), dtype="f32"), g.constant(np.ones((20, 30), np.float32)))
    s, r = 0.021, float(np.float32(0.7 * 0.021))
    y = g.dequantize(g.quantize(y, dtype="u8", scales=[s], zps=[128]), scales=[s], zps=[128])
    z = g.dequantize(g.input("z", shape=(40, 30), dtype="u8"), scales=[r], zps=[3])
    g.output(g.quantize(g.add(y, z), dtype="u8", scales=[s], zps=[5]))
    feeds = random_inputs(g)
    feeds["x"] = (feeds["x"] / np.abs(feeds["x"]).max() / 8).astype(np.float32)
    model = gq.compile(g, isa=level, strict=True)
    assert np.count_nonzero(model(feeds) != gq.reference(g, feeds)) <= 1
