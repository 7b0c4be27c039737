"""What a comparison says of numbers by hand: order, noise, its table and JSON; and distances of arrays.

The page of `Comparison.report`: each tensor's numbers, colors by cost, names as text, nothing from a network.
"""
import json

import numpy as np
import pytest
from float_networks import convolutional, perceptron
from html_page import Page

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
    assert good.advised == {} and len(comparison(*[0.05] * 9).advised["wide"]) == 8
    good.loss = 0.002
    assert good.advice == "outputs are close to f32 (1 - cosine at most 0.002): nothing to do"


def test_the_table_and_json():
    found = comparison(*[0.001] * (SHOWN + 2))
    lines = str(found).splitlines()
    assert lines[2 + SHOWN] == "... 2 more, as JSON or on a page" and lines[3 + SHOWN:] == found.advice.splitlines()
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


@pytest.mark.parametrize("tried, given", [(None, False), (0.1, True), (0.12, False), (0.125, False), (np.inf, False)])
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


@pytest.fixture(scope="module")
def found():
    graph, batches = convolutional(spread=1.0)
    return compare(quantize(graph, batches, Scheme(method="min_max")), graph, batches)


def written(found, folder):
    found.report(folder / "a.html")
    return Page(folder / "a.html")


def rows(page):
    """The table's rows: the box of each, and its cells."""
    made = []
    for tag, attrs, text in page.elements:
        if tag == "tr":
            made.append((attrs.get("data-n"), []))
        elif tag in ("td", "th"):
            made[-1][1].append(text[0])
    return made


def test_every_tensor_has_its_numbers(found, tmp_path):
    page = written(found, tmp_path)
    (_, head), *body = rows(page)
    assert head == ["cost", "SQNR dB", "cosine", "largest", "saturated", "tensor"]
    assert [cells for _, cells in body] == [[*t.cells().values(), f"{t.name} ({t.op})"] for t in found.tensors]
    places = {v.name: f"n{k}" for k, n in enumerate(found.graph.nodes) for v in n.outputs}
    records = page.data["tensors"]
    for (id, _), t in zip(body, found.tensors, strict=True):
        record = dict(records[id]["r"])
        assert id == places[t.name] and records[id]["t"] == t.op
        numbers = {k: text for k, text in t.cells().items() if text}
        assert record == {"tensor": t.name, "type": record["type"], **numbers}
        assert float(record["SQNR dB"]) == pytest.approx(t.sqnr, abs=0.05)
    assert found.summary in [text for _, text in page.of("p")]


def test_the_chart_is_in_graph_order_and_bars_are_in_proportion(found, tmp_path):
    page = written(found, tmp_path)
    assert list(page.boxes("Graph order")) == sorted(page.boxes("Graph order"), key=lambda id: int(id[1:]))
    chart, tags = {}, [tag for tag, _, _ in page.elements]
    for tag, attrs, (text,) in page.elements[tags.index("section"):tags.index("table")]:
        if tag == "div":
            bars, texts = [], []
        elif tag == "i":
            bars.append(float(attrs["style"].removeprefix("--share:")))
        elif tag == "span":
            texts.append(text)
            chart[texts[0]] = bars, texts
    most, far = max(t.sqnr for t in found.tensors), max(1 - t.cosine for t in found.tensors)
    cost = found.tensors[0].cost
    assert chart[""][1] == ["", "SQNR dB", "1 - cosine", "cost"]
    for t in found.tensors:
        bars, texts = chart[t.name]
        shares = [t.sqnr / most, (1 - t.cosine) / far, (found.known_cost(t) or 0) / cost]
        assert bars == [pytest.approx(share, abs=1e-4) for share in shares]
        assert texts[1:3] == [f"{t.sqnr:.1f}", f"{1 - t.cosine:.1e}"]


def test_colors_are_by_cost(found, tmp_path):
    pytest.importorskip("pygraphviz")
    page = written(found, tmp_path)
    kinds = page.boxes("Graph")
    assert kinds.items() >= page.boxes("Graph order").items()
    assert set(kinds) == set(page.data["tensors"])  # every box has a record
    highest = found.tensors[0].cost
    for t in found.tensors:
        (id,) = (id for id, r in page.data["tensors"].items() if ["tensor", t.name] in r["r"])
        share = None if found.known_cost(t) is None else t.cost / highest
        assert kinds[id] == ["plain" if share is None else "most" if share >= 0.5 else
                             "much" if share >= 0.1 else "little"]
    assert ["most"] in kinds.values() and ["plain"] in kinds.values() and kinds["i0"] == ["io"]


def test_costs_that_may_be_noise_are_in_no_order_and_have_no_color(tmp_path):
    g = gq.Graph("net")
    x = g.input("x", dtype="f32", shape=(2, 2))
    costs = {"a": 0.02, "b": None, "c": 0.4, "d": -0.03, "e": 0.03, "f": 0.05, "g": 0.039}
    for name in costs:
        x = g.relu(x, name=name)
    g.output(x)
    found = Comparison([TensorDifference(name, "relu", 20.0, 0.99, 0.1, None, cost) for name, cost in costs.items()],
                       0.5, g)
    assert found.noise == 0.03 and [t.name for t in found.tensors] == ["c", "f", "g", "a", "b", "d", "e"]
    assert found.summary == "outputs: 1 - cosine 5.00e-01; costs up to 3.0e-02 are noise"
    assert json.loads(found.json())["noise"] == 0.03
    kinds = written(found, tmp_path).boxes("Graph order")
    assert list(kinds.values()) == [["plain"], ["plain"], ["most"], ["plain"], ["plain"], ["much"], ["little"]]
    assert list(kinds) == [f"n{k}" for k in range(7)]
    assert Comparison([], 0.5, g).summary == "outputs: 1 - cosine 5.00e-01"


def test_without_costs_without_graphviz_and_of_equal_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr("graphq.quantization.comparison.available", lambda: False)
    graph, batches = perceptron()
    found = compare(graph, graph, batches, rank=False)
    page = written(found, tmp_path)
    assert [text for a, text in page.of("button") if "data-view" in a] == ["Graph order", "By cost"]
    assert set(map(tuple, page.boxes("Graph order").values())) <= {("plain",)}
    assert {(cells[0], cells[1]) for _, cells in rows(page)[1:]} == {("", "inf")}


def test_the_page_has_all_in_it(found, tmp_path):
    written(found, tmp_path).check_self_contained()


HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'\"&lt;", "a\nb\x00c", "\ud800",
           "日本語" * 30, "${alert(1)}", "x" * 5000]


def named(name):
    """A network of two products whose tensors, inputs and outputs have that name, but for what makes them different."""
    g, rng = gq.Graph(name), np.random.default_rng(0)
    y = g.relu(g.matmul(g.input(name, dtype="f32", shape=(2, 4)), rng.standard_normal((4, 4)), name=name + " 1"),
               name=name + " 2")
    g.output(g.matmul(y, rng.standard_normal((4, 3)), name=name + " 3"), name=name + " out")
    batches = [{name: rng.standard_normal((2, 4)).astype(np.float32)}]
    return compare(quantize(g, batches, Scheme(method="min_max")), g, batches, rank=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name, tmp_path):
    found, plain = named(name), written(named("plain"), tmp_path)
    page = written(found, tmp_path)
    assert [(t, sorted(a)) for t, a, _ in page.elements] == [(t, sorted(a)) for t, a, _ in plain.elements]
    assert {"tensor", name + " 3"} in [set(row) for r in page.data["tensors"].values() for row in r["r"]]
    text = str(found)
    assert len(text.splitlines()) == 3 + len(found.tensors) and all(map(str.isprintable, text.splitlines()))
    shown = found._repr_html_()
    assert "<script>alert" not in shown and "<img src=x" not in shown and shown.count("<tr>") == 1 + len(found.tensors)


def test_errors(found, tmp_path):
    with pytest.raises(gq.GraphError, match="path"):
        found.report(3)
    with pytest.raises(OSError):
        found.report(tmp_path / "none" / "a.html")
