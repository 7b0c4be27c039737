"""The page of `Comparison.report`: each tensor's numbers, colours by cost, names as text, nothing from a network."""
import json

import numpy as np
import pytest
from float_networks import convolutional, perceptron
from html_page import Page

import graphq as gq
from graphq.quantization import Comparison, Scheme, TensorDifference, compare, differences_page, quantize


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


def test_colours_are_by_cost(found, tmp_path):
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


def test_costs_that_may_be_noise_are_in_no_order_and_have_no_colour(tmp_path):
    g = gq.Graph("net")
    x = g.input("x", dtype="f32", shape=(2, 2))
    costs = {"a": 0.02, "b": None, "c": 0.4, "d": -0.03, "e": 0.03, "f": 0.05, "g": 0.039}
    for name in costs:
        x = g.relu(x, name=name)
    g.output(x)
    found = Comparison([TensorDifference(name, "relu", 20.0, 0.99, 0.1, None, cost) for name, cost in costs.items()],
                       0.5, g)
    assert found.noise == 0.03 and [t.name for t in found.tensors] == ["c", "f", "g", "a", "b", "d", "e"]
    assert found.summary == "outputs: 1 - cosine 5.00e-01; costs up to 3.0e-02 are noise, in no order"
    assert json.loads(found.json())["noise"] == 0.03
    kinds = written(found, tmp_path).boxes("Graph order")
    assert list(kinds.values()) == [["plain"], ["plain"], ["most"], ["plain"], ["plain"], ["much"], ["little"]]
    assert list(kinds) == [f"n{k}" for k in range(7)]
    assert Comparison([], 0.5, g).summary == "outputs: 1 - cosine 5.00e-01"


def test_without_costs_without_graphviz_and_of_equal_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr(differences_page, "available", lambda: False)
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
    assert len(text.splitlines()) == 3 + len(found.tensors) and text.isprintable() is False and text.isascii()
    shown = found._repr_html_()
    assert "<script>alert" not in shown and "<img src=x" not in shown and shown.count("<tr>") == 1 + len(found.tensors)


def test_errors(found, tmp_path):
    with pytest.raises(gq.GraphError, match="path"):
        found.report(3)
    with pytest.raises(OSError):
        found.report(tmp_path / "none" / "a.html")
