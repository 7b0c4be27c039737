"""States of LSTMs in integers: with the products of their inputs, and as DynamicQuantizeLSTM in files."""
import numpy as np
import onnx
import pytest
from onnx_runtime import results

import graphq as gq
from graphq.quantization import Scheme, calibrate, quantize
from graphq.quantization.products import left_in_floats, prepared
from graphq.quantization.scheme import Candidate
from graphq.quantization.search import Search

RNG = np.random.default_rng(3)


def weights(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def tagger(op="lstm", bias=True, lengths=False):
    """A layer and a product of its states."""
    g, gates = gq.Graph("tagger"), {"lstm": 4, "gru": 3}[op]
    x = g.input("x", dtype="f32", shape=(6, 1, 24))
    y = g.matmul(x, weights(gates * 20, 24), transpose_b=True, name="of_input")
    y = g.add(y, weights(gates * 20), name="biased") if bias else y
    more = [None, None, None, np.int32([6])] if lengths else []
    states = getattr(g, op)(y, weights(gates * 20, 20), *more)[0]
    g.output(g.matmul(states, weights(20, 8), name="tags"), name="y")
    return g, [{"x": RNG.standard_normal((6, 1, 24)).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("scheme", [Scheme(mode="dynamic"), Scheme(mode="dynamic", rows=True),
                                    Scheme(mode="dynamic", weight_bits=7, per_channel=False)], ids=str)
@pytest.mark.parametrize("options", [{}, {"bias": False, "lengths": True}], ids=str)
def test_states_are_quantized_with_their_inputs(scheme, options, tmp_path):
    graph, batches = tagger(**options)
    made = quantize(graph, scheme=scheme)
    (node,) = made.nodes_of(["lstm"])
    assert node.inputs[4].type.dims == ((80,) if scheme.per_channel else (1,))
    assert np.abs(node.inputs[1].data).max() == {7: 64, 8: 127}[scheme.weight_bits]
    model = gq.compile(made)
    assert model.coverage().share == 1 and not left_in_floats(made)
    gq.save_onnx(made, tmp_path / "made.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "made.onnx").graph.node].count("DynamicQuantizeLSTM") == 1
    again = gq.compile(gq.load_onnx(tmp_path / "made.onnx"))
    for batch in batches:
        got, want = model(batch), gq.compile(graph)(batch)
        assert (got * want).sum() / np.sqrt((got**2).sum() * (want**2).sum()) > 0.998
        np.testing.assert_array_equal(again(batch), got)
        np.testing.assert_allclose(results(tmp_path / "made.onnx", batch)[0], got, atol=2e-2 * np.abs(got).max())


def test_states_beside_static_ranges(tmp_path):
    graph, batches = tagger()
    statistics = calibrate(graph, batches)
    made, plain = quantize(graph, statistics, Scheme(states=True)), quantize(graph, statistics, Scheme())
    assert gq.compile(made).coverage().share == 1 and left_in_floats(plain) == {"lstm": 1}
    assert len(made.nodes_of(["quantize"])) == len(made.nodes_of(["dynamic_quantize"])) == 1
    gq.save_onnx(made, tmp_path / "made.onnx")
    again = gq.compile(gq.load_onnx(tmp_path / "made.onnx"))
    np.testing.assert_array_equal(again(batches[0]), gq.compile(made)(batches[0]))
    with pytest.raises(gq.GraphError, match="wide 'biased' selects only excluded layers"):
        quantize(graph, statistics, Scheme(states=True, exclude=["b*"], wide=["biased"]))
    for options in (dict(wide=["biased"]), dict(exclude=["biased"])):
        with pytest.raises(gq.GraphError, match=r"^scheme: states need an LSTM .* has none$"):
            quantize(graph, statistics, Scheme(states=True, **options))


def test_states_that_are_asked_for_keep_the_products_of_their_inputs_in_8_bits():
    graph, batches = tagger()
    work = Search(graph, batches, Scheme(states=True))
    setting = work.uniform(Candidate("min_max"))
    assert {name for name, _ in work.costs(setting)} == {"tags"}


def test_what_keeps_its_state_in_f32():
    graph, batches = tagger()
    for made in (quantize(graph, scheme=Scheme(mode="dynamic", exclude=["biased"])),
                 quantize(graph, batches, Scheme()), quantize(tagger("gru")[0], scheme=Scheme(mode="dynamic"))):
        assert sum(left_in_floats(made).values()) == 1
    assert left_in_floats(prepared(graph)) == {"lstm": 1}


def test_layers_that_have_no_integer_form():
    """Peepholes, gates that something else reads, weights that are no constants."""
    def graph(build):
        g = gq.Graph()
        y = g.matmul(g.input("x", dtype="f32", shape=(2, 1, 8)), weights(8, 32), name="gates")
        build(g, y)
        return quantize(g, scheme=Scheme(mode="dynamic"))

    builds = [lambda g, y: g.output(g.lstm(y, weights(32, 8), None, None, None, None, weights(24))[0], name="y"),
              lambda g, y: [g.output(v, name=n) for v, n in ((g.lstm(y, weights(32, 8))[0], "y"), (y, "z"))],
              lambda g, y: g.output(g.lstm(y, g.input("r", dtype="f32", shape=(32, 8)))[0], name="y")]
    for build in builds:
        (node,) = graph(build).nodes_of(["lstm"])
        assert node.inputs[4:5] in ((), (None,))


@pytest.mark.parametrize("build, by_rows", [
    (lambda g, x: g.matmul(x, weights(8, 4)), True), (lambda g, x: g.matmul(x, weights(4, 8), transpose_b=True), True),
    (lambda g, x: g.matmul(x, weights(6, 4), transpose_a=True), False),
    (lambda g, x: g.matmul(x, x, transpose_b=True), False),
    (lambda g, x: g.convolution(g.static_reshape(x, shape=[1, 6, 8]), weights(1, 8, 3), strides=[1], pads_begin=[0],
                                pads_end=[0], dilations=[1]), False),
    (lambda g, x: g.matmul(x, weights(8, 4) * np.float32(1e36)), False)],
    ids=["matmul", "transposed_b", "transposed_a", "activations", "convolution", "large"])
def test_which_layers_have_a_range_for_each_row(build, by_rows):
    """Rows lie along the last axis of activations, and f32 holds the sums of weights times integers."""
    g = gq.Graph()
    g.output(build(g, g.input("x", dtype="f32", shape=(6, 8))), name="y")
    made = quantize(g, scheme=Scheme(mode="dynamic", rows=True))
    assert (bool(made.nodes_of(["reduce_max"])), bool(made.nodes_of(["dynamic_range"]))) == (by_rows, not by_rows)
    assert made.outputs[0].node.op.name == ("multiply" if by_rows else prepared(g).outputs[0].node.op.name)
