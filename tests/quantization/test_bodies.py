"""Products in bodies of If, Loop and Scan: statistics over all iterations, integers in the body, the same in a file."""
import json

import numpy as np
import pytest
from onnx_runtime import session

import graphq as gq
from graphq.cli import main
from graphq.kernels.target.isa import LEVELS
from graphq.onnx import to_model
from graphq.quantization import Scheme, automatic, calibrate, compare, quantize
from graphq.quantization.bodies import iterations, with_bodies
from graphq.quantization.parametrized import Parametrized
from graphq.quantization.price import Price
from graphq.quantization.products import left_in_floats, prepared, products
from graphq.quantization.selection import selected
from graphq.quantization.statistics import Statistics

RNG = np.random.default_rng(5)
W, U, V = (RNG.standard_normal((16, 16)).astype(np.float32) / 4 for _ in range(3))


def looped(trips=3):
    """relu(x @ W), then h = tanh(h @ U + x @ V) in a loop, whose products are stacked; the last h times W."""
    g = gq.Graph("looped")
    x = g.input("x", dtype="f32", shape=(4, 16))
    first = g.relu(g.matmul(x, W, name="before"))
    body = gq.Graph("body")
    body.input("k", dtype="s64", shape=())
    going = body.input("going", dtype="boolean", shape=())
    h, given = (body.input(name, dtype="f32", shape=(4, 16)) for name in ("h", "x"))
    state = body.matmul(h, U, name="state")
    new = body.tanh(body.add(state, body.matmul(given, V, name="source")))
    body.set_outputs([going, new, state], ["more", "next", "stacked"])
    last, stacked = g.loop(g.add_constant(np.asarray(trips)), g.add_constant(np.asarray(True)), first, x, body=body,
                           states=1)
    g.output(g.matmul(last, W, name="after"))
    g.output(stacked, name="states")
    return g, batches()


def scanned():
    """h = tanh(h @ U + x[t] @ V), from the last x to the first."""
    g = gq.Graph("scanned")
    x, h = g.input("x", dtype="f32", shape=(4, 16)), g.input("h", dtype="f32", shape=(1, 16))
    body = gq.Graph("body")
    old, part = body.input("old", dtype="f32", shape=(1, 16)), body.input("part", dtype="f32", shape=(16,))
    row = body.static_reshape(part, shape=[1, 16])
    new = body.tanh(body.add(body.matmul(old, U, name="state"), body.matmul(row, V, name="source")))
    body.set_outputs([new, new], ["next", "kept"])
    last, kept = g.scan(h, x, body=body, states=1, scanned=1, input_axes=[0], reverse_inputs=[True],
                        output_axes=[1], reverse_outputs=[False])
    g.output(last, name="last")
    g.output(kept, name="kept")
    return g, [{**b, "h": RNG.standard_normal((1, 16)).astype(np.float32)} for b in batches()]


def branched(nested=False):
    """Two branches, whose products have one name; `nested` in a loop in the first one."""
    g = gq.Graph("branched")
    x, choice = g.input("x", dtype="f32", shape=(4, 16)), g.input("choice", dtype="boolean", shape=())
    bodies = []
    for weights in (U, V):
        body = gq.Graph("branch")
        value = body.input("x", dtype="f32", shape=(4, 16))
        if nested and not bodies:
            turn = gq.Graph("turn")
            turn.input("k", dtype="s64", shape=())
            going = turn.input("going", dtype="boolean", shape=())
            h = turn.input("h", dtype="f32", shape=(4, 16))
            turn.set_outputs([going, turn.tanh(turn.matmul(h, W, name="inner"))], ["more", "next"])
            value = body.loop(body.add_constant(np.asarray(2)), body.add_constant(np.asarray(True)), value, body=turn,
                              states=1)
        body.output(body.matmul(value, weights, name="product"), name="out")
        bodies.append(body)
    g.output(g.if_else(choice, g.relu(x), then_body=bodies[0], else_body=bodies[1]), name="y")
    return g, [{**b, "choice": np.array(k % 2 == 0)} for k, b in enumerate(batches())]


def batches(count=4):
    return [{"x": RNG.standard_normal((4, 16)).astype(np.float32)} for _ in range(count)]


NETWORKS = {"loop": looped, "scan": scanned, "if": branched, "a loop in an if": lambda: branched(nested=True)}
NAMES = {"loop": ["before", "after", "state", "source"], "scan": ["state", "source"], "if": ["product", "product_1"],
         "a loop in an if": ["product", "inner", "product_1"]}


def cosine(a, b):
    return min(float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())) for x, y in zip(a, b, strict=True))


def values(out):
    return list(out.values()) if isinstance(out, dict) else [out]


def outputs(graph, batch):
    return values(gq.compile(graph)(batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_products_in_bodies_are_quantized(name):
    graph, data = NETWORKS[name]()
    text = gq.to_text(graph)
    assert [p.name for p in products(prepared(graph))] == NAMES[name]
    made = quantize(graph, data, Scheme(method="min_max"))
    assert not list(products(made)) and not left_in_floats(made) and gq.to_text(graph) == text
    count = sum(n.op.name == "quantize" for g in with_bodies(made) for n in g.nodes)
    assert count == len(NAMES[name])
    for batch in data:
        got, want = outputs(made, batch), outputs(graph, batch)
        assert 0.999 < cosine(got, want) < 1 - 1e-9
        for x, y in zip(got, values(gq.reference(made, batch)), strict=True):
            np.testing.assert_allclose(x, y, atol=0.02 * np.abs(y).max())
    model = gq.compile(made)
    model(data[0])
    assert model.coverage().share == 1


@pytest.mark.parametrize("name", NETWORKS)
def test_the_automatic_setting_has_them(name):
    graph, data = NETWORKS[name]()
    found = automatic(graph, data)
    assert not found.left and found.losses[found.setting] < 0.005
    assert {*NAMES[name]} == {p.name for p in products(found.graph)} ^ {
        p.name for p in products(prepared(graph))} | {*found.setting.scheme.exclude}
    assert cosine(outputs(found.graph, data[0]), outputs(graph, data[0])) > 0.995


def test_statistics_are_over_all_iterations():
    graph, data = looped(trips=5)
    found = calibrate(graph, data)
    name = next(str(p.factors[0].name) for p in products(prepared(graph)) if p.name == "state")
    seen = []
    for batch in data:
        h = np.maximum(batch["x"] @ W, 0)
        for _ in range(5):
            seen.append(h)
            h = np.tanh(h @ U + batch["x"] @ V)
    t = found[name]
    assert t.counts.sum() == 5 * 4 * 64 == sum(x.size for x in seen)
    assert np.allclose([t.low, t.high], [np.min(seen), np.max(seen)], rtol=1e-5)
    assert calibrate(graph, data, histograms=False)[name].high == t.high


@pytest.mark.parametrize("others", [0, 1])
def test_a_branch_that_too_few_batches_take_stays_in_f32(others):
    """If one batch takes it, no other batch shows what the layer would lose on new data."""
    graph, data = branched()
    taken = [b for b in data if b["choice"]]
    found = automatic(graph, taken + [b for b in data if not b["choice"]][:others])
    assert "'product_1' stays in f32, because too few batches reached else_body of if_else 'y'" in str(found)
    for made in (quantize(graph, taken, Scheme()), found.graph):
        assert "product_1" in [p.name for p in products(made)]
        assert [*made.meta["quantization"]["out_of_range"]] == ["product_1"]
        other = {**taken[0], "choice": np.array(False)}
        np.testing.assert_array_equal(outputs(made, other)[0], outputs(graph, other)[0])


def test_layers_that_no_batch_reaches_have_no_16_bits():
    """The report names 16 bits only for layers that have them, and no setting of the search gives them to others."""
    graph, data = branched()
    taken, both = [b for b in data if b["choice"]], {"wide": ["product*"], "wide_weights": ["product*"]}
    chosen = automatic(graph, taken, Scheme(method="automatic", max_loss=1e-8, **both))
    for made in (quantize(graph, taken, Scheme(**both)), chosen.graph):
        facts = made.meta["quantization"]
        assert facts["layers_int16"] == facts["weights_int16"] == ["product"]
        assert [*facts["out_of_range"]] == ["product_1"]
    assert not any("product_1" in (*s.scheme.wide, *s.scheme.wide_weights, *s.scheme.exclude) for s in chosen.losses)


def test_a_loop_without_iterations_has_no_statistics():
    graph, data = looped(trips=0)
    assert "h" not in calibrate(graph, data)
    made = quantize(graph, data, Scheme())
    assert {p.name for p in products(made)} == {"state", "source"}
    assert set(made.meta["quantization"]["out_of_range"].values()) == {
        "stays in f32, because too few batches reached body of loop 'loop'"}


@pytest.mark.parametrize("scheme", [Scheme(wide=["state"], wide_weights=["source"]), Scheme(mode="dynamic"),
                                    Scheme(mode="dynamic", rows=True), Scheme(mode="weight_only"),
                                    Scheme(mode="weight_only", weight_bits=4, rounding="gptq", block=8),
                                    Scheme(exclude=["after"], weight_bits=7)], ids=str)
def test_all_schemes_reach_bodies(scheme):
    graph, data = looped()
    made = quantize(graph, data, scheme)
    left = {p.name for p in products(made) if p.factors[1].node.op.name != "dynamic_dequantize"}
    assert left == {*scheme.exclude}
    assert cosine(outputs(made, data[0]), outputs(graph, data[0])) > (0.98 if scheme.weight_bits == 4 else 0.999)


def test_16_bits_lose_less():
    graph, data = looped()
    exact, plain, wide = (outputs(g, data[1]) for g in (graph, quantize(graph, data, Scheme()), quantize(
        graph, data, Scheme(wide=["*"], wide_weights=["*"]))))
    assert 1 - cosine(wide, exact) < 0.05 * (1 - cosine(plain, exact))


def test_parameters_reach_bodies_as_inputs():
    graph = prepared(branched(nested=True)[0])
    model = Parametrized(graph, twins=False)
    names = [n for n in model.model.inputs if n.startswith("quantized/")]
    assert {n.split("/")[1] for n in names} == {"inner", "product", "product_1"}
    batch = {"x": batches()[0]["x"], "choice": np.array(True)}
    (got,) = model.runs([batch], {}, Scheme())
    np.testing.assert_allclose(got["y"], outputs(graph, batch)[0], rtol=1e-5, atol=1e-6)


def test_products_in_bodies_are_chosen():
    graph = prepared(branched(nested=True)[0])
    assert selected(graph, ["inner"]) == ("inner",) and selected(graph, ["prod*"]) == ("product", "product_1")
    assert set(selected(graph, ["relu..y"])) == {"inner", "product", "product_1"}
    assert selected(graph, ["loop..product"]) == ("product", "inner") and selected(graph, ["h..tanh"]) == ("inner",)
    with pytest.raises(gq.GraphError, match="named 'relu..product'; did you mean product, product_1"):
        selected(graph, ["relu..product"])
    graph, data = looped()
    name = next(str(p.factors[0].name) for p in products(prepared(graph)) if p.name == "state")
    made = quantize(graph, data, Scheme(method="min_max", limits={name: (-4, 4)}))
    scales = {n.attrs["scales"] for g in with_bodies(made) for n in g.nodes if n.op.name == "quantize"}
    assert (float(np.float32(8 / 255)),) in scales


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", NETWORKS)
def test_files_have_the_same_numbers(name, opset, tmp_path):
    graph, data = NETWORKS[name]()
    made = quantize(graph, data, Scheme(method="min_max"))
    gq.save_onnx(made, tmp_path / "made.onnx", opset=opset)
    again = gq.load_onnx(tmp_path / "made.onnx")
    engine = session(tmp_path / "made.onnx")
    for batch in data:
        got = outputs(made, batch)
        for x, y in zip(got, outputs(again, batch), strict=True):
            np.testing.assert_array_equal(x, y)
        for x, y in zip(got, engine.run(None, batch), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-2 * np.abs(x).max())
    assert [p.name for p in products(prepared(gq.load_onnx(to_model(graph))))] == NAMES[name]


def test_a_saved_product_of_a_body_has_its_name():
    """No two values of a file have the same name, in whichever graphs they are."""
    graph, data = branched()
    made = quantize(graph, data, Scheme())
    model = to_model(made)
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    names = [o for a in node.attribute for n in a.g.node for o in n.output]
    assert len(set(names)) == len(names) and {"product", "product_1"} <= set(names)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_bodies_of_16_bits(dtype):
    """They are computed in f32 between their operands and their results."""
    g = gq.Graph()
    x, choice = g.input("x", dtype=dtype, shape=(4, 16)), g.input("choice", dtype="boolean", shape=())
    bodies = []
    for weights in (U, V):
        body = gq.Graph("branch")
        body.output(body.matmul(body.input("x", dtype=dtype, shape=(4, 16)), body.constant(weights, dtype=dtype)))
        bodies.append(body)
    g.output(g.if_else(choice, x, then_body=bodies[0], else_body=bodies[1]), name="y")
    data = [{"x": b["x"].astype(g.inputs[0].dtype.numpy), "choice": np.array(k % 2 == 0)}
            for k, b in enumerate(batches())]
    made = quantize(g, data, Scheme())
    assert not list(products(made)) and made.outputs[0].type == g.outputs[0].type
    got, want = ([x.astype(np.float32) for x in outputs(graph, data[0])] for graph in (made, g))
    assert cosine(got, want) > 0.999


@pytest.mark.parametrize("name, macs", [
    ("loop", {"before": 1024, "after": 1024, "state": 3072, "source": 3072}), ("scan", {"state": 1024, "source": 1024}),
    ("a loop in an if", {"product": 1024, "inner": 2048, "product_1": 1024})])
def test_work_of_all_iterations(name, macs):
    graph, data = NETWORKS[name]()
    assert {n: work for n, (work, _) in Price(prepared(graph), data[0], LEVELS[0]).work.items()} == macs


def applied(g, x, kinds):
    """tanh(x) in a body in a body ...: the outermost first, each with its number of iterations."""
    if not kinds:
        return g.tanh(x)
    (kind, count), *inner = kinds
    body = gq.Graph(kind)
    if kind == "loop":
        body.input("k", dtype="s64", shape=())
        going, h = body.input("going", dtype="boolean", shape=()), body.input("h", dtype="f32", shape=(16,))
        body.set_outputs([going, applied(body, h, inner)], ["more", "next"])
        return g.loop(g.add_constant(np.asarray(count)), g.add_constant(np.asarray(True)), x, body=body, states=1)
    h = body.input("h", dtype="f32", shape=(16,))
    if kind == "scan":
        body.input("part", dtype="f32", shape=(16,))
    body.output(applied(body, h, inner), name="next")
    if kind == "scan":
        return g.scan(x, g.add_constant(np.zeros((count, 16), np.float32)), body=body, states=1, scanned=1,
                      input_axes=[0], reverse_inputs=[False], output_axes=[], reverse_outputs=[])
    return g.if_else(g.add_constant(np.asarray(True)), x, then_body=body, else_body=body.copy())


@pytest.mark.parametrize("kinds, count", [
    ((), 1), ((("loop", 3), ("loop", 2)), 6), ((("scan", 4), ("loop", 3)), 12), ((("loop", 3), ("scan", 4)), 12),
    ((("scan", 4), ("scan", 5)), 20), ((("loop", 2), ("if", 1), ("loop", 3), ("scan", 5)), 30),
    ((("loop", 3), ("loop", 0)), 3), ((("loop", 3), ("loop", 1 << 40), ("loop", 2)), 6)], ids=str)
def test_iterations_of_bodies_in_bodies_multiply(kinds, count):
    g = gq.Graph()
    g.output(applied(g, g.input("x", dtype="f32", shape=(16,)), kinds))
    owners = with_bodies(g)
    assert {iterations(n, owners) for body in owners for n in body.nodes if n.op.name == "tanh"} == {count}


def test_loops_of_unknown_length_count_once():
    graph, data = looped(trips=np.iinfo(np.int64).max)
    assert Price(prepared(graph), data[0], LEVELS[0]).work["state"] == (1024.0, 128.0)


def test_tensors_around_bodies_are_compared():
    graph, data = looped()
    found = compare(quantize(graph, data, Scheme()), graph, data)
    assert {"before", "after"} <= {t.name for t in found.tensors} and found["after"].cost is not None


def test_the_command(tmp_path, capsys):
    graph, data = looped()
    gq.save_onnx(graph, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **data[0])
    main(["quantize", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "data.npz"), "--method", "min_max",
          "--exclude", "before", "--exclude", "after", "--exclude", "source", "--json",
          "--out", str(tmp_path / "made.onnx")])
    assert json.loads(capsys.readouterr().out)["bytes"] > 0
    assert {p.name for p in products(gq.load_onnx(tmp_path / "made.onnx"))} == {"before", "after", "source"}


def test_statistics_of_another_graph_are_refused():
    with pytest.raises(gq.GraphError, match="no statistics of 'x', an operand of 'before'"):
        quantize(looped()[0], Statistics({}, 1), Scheme())
