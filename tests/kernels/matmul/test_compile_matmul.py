"""compile: integer matmuls at every ISA level and thread count, their formula and the reference."""
from functools import cache
from itertools import product

import numpy as np
import pytest
from dense import dense
from levels import at_each_width, pairs_at_each_width

import graphq as gq
from graphq.kernels.families import family_named
from graphq.rewrite.partition import carve
from graphq.testing import random_inputs

RNG = np.random.default_rng(11)

VARIANTS = {
    "plain": {}, "s8 source": dict(x="s8", zx=-5), "no source zero point": dict(zx=0),
    "s8 source zero point -128": dict(x="s8", zx=-128), "weight zero points": dict(zw=(-100, 100)),
    "u8 weights": dict(w="u8", zw=(0, 256)), "u8 weights without zero points": dict(w="u8"),
    "s8 out": dict(out="s8"), "f32 out": dict(out="f32"), "weights not constant": dict(constant=False),
    "all at once, not constant": dict(constant=False, zw=(0, 256), w="u8", x="s8", zx=3),
    "batch, shared weights": dict(batch=(3,)), "batch on both": dict(batch=(3,), w_batch=(3,), constant=False),
    "broadcast batches": dict(batch=(2, 1), w_batch=(3,), zw=(-9, 9)), "transpose b": dict(transpose_b=True),
    "broadcast batches, not constant": dict(batch=(2, 1), w_batch=(3,), zw=(-9, 9), constant=False),
    "transpose a": dict(transpose_a=True, batch=(2,)), "transpose both": dict(transpose_a=True, transpose_b=True,
                                                                              constant=False),
    "transpose a with row sums": dict(transpose_a=True, batch=(2, 1), w_batch=(3,), zw=(-9, 9), x="s8", zx=3),
    "transpose a of one row": dict(transpose_a=True, batch=(4,), m=1, zw=(-9, 9)),
    "bias_add": dict(bias="op"), "added bias": dict(bias="add"), "no bias": dict(bias="none", residual=False),
    "gelu": dict(activation="gelu"), "sigmoid": dict(activation="sigmoid"), "tanh": dict(activation="tanh"),
}


@cache
def case(variant, *sizes):
    """A graph, inputs of it, and the reference's result; each level compiles the same."""
    g = dense(*sizes, **VARIANTS[variant])
    inputs = random_inputs(g)
    return g, inputs, gq.reference(g, inputs)


@pytest.mark.parametrize("variant, level", at_each_width(VARIANTS), indirect=["level"])
def test_integer_matmul_equals_its_formula_and_the_reference(level, variant):
    g, inputs, reference = case(variant)
    formula = None
    for threads in (1, 2):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        assert sum(n.op.name == "partition" for n in model.graph.nodes) == 1
        y = model(inputs)
        formula = model.formula(inputs) if formula is None else formula
        assert np.array_equal(y, formula)
    steps = np.abs(y.astype(np.float64) - reference)
    if VARIANTS[variant].get("out") == "f32":
        assert steps.max() <= 1e-6 * np.abs(reference).max()
    else:
        assert steps.max() <= 1 and (steps > 0).mean() <= 1e-4 + 1 / steps.size


SIZES = [(1, 1, 1), (1, 5, 3), (2, 63, 16), (5, 64, 15), (7, 65, 17), (16, 3, 64), (31, 66, 65), (4, 0, 5), (0, 3, 4),
         (3, 4, 0)]


@pytest.mark.parametrize("sizes, variant, level", pairs_at_each_width(
    SIZES, ["plain", "all at once, not constant", "s8 source"]), indirect=["level"])
def test_any_size(level, sizes, variant):
    g, inputs, reference = case(variant, *sizes)
    model = gq.compile(g, isa=level, threads=2)
    y = model(inputs)
    assert np.array_equal(y, model.formula(inputs))
    assert np.abs(y.astype(int) - reference).max(initial=0) <= 1


@pytest.mark.parametrize("m, k, n", [(24, 64, 8), (48, 16, 1), (12, 64, 64)])
def test_transposed_activations_where_the_cheapest_kernel_reads_rows_alone(level, m, k, n):
    """As those of 24 x 16 and of AMX tiles do."""
    g = dense(m, k, n, transpose_a=True)
    inputs = random_inputs(g)
    model = gq.compile(g, isa=level, threads=1)
    assert np.array_equal(model(inputs), model.formula(inputs))


@pytest.mark.parametrize("bias, wanted", [("constant", True), ("input", False), ("computed", False), (None, False)])
def test_sums_start_from_a_constant_bias(bias, wanted):
    """As those of ONNX's Gemm, in the order in which outputs near a tie are summed again."""
    numbers = np.arange(1, 6, dtype=np.float32)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(3, 8), dtype="u8"), scales=[0.02], zps=[3])
    w = g.dequantize(g.constant(np.ones((8, 5), np.int8)), scales=[0.5])
    start = None if bias is None else g.constant(numbers) if bias == "constant" else \
        g.input("b", shape=(5,), dtype="f32")
    y = g.matmul(x, w, g.tanh(start) if bias == "computed" else start)
    g.output(g.quantize(y, dtype="u8", scales=[0.1]))
    body, operands, _ = carve(g, [n for n in g.nodes if n.op.name != "constant"])
    stated_sum = family_named("matmul").lower(body, [v.data for v in operands]).stated_sum
    assert stated_sum.starts_at_bias == wanted
    np.testing.assert_array_equal(stated_sum.sum.start, numbers if wanted else [0])


def written_formula(x, zx, sx, w, sw, bias, sy, zy):
    """relu and requantize, as the design writes it."""
    acc = ((x.astype(np.int64) - zx) @ w.astype(np.int64)).astype(np.int32)
    m = (np.float64(np.float32(sx)) * np.asarray(sw, np.float32).astype(np.float64)).astype(np.float32)
    y = np.maximum(acc.astype(np.float32) * m + bias, np.float32(0))
    inverse = np.float32(1 / np.float64(np.float32(sy)))
    return np.clip(np.rint(y * inverse) + np.float32(zy), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("fill, level", at_each_width(["random", 0, 255, "ties"]), indirect=["level"])
def test_the_formula_is_the_one_of_the_design(level, fill):
    m, k, n = 37, 100, 50
    x = np.full((m, k), fill if isinstance(fill, int) else 0, np.uint8)
    if fill == "random":
        x = RNG.integers(0, 256, (m, k)).astype(np.uint8)
    w = RNG.choice([-128, 127], (k, n)).astype(np.int8)
    sx, sy, sw, bias = 0.02, 0.11, RNG.uniform(1e-3, 4e-3, n), RNG.standard_normal(n).astype(np.float32)
    if fill == "ties":  # x = 0, w = 1: acc = -zx * k; scales of powers of two give y = i + 1/2
        w[:] = 1
        sx, sy, sw = 0.5, 1.0, np.ones(n)
        bias = (50 * 100 * 0.5 + np.arange(n) + 0.5).astype(np.float32)
    zx, zy = (50, 0) if fill == "ties" else (131, 7)
    g = gq.Graph()
    y = g.matmul(g.dequantize(g.input("x", shape=x.shape, dtype="u8"), scales=[sx], zps=[zx]),
                 g.dequantize(g.constant(w), qtype="per_channel", axis=1, scales=sw), bias)
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[sy], zps=[zy]))
    wanted = written_formula(x, zx, sx, w, sw, bias, sy, zy)
    for threads in (1, 2):
        assert np.array_equal(gq.compile(g, isa=level, threads=threads)(x=x), wanted)
    if fill == "ties":
        assert set(wanted[0, :4]) == {0, 2, 4}


def test_nan_in_the_epilogue_gives_the_zero_point(level):
    g = dense(4, 8, 20, residual=False, activation=None)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.1])
    w = g.dequantize(g.constant(np.ones((8, 20), np.int8)), scales=[0.1])
    y = g.multiply(g.matmul(x, w), g.input("f", shape=(20,), dtype="f32"))
    g.output(g.quantize(y, dtype="u8", scales=[0.1], zps=[9]))
    f = np.array([np.nan, np.inf, -np.inf, 1e30] * 5, np.float32)
    x = np.full((4, 8), 200, np.uint8)
    y = gq.compile(g, isa=level)(x=x, f=f)
    assert y[0, :4].tolist() == [9, 255, 0, 255] and np.array_equal(y, gq.reference(g, x=x, f=f))


def test_a_deep_chain_fuses_whole():
    g = dense(8, 16, 24, out="f32", residual=False)
    y = g.outputs[0]
    g.set_outputs([], [])
    for k in range(9):
        y = g.add(g.tanh(y), np.float32(k))
    g.output(g.quantize(y, dtype="s8", scales=[0.1]), name="q")
    model = gq.compile(g, strict=True)
    assert [n.op.name for n in model.graph.nodes if n.op.name != "constant"] == ["partition"]
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))


def test_two_layers_pass_8_bit_data_between_them():
    g = gq.Graph()
    y = g.input("x", shape=(9, 32), dtype="u8")
    for n in (48, 16):
        w = g.dequantize(g.constant(RNG.integers(-127, 128, (y.shape[1], n)).astype(np.int8)), scales=[0.01])
        y = g.quantize(g.relu(g.matmul(g.dequantize(y, scales=[0.02], zps=[3]), w)), dtype="u8", scales=[0.1], zps=[3])
    g.output(y)
    model = gq.compile(g, strict=True)
    types = [n.output.type for n in model.graph.nodes if n.op.name == "partition"]
    assert [str(t) for t in types] == ["u8[9,48]", "u8[9,16]"]
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))


def test_sums_beyond_s32_are_refused_with_the_reason():
    def graph(weight):
        g = gq.Graph()
        x = g.dequantize(g.input("x", shape=(1, 70_000), dtype="u8"), scales=[1.0])
        g.output(g.matmul(x, g.dequantize(g.constant(np.full((70_000, 1), weight, np.int8)), scales=[1.0])))
        return g

    model = gq.compile(graph(127))
    assert "beyond s32" in model.explain()
    x = np.full((1, 70_000), 255, np.uint8)
    np.testing.assert_allclose(model(x=x), 255 * 127 * 70_000, rtol=1e-5)
    model = gq.compile(graph(100), strict=True)  # these weights cannot reach it
    assert model(x=x)[0, 0] == np.float32(255 * 100 * 70_000)


@pytest.mark.parametrize("change, reason", [
    (dict(qtype="per_channel", axis=1, scales=[0.1] * 8), "input is quantized per channel"),
    (dict(scales=[0.1]), None),
])
def test_explain_gives_the_reason(change, reason):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), zps=list(range(8)) if reason else None, **change)
    w = g.dequantize(g.constant(np.ones((8, 3), np.int8)), scales=[0.1])
    g.output(g.relu(g.matmul(x, w)), name="y")
    model = gq.compile(g)
    text = model.explain()
    assert (reason in text and "(0 integer)" in text) if reason else "(1 integer)" in text


@pytest.mark.parametrize("case, level", at_each_width(product(
    [(31, 1), (2, 17, 1), (1, 1)], ["whole", "rows", "last rows"])), indirect=["level"])
def test_one_column_and_what_varies_by_its_rows(level, case):
    (shape, operand), rng = case, np.random.default_rng(0)
    other = {"whole": shape, "rows": shape[-2:], "last rows": (shape[-2], 1)}[operand]
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(*shape[:-1], 40), dtype="u8"), scales=[0.05], zps=[7])
    y = g.matmul(x, g.dequantize(g.constant(rng.integers(-99, 100, (40, 1)).astype(np.int8)), scales=[0.01]))
    z = g.add(y, g.dequantize(g.input("z", shape=other, dtype="u8"), scales=[0.3], zps=[3]))
    g.output(g.quantize(z, dtype="s8", scales=[0.7], zps=[5]), name="q")
    f = g.matmul(g.input("f", shape=(*shape[:-1], 40), dtype="f32"), g.constant(np.ones((40, 1), np.float32)))
    g.output(g.add(f, g.input("v", shape=other, dtype="f32")), name="y")
    feeds = random_inputs(g)
    got, want = gq.compile(g, isa=level, strict=True)(feeds), gq.reference(g, feeds)
    assert np.array_equal(got["q"], want["q"])
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_outputs_looked_up_in_a_table(level, dtype):
    """Where tables lie in registers 64 are looked up together, and the last columns 16 at a time."""
    rng = np.random.default_rng(0)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(45, 70), dtype="u8"), scales=[0.05], zps=[7])
    y = g.matmul(x, g.dequantize(g.constant(rng.integers(-99, 100, (70, 150)).astype(np.int8)), scales=[0.01]))
    y = g.hard_swish(g.dequantize(g.quantize(y, dtype=dtype, scales=[0.3], zps=[5]), scales=[0.3], zps=[5]))
    g.output(g.quantize(y, dtype=dtype, scales=[0.25], zps=[-3 if dtype == "s8" else 9]))
    feeds = random_inputs(g)
    model = gq.compile(g, isa=level, strict=True)
    got = model(feeds)
    assert np.array_equal(got, model.formula(feeds)) and len(np.unique(got)) > 50


@pytest.mark.parametrize("bias", [(7, 1), (1, 9), (7, 9), (1,), (3, 7, 1), (3, 1, 1)])
@pytest.mark.parametrize("kind", ["f32", "bf16", "integer"])
def test_a_bias_broadcasts(bias, kind):
    """As oneDNN's does; kernels take one element a column, and add any other after the product."""
    g, rng = gq.Graph(), np.random.default_rng(1)
    if kind == "integer":
        x, w = (g.dequantize(g.input(n, dtype="s8", shape=s), scales=[2.0**-4]) for n, s in (("x", (3, 7, 5)),
                                                                                             ("w", (5, 9))))
    else:
        x, w = g.input("x", dtype=kind, shape=(3, 7, 5)), g.input("w", dtype=kind, shape=(5, 9))
    b = g.constant(rng.standard_normal(bias).astype(x.dtype.numpy))
    y = g.matmul(x, w, b)
    g.output(g.quantize(y, dtype="s8", scales=[0.1]) if kind == "integer" else y)
    inputs = random_inputs(g)
    got, want = gq.compile(g, strict=True)(inputs), gq.reference(g, inputs)
    assert want.shape == (3, 7, 9)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-2 if kind == "bf16" else 1e-5,
                               atol=1e-2 if kind == "bf16" else 1e-6)


@pytest.mark.parametrize("dims, axis, transposed, summed", [
    ((4, 8), 1, False, True), ((4, 8), -1, False, True), ((4, 8), 0, False, False), ((8, 4), 0, True, True),
    ((8, 4), 1, True, False), ((2, 4, 8), 2, False, True), ((2, 4, 8), 1, False, False), ((2, 4, 8), 0, False, False),
    ((2, 8, 4), 1, True, True), ((2, 8, 4), -1, True, False), ((8,), 0, False, True)])
def test_why_a_source_of_many_scales_is_refused(dims, axis, transposed, summed):
    """Whatever the ranks of the source and of the weights are."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=dims, dtype="u8"), qtype="per_channel", axis=axis, scales=np.ones(dims[axis]))
    y = g.matmul(x, g.dequantize(g.constant(np.ones((8, 5), np.int8)), scales=[0.5]), transpose_a=transposed)
    g.output(y)
    body, operands, _ = carve(g, [n for n in g.nodes if n.op.name != "constant"])
    reason = str(family_named("matmul").refuses(body, [v.data for v in operands]))
    assert ("its scale would vary inside the sum" in reason) == summed
    assert ("kernels take one scale and zero point for the input" in reason) != summed
