"""compile(..., precision="bf16"): the same bits at every level and thread count, and what it leaves as it is."""
from functools import cache

import numpy as np
import pytest
from levels import at_each_width

import graphq as gq
from graphq.cli import main
from graphq.errors import CompileError
from graphq.kernels.numbers.float_sums import tile_sums
from graphq.passes import PIPELINE, PRECISIONS, run_passes

LISTS = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}
RNG = np.random.default_rng(0)
BF16 = gq.dtypes.bf16.numpy


def numbers(*shape):
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


def convolutions():
    """Three channels, a depthwise convolution, groups of two channels, a transposed one; a residual; a classifier."""
    g = gq.Graph("convolutions")
    x = g.input("x", shape=(1, 3, 9, 7), dtype="f32")
    form = {**LISTS, "data_format": "NCX", "weights_format": "OIX"}
    x = g.relu(g.convolution(x, g.constant(numbers(20, 3, 3, 3)), g.constant(numbers(20)), **form))
    y = g.relu(g.convolution(x, g.constant(numbers(20, 1, 3, 3)), groups=20, **form))
    x = g.add(g.convolution(y, g.constant(numbers(20, 2, 3, 3)), g.constant(numbers(20)), groups=10, **form), x)
    x = g.conv_transpose(x, g.constant(numbers(20, 7, 2, 2)), **{**form, "strides": [2, 2], "weights_format": "IOX"})
    x = g.static_reshape(g.reduce_mean(x, axes=[2, 3]), shape=[1, 7])
    g.output(g.matmul(x, g.constant(numbers(7, 5)), g.constant(numbers(5))), name="y")
    return g, {"x": numbers(1, 3, 9, 7)}


def attention(rows=9, length=None):
    """Heads of 8 elements, with open lengths; two products of values that are no constants."""
    g = gq.Graph("attention")
    x = g.input("x", shape=(2, length, 24), dtype="f32")
    q, k, v = (g.static_transpose(g.static_reshape(g.matmul(x, g.constant(numbers(24, 24)), g.constant(numbers(24))),
                                                   shape=[2, -1, 3, 8]), order=[0, 2, 1, 3]) for _ in range(3))
    scores = g.softmax(g.multiply(g.matmul(q, k, transpose_b=True), np.float32(0.35)), axis=-1)
    y = g.static_reshape(g.static_transpose(g.matmul(scores, v), order=[0, 2, 1, 3]), shape=[2, -1, 24])
    g.output(g.add(g.matmul(y, g.constant(numbers(24, 24))), x), name="y")
    return g, {"x": numbers(2, rows, 24)}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@cache
def by_formula(make, *arguments):
    """A graph, its inputs, and what the formula gives, which is near what f32 gives."""
    g, feeds = make(*arguments)
    wanted, exact = gq.compile(g, precision="bf16", threads=1).formula(feeds), gq.compile(g)(feeds)
    assert not same(exact, wanted) and np.abs(exact - wanted).max() < 0.02 * np.abs(exact).max()
    return g, feeds, wanted


@pytest.mark.parametrize("make, level", at_each_width([(convolutions,), (attention,), (attention, 9, 9)]),
                         indirect=["level"])
def test_the_same_bits_everywhere_and_those_of_the_formula(make, level):
    g, feeds, wanted = by_formula(*make)
    for threads in (1, 3):
        model = gq.compile(g, precision="bf16", isa=level, threads=threads, strict=True)
        assert same(model(feeds), wanted)


@pytest.mark.parametrize("make", [convolutions, attention])
def test_the_reference_of_the_graph_after_the_passes_is_near(make):
    """The rounding stands in that graph: what is left are the roundings of f32 sums."""
    g, feeds = make()
    model, after = gq.compile(g, precision="bf16"), g.copy()
    before = gq.to_text(g)
    run_passes(after, PRECISIONS["bf16"])
    assert gq.to_text(g) == before and "dtype=bf16" in gq.to_text(after)
    np.testing.assert_allclose(model(feeds), gq.reference(after, feeds), rtol=2e-2, atol=2e-3)


def test_each_product_is_one_of_rounded_numbers():
    a, w, b = numbers(5, 9), numbers(9, 33), numbers(33)
    g = gq.Graph()
    g.output(g.matmul(g.input("x", shape=a.shape, dtype="f32"), g.constant(w), g.constant(b)), name="y")
    wanted = tile_sums(a.astype(BF16), w.astype(BF16)) + b
    assert same(gq.compile(g, precision="bf16")(x=a), wanted)


def test_other_lengths_of_an_open_model_and_no_rows(level):
    g, _ = attention()
    model = gq.compile(g, precision="bf16", isa=level, threads=2)
    for rows in (9, 1, 40, 130, 0):
        feeds = {"x": numbers(2, rows, 24)}
        assert same(model(feeds), gq.compile(g, precision="bf16", isa="scalar", threads=1)(feeds))


@pytest.mark.parametrize("k", [0, 1, 3])
def test_few_products(k, level):
    g = gq.Graph()
    g.output(g.matmul(g.input("x", shape=(3, k), dtype="f32"), g.input("w", shape=(k, 18), dtype="f32")), name="y")
    feeds = {"x": numbers(3, k), "w": numbers(k, 18)}
    model = gq.compile(g, precision="bf16", isa=level)
    assert same(model(feeds), tile_sums(feeds["x"].astype(BF16), feeds["w"].astype(BF16)))


def test_infinities_nans_and_numbers_that_round_to_infinity(level):
    g = gq.Graph()
    g.output(g.matmul(g.input("x", shape=(6, 5), dtype="f32"), g.constant(np.eye(5, 17, dtype=np.float32))), name="y")
    x = numbers(6, 5)
    x[0, 0], x[1, 1], x[2, 2], x[3, 4], x[4, 3] = np.nan, np.inf, -np.inf, 3.4e38, 1e-40
    got = gq.compile(g, precision="bf16", isa=level)(x=x)
    assert np.isnan(got[0]).all() and got[1, 1] == np.inf and got[2, 2] == -np.inf and got[3, 4] == np.inf
    assert np.isnan(got[1:4]).sum() == 3 * 16 and got[4, 3] == 0 and np.isfinite(got[4:]).all()


def test_integers_stay_as_they_are():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 16), dtype="u8"), scales=[0.1], zps=[128])
    y = g.matmul(x, g.dequantize(g.constant(RNG.integers(-127, 128, (16, 8)).astype(np.int8)), scales=[0.02]))
    g.output(y, name="y")
    models = [gq.compile(g, precision=p) for p in ("f32", "bf16")]
    x = RNG.integers(0, 256, (4, 16), dtype=np.uint8)
    assert same(*(m(x=x) for m in models)) and models[0].explain() == models[1].explain()


@pytest.mark.parametrize("dtype, group", [("u4", 8), ("s8", 24)])
def test_weights_of_few_bits_are_rounded_and_stay_compressed(dtype, group, level):
    g, kind = gq.Graph(), gq.dtypes.as_dtype(dtype)
    q = RNG.integers(0, 16, (24, 18)).astype(kind.numpy)
    scales = RNG.uniform(0.1, 0.2, (24 // group, 18)).astype(np.float32)
    w = g.dynamic_dequantize(g.constant(q), g.constant(scales), qtype="per_group", group_shape=[group, 1])
    g.output(g.matmul(g.input("x", shape=(4, 24), dtype="f32"), w), name="y")
    x, model = numbers(4, 24), gq.compile(g, precision="bf16", isa=level, strict=True)
    expanded = q.astype(np.float32) * scales.repeat(group, axis=0)
    assert same(model(x=x), tile_sums(x.astype(BF16), expanded.astype(BF16)))
    assert "1 matmul_compressed (1 in floats, 1 of them of bf16)" in model.explain()


def test_the_default_is_f32():
    g, _ = convolutions()
    models = gq.compile(g), gq.compile(g, precision="f32"), gq.compile(g, passes=PIPELINE)
    texts = {gq.to_text(m.graph) for m in models}
    assert len(texts) == 1 and "bf16" not in texts.pop()
    assert "bf16" not in gq.compile(g, isa="avx2").explain()
    text = gq.compile(g, precision="bf16", isa="avx2").explain()
    assert "4 convolution (4 in floats, 3 of them of bf16)" in text
    assert "1 matmul (1 in floats, 1 of them of bf16)" in text


def test_saved_and_kept_models(tmp_path, folder):
    g, feeds = convolutions()
    gq.save_onnx(g, tmp_path / "m.onnx")
    models = {p: gq.compile(tmp_path / "m.onnx", precision=p) for p in ("f32", "bf16")}
    wanted = {p: m(feeds) for p, m in models.items()}
    assert not same(*wanted.values())
    for p, model in models.items():
        again = gq.compile(tmp_path / "m.onnx", precision=p)
        assert "compiled before" in again.origin and same(again(feeds), wanted[p])
        model.save(tmp_path / "saved.graphq")
        loaded = gq.load_compiled(tmp_path / "saved.graphq")
        assert "anew" not in loaded.origin and same(loaded(feeds), wanted[p])
        assert loaded.explain().splitlines()[1:] == model.explain().splitlines()
        for isa in ("avx2", "scalar"):
            assert same(gq.load_compiled(tmp_path / "saved.graphq", isa=isa)(feeds), wanted[p])


@pytest.mark.parametrize("wrong", [None, "f16", 16, "BF16"])
def test_wrong_precisions(wrong):
    with pytest.raises(CompileError, match="precision must be f32 or bf16"):
        gq.compile(convolutions()[0], precision=wrong)


def test_it_stands_beside_no_passes():
    with pytest.raises(CompileError, match="precision 'bf16' is a pass: give only `passes`"):
        gq.compile(convolutions()[0], precision="bf16", passes=PIPELINE)


def test_passes_are_verified_with_it():
    g, _ = convolutions()
    gq.compile(g, precision="bf16", verify="numeric")


def test_commands(tmp_path, capsys):
    path = tmp_path / "g.txt"
    path.write_text(gq.to_text(convolutions()[0]))
    assert main(["explain", str(path), "--precision=bf16", "--isa=avx2"]) == 0
    assert "3 of them of bf16" in capsys.readouterr().out
    assert main(["run", str(path), "--precision=bf16", "--isa=avx2", "--compare"]) == 0
    assert "but equal to its formula" in capsys.readouterr().out
    sides = ["--precision=f32,bf16", "--isa=avx2,scalar", "--threads=1"]
    assert main(["bench", str(path), *sides, "--seconds=0.001"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("  ")[1] for row in rows] == [
        "graphq avx2", "graphq avx2, bf16", "graphq scalar", "graphq scalar, bf16"]
    assert main(["bench", str(path), "--precision=f16"]) == 2
    assert "precision must be f32 or bf16, got 'f16'" in capsys.readouterr().err
    saved = tmp_path / "g.graphq"
    assert main(["compile", str(path), "--precision=bf16", "-o", str(saved)]) == 0
    assert main(["explain", str(saved)]) == 0 and "3 of them of bf16" in capsys.readouterr().out
    assert main(["explain", str(saved), "--precision=bf16"]) == 2
    assert "is already compiled" in capsys.readouterr().err
