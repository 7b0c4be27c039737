"""What a comparison says of numbers by hand: order, noise, its table and JSON; and distances of arrays."""
import json
from html import escape

import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.quantization import Scheme, automatic, compare, quantize
from graphq.quantization.compare import distance, floats
from graphq.quantization.comparison import SHOWN, Comparison, TensorDifference


def comparison(*costs, tried=0.1):
    rows = [TensorDifference(f"t{k}", "matmul", 30.0 + k, 0.9, 0.5, None if k else 0.25, cost)
            for k, cost in enumerate(costs)]
    return Comparison(rows, 0.125, gq.Graph(), tried)


def test_costs_up_to_the_noise_are_in_no_order():
    found = comparison(0.002, None, 0.03, -0.002, -0.01, 0.02, 0.01, None)
    assert found.noise == 0.01
    assert [t.name for t in found.tensors] == ["t2", "t5", "t0", "t1", "t3", "t4", "t6", "t7"]
    assert [found.known_cost(t) for t in found.tensors] == [0.03, 0.02, *[None] * 6]
    assert found.summary == "outputs: 1 - cosine 1.25e-01; costs up to 1.0e-02 are noise"
    exact = comparison(0.0, 0.001, 0.002)
    assert exact.noise == 0 and [t.name for t in exact.tensors] == ["t2", "t1", "t0"]
    assert exact.summary == "outputs: 1 - cosine 1.25e-01" and exact.known_cost(exact["t0"]) is None


def test_advice_is_a_call_that_can_be_pasted():
    found = comparison(0.05, 0.001, 0.02, -0.015, None)
    found["t2"].op = "add"
    call = found.advice.splitlines()[-1]
    assert call == ('quantize(graph, batches, Scheme(method="automatic", exclude=[\'t2\'], wide=[\'t0\'], '
                    'wide_weights=[\'t0\']))')
    assert eval(call, {"quantize": lambda *a: a[2], "Scheme": Scheme, "graph": 0, "batches": 0}).wide == ("t0",)
    assert "1 tensors exceed their ranges, 't0' in 25% of its elements" in found.advice
    assert json.loads(found.json())["advice"] == found.advice and str(found).endswith(call)
    assert comparison(0.005, -0.004).advice.endswith('quantize(graph, batches, Scheme(method="automatic"))')
    assert "the automatic setting was tried and loses 1.00e-01\n" in comparison(0.005, -0.004).advice
    assert "setting with 16 bits, or f32, for the layers that cost most was tried and loses 1.00e-01\n" in found.advice
    good = comparison(0.05)
    good.loss = 0.001
    assert good.advised == {} and len(comparison(*[0.05] * 9).advised["wide"]) == 9
    good.loss = 0.002
    assert good.advice == "outputs are close to f32 (1 - cosine at most 0.002): nothing to do"


def test_the_table_and_json():
    found = comparison(*[0.001] * (SHOWN + 2))
    lines = str(found).splitlines()
    assert lines[2 + SHOWN] == "... 2 more, as JSON" and lines[3 + SHOWN:] == found.advice.splitlines()
    assert lines[1].split() == ["cost", "SQNR", "dB", "cosine", "largest", "saturated", "tensor"]
    assert lines[2].split() == ["1.0e-03", "30.0", "0.900000", "0.5", "25.000%", "t0", "(matmul)"]
    assert len(str(comparison(*[0.001] * SHOWN)).splitlines()) == 2 + SHOWN + len(found.advice.splitlines())
    found["t3"].sqnr = np.inf
    rows = json.loads(found.json())
    assert rows["loss"] == 0.125 and rows["noise"] == 0 and rows["tensors"][3]["sqnr"] is None
    assert rows["tensors"][4] == {"name": "t4", "op": "matmul", "sqnr": 34.0, "cosine": 0.9, "largest": 0.5,
                                  "saturation": None, "cost": 0.001}
    with pytest.raises(KeyError, match="t99"):
        found["t99"]


@pytest.mark.parametrize("a, b, want", [
    ([1, 0], [1, 0], 0), ([1, 0], [0, 3], 1), ([1, 0], [-2, 0], 2), ([3, 4], [4, 3], 1 - 24 / 25), ([0, 0], [0, 0], 0),
    ([0, 0], [0, 1], 1), ([[1], [2]], [[2], [4]], 0), ([np.nan, 1], [np.nan, 2], 0), ([1, np.nan], [1, 1], 2),
    ([1, 1], [1, -np.inf], 2), ([-np.inf, 1, 0], [-np.inf, 0, 1], 1), ([np.inf, 1], [-np.inf, 1], 2)])
def test_distances(a, b, want):
    assert distance(np.float32(a), np.float32(b)) == pytest.approx(want, abs=1e-12)


def test_outputs_in_floating_point():
    x, k = np.float32([1]), np.int64([2])
    assert floats(x) == [x] and floats({"k": k, "x": x}) == [x] and floats({"k": k}) == [k]


def test_a_product_by_row_with_a_bias_has_no_16_bits_yet():
    """Its result is a sum, as that of a product of 16 bits is, but of a constant."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 4))
    g.output(g.add(g.add(x, np.ones(4, np.float32), name="by row"), g.add(x, x, name="of two"), name="y"))
    rows = [TensorDifference(name, "add", 20.0, 0.99, 0.1, None, 0.06) for name in ("by row", "of two")]
    assert "exclude=['of two'], wide=['by row'], wide_weights=['by row']" in Comparison(rows, 0.125, g, 0.1).advice


def test_advice_of_a_file_is_that_of_the_graph_it_was_written_from(tmp_path):
    """In a file the bias of 8 bits is dequantized and added."""
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(method="min_max", limits={"x": (-0.5, 0.5)}))
    gq.save_onnx(made, tmp_path / "made.onnx")
    found = compare(gq.load_onnx(tmp_path / "made.onnx"), graph, batches)
    assert found.advised == compare(made, graph, batches).advised == {"wide": ["hidden"], "wide_weights": ["hidden"]}


@pytest.mark.parametrize("tried, given", [(None, False), (0.1, True), (0.12, True), (0.125, False), (np.inf, False)])
def test_advice_that_was_not_tried_or_does_not_help_is_not_given(tried, given):
    found = comparison(0.06, tried=tried)
    assert found.advised and found.better == ("Scheme(" in found.advice) == given
    said = "no advice was tried, because" if tried is None else f"was tried and loses {tried:.2e}"
    assert said in found.advice


def test_advice_is_tried():
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(method="min_max", limits={"x": (-0.5, 0.5)}))
    found = compare(made, graph, batches)
    assert found.loss > 0.002 and found.tried < found.loss / 2 and f"loses {found.tried:.2e}" in found.advice
    again = automatic(graph, batches, Scheme(method="automatic", **found.advised))
    assert found.tried >= max(again.losses[again.setting], compare(again.graph, graph, batches, rank=False).loss)
    assert "Scheme(" not in compare(made, graph, batches, rank=False).advice


def test_a_notebook_shows_all_tensors_and_names_are_text():
    found = comparison(*[0.001] * (SHOWN + 2))
    found["t3"].name = "</table><script>alert(1)</script>"
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3 + SHOWN and "<script>" not in shown and "&lt;script&gt;" in shown
    assert escape(found.summary) in shown


def test_costs_that_may_be_noise_are_in_no_order():
    costs = {"a": 0.02, "b": None, "c": 0.4, "d": -0.03, "e": 0.03, "f": 0.05, "g": 0.039}
    found = Comparison([TensorDifference(name, "relu", 20.0, 0.99, 0.1, None, cost) for name, cost in costs.items()],
                       0.5, gq.Graph())
    assert found.noise == 0.03 and [t.name for t in found.tensors] == ["c", "f", "g", "a", "b", "d", "e"]
    assert json.loads(found.json())["noise"] == 0.03
    assert Comparison([], 0.5, gq.Graph()).summary == "outputs: 1 - cosine 5.00e-01"
