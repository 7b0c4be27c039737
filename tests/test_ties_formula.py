"""compile(..., ties="formula"): exact sums round alone, with the same bits at every level and thread count."""
import pickle
from functools import cache

import numpy as np
import pytest
from levels import at_each_width

import graphq as gq
from graphq.cli import main
from graphq.errors import CompileError, ParseError
from graphq.ir.op import lookup
from graphq.passes import PIPELINE, PRECISIONS, leave_ties
from graphq.testing import random_inputs

SX, SW, ZX, M, K, N = np.float32(0.0173), np.float32(1.1e-3), 7, 70, 96, 80
FIRST, SECOND = dict(dtype="u8", scales=[float(np.float32(16 * SX * SW))], zps=[100]), dict(
    dtype="s8", scales=[float(np.float32(23 * SX * SW))], zps=[-9])
R, RZ = np.float32(0.00031), 120
RNG = np.random.default_rng(0)
W, BIAS = RNG.integers(-128, 128, (K, N)).astype(np.int8), np.float32(RNG.normal(size=N, scale=0.01))


def dense(residual, relu=False, channels=False):
    """A matmul with a bias, quantized; if `residual`, added to a second operand and quantized again.

    Sums are often ties: outputs have scales of 16 products.
    """
    g = gq.Graph("dense")
    x = g.dequantize(g.input("x", shape=(M, K), dtype="u8"), scales=[float(SX)], zps=[ZX])
    w = g.dequantize(g.constant(W), scales=[float(SW)])
    y = g.matmul(x, w) if channels else g.matmul(x, w, g.constant(BIAS))
    y = g.relu(y) if relu else y
    per = dict(qtype="per_channel", axis=1, scales=FIRST["scales"] * N, zps=FIRST["zps"] * N) if channels else {}
    y = g.quantize(y, **{**FIRST, **per})
    if residual:
        y = g.dequantize(y, scales=FIRST["scales"], zps=FIRST["zps"])
        y = g.add(y, g.dequantize(g.input("r", shape=(M, N), dtype="u8"), scales=[float(R)], zps=[RZ]))
        y = g.quantize(y, **SECOND)
    g.output(y, name="y")
    return g


def quantized(y, dtype, scales, zps, by_inverse):
    """The integers of f32 numbers: a product with the inverse scale after a sum of products, otherwise a quotient."""
    s, (lo, hi) = np.float32(scales[0]), {"u8": (0, 255), "s8": (-128, 127)}[dtype]
    q = y * np.float32(1 / np.float64(s)) if by_inverse else y / s
    return np.clip(np.rint(q) + zps[0], lo, hi).astype(dtype.replace("u", "uint").replace("s", "int"))


def in_numpy(x, r=None, relu=False, channels=False):
    """The results of `dense`, from the integer sum."""
    total = (x.astype(np.int64) - ZX) @ W.astype(np.int64)
    y = np.float32(total) * (SX * SW)
    y = y if channels else y + BIAS
    y = quantized(np.maximum(y, 0) if relu else y, **FIRST, by_inverse=True)
    if r is None:
        return y
    y = (y.astype(np.float32) - FIRST["zps"][0]) * np.float32(FIRST["scales"][0])
    y = y + (r.astype(np.float32) - RZ) * R
    return quantized(y, **SECOND, by_inverse=False)


CASES = {"alone": dict(residual=False), "relu": dict(residual=False, relu=True), "residual": dict(residual=True),
         "relu, residual": dict(residual=True, relu=True), "channels": dict(residual=False, channels=True)}


def feeds(residual):
    rng = np.random.default_rng(1)
    x = {"x": rng.integers(0, 256, (M, K)).astype(np.uint8)}
    return x | {"r": rng.integers(0, 256, (M, N)).astype(np.uint8)} if residual else x


@pytest.mark.parametrize("case, level", at_each_width(CASES), indirect=["level"])
def test_exact_sums_round_as_in_numpy(case, level):
    g, inputs = dense(**CASES[case]), feeds(CASES[case]["residual"])
    want = in_numpy(**inputs, **{k: v for k, v in CASES[case].items() if k != "residual"})
    for threads in (1, 2):
        model = gq.compile(g, ties="formula", isa=level, threads=threads, strict=True)
        np.testing.assert_array_equal(model(inputs), want)
    np.testing.assert_array_equal(model.formula(inputs), want)


def convolution(groups, transposed=False, kernel=3, channels=32):
    """Outputs of scale twice that of products: every odd sum is a tie."""
    rng = np.random.default_rng(1)
    shape = (channels, channels // groups, kernel, kernel)
    g = gq.Graph("convolution")
    a = g.dequantize(g.input("x", shape=(1, 20, 20, channels), dtype="u8"), scales=[float(SX)], zps=[ZX])
    b = g.dequantize(g.constant(rng.integers(-2, 3, shape).astype(np.int8)), scales=[float(SW)])
    lists = dict(strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
    op = g.conv_transpose if transposed else g.convolution
    y = op(a, b, **lists, groups=groups, data_format="NXC", weights_format="IOX" if transposed else "OIX")
    g.output(g.quantize(y, dtype="s8", scales=[float(np.float32(2 * SX * SW))]), name="y")
    return g, {"x": rng.integers(0, 15, (1, 20, 20, channels)).astype(np.uint8)}


CONVOLUTIONS = {"dense": dict(groups=1), "depthwise": dict(groups=32), "transposed": dict(groups=1, transposed=True),
                "groups": dict(groups=2, kernel=1), "few channels": dict(groups=1, channels=3)}


@cache
def by_formula(case):
    """A graph, its inputs, and what the formula gives, which differs from what settled ties give."""
    g, inputs = convolution(**CONVOLUTIONS[case])
    want, settled = gq.compile(g, ties="formula").formula(inputs), gq.compile(g)(inputs)
    assert (settled != want).any() and np.abs(settled.astype(int) - want).max() == 1
    assert np.unique(want).size > 20
    return g, inputs, want


@pytest.mark.parametrize("case, level", at_each_width(CONVOLUTIONS), indirect=["level"])
def test_the_same_bits_everywhere_and_those_of_the_formula(case, level):
    g, inputs, want = by_formula(case)
    for threads in (1, 2):
        model = gq.compile(g, ties="formula", isa=level, threads=threads, strict=True)
        np.testing.assert_array_equal(model(inputs), want)


def test_it_is_a_pass_that_is_named_and_kept(tmp_path):
    g, inputs = dense(residual=True), feeds(True)
    models = [gq.compile(g, ties="formula"), gq.compile(g, passes=PIPELINE, ties="formula"),
              gq.compile(g, passes=(*PIPELINE, leave_ties))]
    want = models[0](inputs)
    models[0].save(tmp_path / "m.graphq")
    loaded = gq.load_compiled(tmp_path / "m.graphq")
    other = gq.load_compiled(tmp_path / "m.graphq", isa="scalar")
    for model in (*models, loaded, other, pickle.loads(pickle.dumps(models[0]))):
        np.testing.assert_array_equal(model(inputs), want)
        assert 'ties: 1 quantize not settled, as ties="formula" says' in model.explain()
    assert "anew" not in loaded.origin and "anew" in other.origin
    np.testing.assert_array_equal(gq.Predictor(tmp_path / "m.graphq", threads=1)(inputs)["y"], want)
    settled = gq.compile(g, ties="settled")
    assert "formula" not in settled.explain() and settled.explain() == gq.compile(g).explain()
    assert gq.to_text(gq.parse(gq.to_text(models[0].graph))) == gq.to_text(models[0].graph) != gq.to_text(settled.graph)


def test_with_bf16_and_with_verified_passes():
    g = gq.compile(dense(residual=False), ties="formula", precision="bf16", verify="numeric")
    assert g.options.passes == (*PRECISIONS["bf16"], leave_ties)


def test_open_sizes():
    g = gq.Graph("open")
    x = g.dequantize(g.input("x", shape=(None, K), dtype="u8"), scales=[float(SX)], zps=[ZX])
    y = g.matmul(x, g.dequantize(g.constant(W), scales=[float(SW)]), g.constant(BIAS))
    g.output(g.quantize(y, **FIRST), name="y")
    model = gq.compile(g, ties="formula", threads=2)
    for m in (1, 5, M):
        x = feeds(False)["x"][:m]
        np.testing.assert_array_equal(model(x=x), in_numpy(x))


def test_products_of_activations_of_open_sizes():
    g = gq.Graph("activations")
    a, b = (g.dequantize(g.input(x, shape=(None, None), dtype="u8"), scales=[s], zps=[ZX])
            for x, s in (("a", float(SX)), ("b", float(SW))))
    g.output(g.quantize(g.matmul(a, b, transpose_b=True), **FIRST), name="y")
    model = gq.compile(g, ties="formula", threads=2)
    for m, k, n in ((3, 5, 7), (M, 200, N), (1, 1, 1)):
        x, w = RNG.integers(0, 256, (m, k)).astype(np.uint8), RNG.integers(0, 256, (n, k)).astype(np.uint8)
        total = (x.astype(np.int64) - ZX) @ (w.astype(np.int64) - ZX).T
        want = quantized(np.float32(total) * (SX * SW), **FIRST, by_inverse=True)
        np.testing.assert_array_equal(model(a=x, b=w), want)
    assert not model.plans.for_each_shape


def test_a_graph_with_some_settled_partitions():
    g = gq.Graph("mixed")
    for ties in ("settled", "formula"):
        model = gq.compile(dense(residual=False), ties=ties)
        (node,) = model.graph.nodes_of(("partition",))
        operands = [g.input(f"x{len(g.inputs)}", shape=(M, K), dtype="u8") if v.data is None else g.constant(v.data)
                    for v in node.operands]
        g.output(g.add_node(node.op, operands, node.attrs)[0], name=f"y{len(g.outputs)}")
    assert gq.compile(g).explain(format="json")["ties"] == [
        'ties: 1 quantize not settled, as ties="formula" says',
        "ties: 1 quantize settled by the f32 sums of the graph as written: 0 within proved bounds, "
        "1 within estimated ones"]


def test_a_partition_with_several_outputs():
    body, g = gq.Graph("body"), gq.Graph("several")
    q = body.input("q", shape=(3,), dtype="u8")
    x = body.dequantize(q, scales=[0.5])
    body.output(x, name="a")
    body.output(body.add(x, x), name="b")
    x = g.input("x", shape=(3,), dtype="u8")
    for k, y in enumerate(g.add_node(lookup("partition"), [x], {"body": body, "anchor": "eltwise"})):
        g.output(y, name=f"y{k}")
    assert leave_ties(g) == 1 and leave_ties(g) == 0
    (node,) = g.nodes
    assert node.attrs["ties"] == "formula" and g.outputs == [*node.outputs]
    a, b = gq.reference(g, {"x": np.array([1, 2, 255], np.uint8)}).values()
    assert (a * 2).tolist() == b.tolist() == [1, 2, 255]


def refused(case):
    """A graph whose last quantize is not settled whatever `ties` says, and a part of the reason."""
    g = gq.Graph(case)
    x, w = g.input("x", shape=(M, K), dtype="u8"), g.dequantize(g.constant(W), scales=[float(SW)])
    x = (g.dynamic_dequantize(x, g.input("s", dtype="f32", shape=())) if case == "a tensor of scales" else
         g.dequantize(x, scales=[float(SX)], zps=[ZX]))
    y = g.matmul(x, w)
    if case == "after 16 bits":
        z = g.dequantize(g.quantize(y, dtype="u16", scales=[1e-4], zps=[30000]), scales=[1e-4], zps=[30000])
        y = g.add(z, y)
    if case == "a quotient":
        y = g.divide(y, g.input("d", shape=(M, N), dtype="f32"))
    g.output(g.quantize(y, **{**FIRST, "dtype": "u16" if case == "16 bits" else "u8"}), name="y")
    return g


@pytest.mark.parametrize("case, reason", [
    ("16 bits", "at 16 bits f32 sums decide"), ("a tensor of scales", "operands with constant scales"),
    ("after 16 bits", "how far quantize carries"), ("a quotient", "how far divide carries")])
def test_what_settling_refuses_has_its_own_reason(case, reason):
    settled, formula = (gq.compile(refused(case), ties=ties, threads=1) for ties in ("settled", "formula"))
    _, *lines = settled.explain(format="json")["ties"]
    told = formula.explain(format="json")["ties"]
    assert reason in lines[-1] and told[-len(lines):] == lines and 'ties="formula"' not in "".join(told)
    inputs = random_inputs(settled.source)
    np.testing.assert_array_equal(formula(inputs), formula.formula(inputs))


@pytest.mark.parametrize("wrong", [None, "exact", True, ["formula"]])
def test_wrong_options(wrong):
    with pytest.raises(CompileError, match="ties must be settled or formula"):
        gq.compile(dense(residual=False), ties=wrong)


def test_wrong_attributes():
    text = gq.to_text(gq.compile(dense(residual=False), ties="formula").graph)
    with pytest.raises(ParseError, match='ties must be "settled" or "formula", got \'near\''):
        gq.parse(text.replace('ties="formula"', 'ties="near"'))


def test_commands(tmp_path, capsys):
    path, saved = tmp_path / "g.txt", tmp_path / "g.graphq"
    path.write_text(gq.to_text(dense(residual=False)))
    assert main(["explain", str(path), "--ties=formula"]) == 0 and 'ties="formula"' in capsys.readouterr().out
    assert main(["run", str(path), "--ties=formula", "--compare"]) == 0
    assert main(["bench", str(path), "--ties=formula", "--threads=1", "--seconds=0.001"]) == 0
    assert main(["compile", str(path), "--ties=formula", "-o", str(saved)]) == 0
    capsys.readouterr()
    assert main(["explain", str(saved)]) == 0 and 'ties="formula"' in capsys.readouterr().out
    assert main(["explain", str(saved), "--ties=formula"]) == 2
    assert "--ties formula: " in capsys.readouterr().err
