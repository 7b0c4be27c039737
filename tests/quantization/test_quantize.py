"""quantize: all products in integers, near f32; schemes, names, files, what is refused."""
from functools import cache, lru_cache

import numpy as np
import pytest
from float_networks import attention, convolutional, perceptron
from onnx_runtime import session

import graphq as gq
from graphq.quantization import Scheme, automatic, calibrate, quantize
from graphq.quantization.compare import distance
from graphq.quantization.products import prepared, products

NETWORKS = [convolutional, perceptron, attention]


@cache
def networks():
    """The networks with their batches, one graph of each for all tests: none may change it."""
    return {network: network() for network in NETWORKS}


@lru_cache(maxsize=32)
def compiled(graph):
    """One model of a graph, which no longer changes: its plans are made once, whatever asks for them."""
    return gq.compile(graph)


def loss(quantized, graph, batches):
    a, b = compiled(quantized), compiled(graph)
    return max(distance(a(x), b(x)) for x in batches)


def covered(graph, batch):
    model = compiled(graph)
    model(batch)
    return model.coverage().share


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("scheme", [
    Scheme(), Scheme(method="min_max"), Scheme(method="percentile"), Scheme(activations="s8", symmetric=True),
    Scheme(activations="s8"), Scheme(symmetric=True), Scheme(bias="f32", per_channel=False),
    Scheme(weight_bits=7)], ids=str)
def test_static_schemes(network, scheme):
    graph, batches = networks()[network]
    made = quantize(graph, batches, scheme)
    assert covered(made, batches[0]) == 1
    assert loss(made, graph, batches) < 0.02
    dtypes = {n.attrs["dtype"] for n in made.nodes_of(("quantize",))}
    assert dtypes == {scheme.activations}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_compiled_graph_is_the_reference(network):
    """Numbers near ties are settled in the order of sums of another engine; all else is equal."""
    graph, batches = networks()[network]
    made = quantize(graph, batches[:1], Scheme())
    x = batches[-1]
    np.testing.assert_allclose(compiled(made)(x), gq.reference(made, x), atol=0.02)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rows", [False, True])
def test_dynamic(network, rows):
    graph, batches = networks()[network]
    made = quantize(graph, scheme=Scheme(mode="dynamic", rows=rows))
    assert covered(made, batches[0]) == 1
    assert loss(made, graph, batches) < 0.005
    big = {k: 100 * x for k, x in batches[0].items()}
    assert loss(made, graph, [big]) < 0.005  # the range is found anew


def test_rows_of_zeros_and_of_any_size():
    graph, _ = perceptron()
    model, plain = gq.compile(quantize(graph, scheme=Scheme(mode="dynamic", rows=True))), gq.compile(graph)
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    x *= np.float32([[0], [1e-6], [1], [100], [1e6]])
    for k in range(5):
        assert distance(model(x)[k], plain(x)[k]) < 0.002


@pytest.mark.parametrize("bits, block, most", [(8, 32, 1e-4), (4, 16, 0.02), (4, 7, 0.03)])
def test_weight_only(bits, block, most):
    graph, batches = perceptron()
    made = quantize(graph, scheme=Scheme(mode="weight_only", weight_bits=bits, block=block))
    assert loss(made, graph, batches) < most
    kinds = {n.output.dtype.name for n in made.nodes if n.op.name == "constant"}
    assert {4: "s4", 8: "s8"}[bits] in kinds


@pytest.mark.parametrize("network", NETWORKS)
def test_sixteen_bits_are_two_of_eight(network):
    """What 8 bits leave over is a product of its own, in integers, too."""
    graph, batches = networks()[network]
    names = [p.name for p in products(prepared(graph))]
    losses = [loss(quantize(graph, batches, Scheme(method="min_max", **more)), graph, batches)
              for more in ({}, {"wide": names}, {"wide_weights": names}, {"wide": names, "wide_weights": names})]
    assert losses[1] < losses[0] and losses[3] < losses[0] / 100
    made = quantize(graph, batches, Scheme(method="min_max", wide=names, wide_weights=names))
    assert covered(made, batches[0]) == 1 and {v.name for n in made.nodes for v in n.outputs} >= set(names)
    assert loss(made, gq.parse(gq.to_text(made)), batches) < 1e-12


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("more", [{}, {"mode": "dynamic"}, "wide"], ids=str)
def test_weights_of_seven_bits_never_saturate(network, more):
    """All of them, also what wide weights leave over: two products with u8 are at most 2 * 255 * 64 < 2**15."""
    graph, batches = networks()[network]
    if more == "wide":
        names = [p.name for p in products(prepared(graph))]
        more = {"wide": names, "wide_weights": names}
    made = quantize(graph, None if "mode" in more else batches, Scheme(weight_bits=7, **more))
    weights = [n.output.data for n in made.nodes_of(["constant"]) if n.output.dtype == gq.dtypes.s8]
    assert weights and max(np.abs(w.astype(int)).max() for w in weights) == 64
    assert loss(made, graph, batches) < 0.02


def test_the_best_setting_with_weights_of_seven_bits():
    graph, batches = convolutional()
    made = automatic(graph, batches, Scheme(method="automatic", weight_bits=7))
    weights = [n.output.data for n in made.graph.nodes_of(["constant"]) if n.output.dtype == gq.dtypes.s8]
    assert max(np.abs(w.astype(int)).max() for w in weights) == 64
    assert all("7-bit weights" in str(s) for s in made.losses)
    assert abs(loss(made.graph, graph, batches) - made.losses[made.setting]) < 0.01


def test_activations_of_sixteen_bits():
    graph, batches = convolutional()
    all_wide = quantize(graph, batches, Scheme(activations="s16", method="min_max"))
    assert loss(all_wide, graph, batches) < 2e-4
    with pytest.raises(gq.GraphError, match="8-bit activations"):
        Scheme(activations="s16", wide=["point"])


def test_names_can_be_excluded():
    graph, batches = convolutional()
    made = quantize(graph, batches, Scheme(exclude=["depthwise"]))
    assert len(made.nodes_of(("quantize",))) == 3
    with pytest.raises(gq.GraphError, match="no matmul or convolution is named 'depth'; did you mean depthwise?"):
        quantize(graph, batches, Scheme(exclude=["depth"]))
    with pytest.raises(gq.GraphError, match="no matmul or convolution is named 'depth'"):
        quantize(graph, batches, Scheme(wide=["depth"]))


def test_a_tensor_of_two_products_is_quantized_once():
    graph, batches = attention()
    made = quantize(graph, batches, Scheme())
    assert len(made.nodes_of(("quantize",))) == 5 and len(made.nodes_of(("matmul",))) == 5


def test_the_graph_is_not_changed():
    graph, batches = convolutional()
    before = gq.to_text(graph)
    quantize(graph, batches)
    assert gq.to_text(graph) == before


def test_statistics_serve_several_schemes():
    graph, batches = convolutional()
    statistics = calibrate(graph, batches)
    assert gq.to_text(quantize(graph, statistics, Scheme())) == gq.to_text(quantize(graph, batches, Scheme()))


def test_statistics_of_another_graph():
    graph, batches = convolutional()
    with pytest.raises(gq.GraphError, match="no statistics of '.*', an operand of"):
        quantize(attention()[0], calibrate(graph, batches))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_automatic_setting(network):
    graph, batches = networks()[network]
    found = automatic(graph, batches[:-1], Scheme(method="automatic", weight_bits=8))  # as on CPUs with VNNI
    assert covered(found.graph, batches[0]) == 1 or found.setting.scheme.exclude
    plain = quantize(graph, batches[:-1], Scheme(method="min_max"))
    assert loss(found.graph, graph, batches) < max(2 * loss(plain, graph, batches), 1e-3)
    assert "*" in str(found) and found.graph.meta["quantization"]["setting"] == str(found.setting)


def test_channels_of_very_different_ranges():
    graph, batches = convolutional(spread=2.5)
    found = automatic(graph, batches)
    plain = quantize(graph, batches, Scheme(method="min_max"))
    assert loss(found.graph, graph, batches) < loss(plain, graph, batches) / 2


@pytest.mark.parametrize("make", [lambda b: b[:1], iter, tuple], ids=["one sample", "iterator", "tuple"])
def test_batches_of_any_kind(make):
    graph, batches = perceptron()
    assert loss(quantize(graph, make(batches)), graph, batches) < 0.02


@pytest.mark.parametrize("data, error, message", [
    ([], gq.InputError, "at least one batch"), (None, gq.GraphError, "needs batches or statistics"),
    (5, gq.InputError, "iterable of dicts"), ({"x": 1}, gq.InputError, "put it into a list"),
    ([{"x": np.full((2, 16), np.nan, np.float32)}], gq.InputError, "holds nan"),
    ([3], gq.InputError, "must be a dict")])
def test_wrong_data(data, error, message):
    with pytest.raises(error, match=message):
        quantize(perceptron()[0], data)


def test_wrong_schemes_and_graphs():
    with pytest.raises(gq.GraphError, match="scheme must be a Scheme"):
        quantize(perceptron()[0], perceptron()[1], "u8")
    with pytest.raises(gq.GraphError, match="expected a Graph"):
        quantize("model.onnx", [{}])
    with pytest.raises(gq.GraphError, match="'gptq' needs batches"):
        quantize(perceptron()[0], scheme=Scheme(mode="weight_only", rounding="gptq"))


def test_a_constant_tensor_and_a_graph_without_products():
    graph, _ = perceptron()
    made = quantize(graph, [{"x": np.zeros((3, 16), np.float32)}], Scheme())
    assert np.isfinite(gq.compile(made)(np.ones((2, 16), np.float32))).all()
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(4,))), name="y")
    assert not quantize(g, [{"x": np.zeros(4, np.float32)}]).nodes_of(("quantize",))


@pytest.mark.parametrize("network", NETWORKS)
def test_files_run_in_onnx_runtime_with_the_same_integers(network, tmp_path):
    """Outputs that are no integers differ by the order of f32 sums, which ONNX leaves open."""
    graph, batches = networks()[network]
    path = tmp_path / "q.onnx"
    made = quantize(graph, batches)
    integers = [n.output for n in made.nodes_of(("quantize",))]
    made.set_outputs([*made.outputs, *integers], [*made.output_names, *(f"q{k}" for k in range(len(integers)))])
    gq.save_onnx(made, path)
    onnx_runtime = session(path)
    mine, again = compiled(made), gq.compile(gq.load_onnx(path))
    for batch in batches:
        got, loaded = mine(batch), again(batch)
        for name, theirs in zip(got, onnx_runtime.run(None, batch), strict=True):
            np.testing.assert_array_equal(got[name], loaded[name])
            if name.startswith("q"):
                np.testing.assert_array_equal(got[name], theirs)
            else:
                np.testing.assert_allclose(got[name], theirs, rtol=1e-4, atol=1e-4)


def test_text_makes_the_round_trip():
    graph, batches = convolutional()
    made = quantize(graph, batches)
    again = gq.parse(gq.to_text(made))
    np.testing.assert_array_equal(gq.compile(again)(batches[0]), gq.compile(made)(batches[0]))


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("exclude", [(), ("logits",)])
def test_a_quantized_graph_is_refused(search, exclude):
    """Also if it has layers in f32: the loss would be against the int8 graph."""
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(exclude=exclude))
    with pytest.raises(gq.GraphError, match="^graph 'perceptron' is already quantized: 'hidden' multiplies integers"):
        quantize(made, batches, None if search else Scheme())


def test_dequantized_embeddings_and_integer_inputs_are_no_quantized_layers():
    """Nor is a tensor that is quantized for a memory of 8 bits."""
    g, rng = gq.Graph("tokens"), np.random.default_rng(0)
    x = g.dequantize(g.input("x", dtype="u8", shape=(6, 16)), scales=[0.02], zps=[128])
    table = g.dequantize(g.constant(rng.integers(-99, 99, (16, 8)).astype(np.int8)), scales=[0.01])
    y = g.relu(g.matmul(g.matmul(x, table), rng.standard_normal((8, 4)).astype(np.float32)))
    g.output(g.dequantize(g.quantize(y, dtype="u8", scales=[0.1], zps=[0]), scales=[0.1], zps=[0]), name="y")
    batches = [{"x": rng.integers(0, 255, (6, 16)).astype(np.uint8)} for _ in range(3)]
    made = quantize(g, batches, Scheme())
    assert len(made.nodes_of(["quantize"])) > 1
