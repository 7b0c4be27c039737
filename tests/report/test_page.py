"""What a page shows beside a picture: of records by hand, each sentence and number.

The page of `CompiledGraph.report`: what it has, that models' text is text in it, and that it needs nothing else.
"""
import base64
import json
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from html_page import Page

import graphq as gq
from graphq.errors import how_to_install
from graphq.ir.outline import outline
from graphq.plan.plan import Allocation
from graphq.report import drawing, views
from graphq.report.coverage import Coverage
from graphq.report.drawing import lay_out
from graphq.report.page import HELP, SHOWN, overview
from graphq.report.profile import Piece, Profile, StepTime
from graphq.report.records import (
    Cause,
    GraphNode,
    Memory,
    ModelPart,
    Operation,
    PartitionRecord,
    Report,
)
from graphq.testing import random_inputs

OPERATION = Operation("add", "add", "%y = add(x, x)", ("x", "x"), (), {})
REPORT = Report("net", "avx2", 2, True, nodes=(
    GraphNode(0, "constant", OPERATION), GraphNode(1, "reference", OPERATION), GraphNode(2, "reference", OPERATION),
    GraphNode(3, "partition", OPERATION, PartitionRecord("matmul", "integer", (), {}, ()))))


def text(report, memory=None, profile=None, name=""):
    made = overview([ModelPart(name, None, None, report, memory)], profile)
    assert made.startswith(HELP)
    return made[len(HELP):]


def cause(number, id=None, edit="quantize", share=None, check="one user"):
    return Cause(id, "node", f"%v{number}", "add<", "FuseMatmul", check, None, None, f"reason {'x' * number} & more",
                 edit, share=share)


def test_where_it_runs():
    assert text(REPORT) == '<p class="note">ISA level avx2, 2 threads</p>'
    named = text(replace(REPORT, level="", sizes={"x.0": 4, "n<m": 8}), name="head <1>")
    assert named.startswith("<h2>head &lt;1&gt;</h2>")
    assert named.endswith("</h2><p>open sizes: x.0 = 4, n&lt;m = 8</p>")


def test_coverage():
    covered = Coverage({"matmul": 3 * 10**6}, {"matmul": 3 * 10**6, "conv<": 10**6}, ("lstm", "<gru>"))
    made = text(replace(REPORT, coverage=covered))
    assert "<h2>Multiply-accumulates in integers</h2><p>75.0% of 4.0 million</p><table>" in made
    assert re.findall(r"<tr>(.*?)</tr>", made) == [
        '<td>matmul</td><td class="n">3.0 million</td><td class="n">100%</td><td><span class="bar" style="width:90px">'
        '</span></td>',
        '<td>conv&lt;</td><td class="n">1.0 million</td><td class="n">0%</td><td><span class="bar" style="width:0px">'
        '</span></td>']
    assert made.endswith("</table><p>not counted: lstm, &lt;gru&gt;</p>")
    assert text(replace(REPORT, coverage=replace(covered, total_by_op={}))) == text(REPORT)


def test_memory():
    memory = Memory(2048, 4096, 1, 2, (Allocation(0, 0, 1024, 0, 1), Allocation(1, 0, 2048, 2, 3)))
    assert text(REPORT, memory).endswith(
        "<h2>Memory</h2><p>arena 2 KiB (without sharing 3 KiB), constants 4 KiB</p>")


def test_causes():
    made = text(replace(REPORT, causes=(cause(1, 3, share=0.25), cause(2, edit=""), cause(1, share=0.5))))
    assert "<h2>Outside of integer partitions: 2 causes</h2><dl>" in made and made.endswith("</dl>")
    assert re.findall(r"<dt>(.*?)</dd>", made) == [
        'add&lt; <a class="go" data-records="after0" data-to="n3">%v1</a> and 1 more like it, 75.0% of the time</dt>'
        '<dd>reason x &amp; more<p class="edit">quantize</p>', "add&lt; %v2</dt><dd>reason xx &amp; more"]
    with_cause = replace(REPORT, causes=(cause(1, 3),))
    assert 'data-records="after1"' in overview([ModelPart("", None, None, x) for x in (REPORT, with_cause)], None)


def test_many_causes():
    made = text(replace(REPORT, causes=tuple(cause(k) for k in range(SHOWN + 2))))
    assert f"{SHOWN + 2} causes</h2>" in made and made.count("<dt>") == SHOWN
    assert made.endswith("</dl><p>and 2 more: see the text</p>")
    assert text(replace(REPORT, causes=tuple(cause(k) for k in range(SHOWN)))).endswith("</dl>")


def test_times():
    steps = (StepTime(0, "matmul", 0.003, 0, pieces=(Piece(1, 0.0, 0.006),)), StepTime(1, "add", 0.001, 0))
    made = text(REPORT, profile=Profile(steps))
    assert made.startswith(
        "<h2>Time</h2><p>4 ms in 2 steps, by their medians over all runs; the timeline shows one run, of 6 ms from its "
        'first step to its last</p><table><tr><th class="n"></th><th class="n">share</th><th>kernel</th></tr>'
        '<tr><td class="n">3 ms</td><td class="n">75.0%</td><td>matmul</td></tr>'
        '<tr><td class="n">1 ms</td><td class="n">25.0%</td><td>add</td></tr></table><p')
    many = Profile(tuple(StepTime(k, f"k{k}", 0.01 * (k + 1), 0) for k in range(12)))
    made = text(REPORT, profile=many)
    assert re.findall(r"<td>(k\d+)</td>", made) == [f"k{k}" for k in range(11, 3, -1)] and "timeline" not in made


pytest.importorskip("pygraphviz")

TEXT = """graph net(x: u8[8,64], y: f32[8,16]) {
  %w = constant(value=s8[64,16]{VALUES}) : s8[64,16]
  %0 = dequantize(x, scales=[0.05], zps=[120])
  %1 = dequantize(%w, scales=[0.02])
  %2 = matmul(%0, %1)
  %q = quantize(%2, dtype=u8, scales=[0.1], zps=[128])
  %3 = dequantize(%q, scales=[0.1], zps=[128])
  %4 = add(%3, y)
  %5 = cum_sum(%4, axis=0)
  return %q, %5 as sums
}"""


def net():
    values = np.random.default_rng(1).integers(-127, 128, 1024)
    return gq.parse(TEXT.replace("VALUES", ", ".join(map(str, values))))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "out.html"
    g = net()
    model = gq.compile(g)
    model.report(path, random_inputs(g))
    return model, Page(path)


def rows(record):
    return {row[0]: row[1] for row in record["r"]}


def test_views_and_what_they_show(written):
    model, page = written
    assert [text for a, text in page.of("button") if "data-view" in a] == [
        "Partitions", "Operations", "As written", "Timeline", "Memory", "Text"]
    nodes = {f"n{k}": n for k, n in enumerate(model.graph.nodes) if n.op.name != "constant"}
    assert set(page.boxes("Partitions")) == {*nodes, "i0", "i1", "o0", "o1"}
    kinds = {node.op.name if node.op.name != "partition" else node.attrs["anchor"]: page.boxes("Partitions")[id]
             for id, node in nodes.items()}
    assert kinds["matmul"] == ["integer"] and kinds["eltwise"] == ["float"] and kinds["cum_sum"] == ["reference"]
    inner = {f"{id}n{k}" for id, n in nodes.items() if n.op.name == "partition"
             for k, _ in enumerate(n.attrs["body"].nodes)}
    assert set(page.boxes("Operations")) >= set(nodes) and len(inner & set(page.boxes("Operations"))) >= 5
    assert set(page.boxes("As written")) == {"i0", "i1", "n1", "n3", "n4", "n5", "n6", "n7", "o0", "o1"}
    assert page.boxes("As written")["n3"] == ["integer"] and page.boxes("As written")["n7"] == ["reference"]


def test_records_have_types_kernels_times_and_reasons(written):
    model, page = written
    after = page.data["after0"]
    (matmul,) = (r for r in after.values() if r["t"] == "matmul partition")
    found = rows(matmul)
    assert found["result"] == "%q : u8[8,16]" and "x : u8[8,64]" in found["operands"]
    assert found["runs as"] == "partition in integers" and found["operations"].endswith("matmul, quantize")
    assert "matmul" in found["kernel"] and " ms, " in found["time"] and found["MACs"] == "8,192"
    (reference,) = (r for r in after.values() if r["t"] == "cum_sum")
    assert rows(reference)["runs as"] == "NumPy reference" and "NumPy" not in rows(matmul)["kernel"]
    causes = model.explanation().causes
    assert causes and {rows(after[f"n{c.id}"])["why"] for c in causes if c.id is not None} <= {c.reason for c in causes}


def test_boxes_have_their_share_of_the_time(written):
    model, page = written
    shares = {id: r["s"] for id, r in page.data["after0"].items() if "s" in r}
    assert shares.keys() <= page.boxes("Partitions").keys() and sum(shares.values()) == pytest.approx(1, abs=1e-3)
    assert [a for a, text in page.of("button") if text == "color by time"] == [{"id": "heat", "hidden": None}]


def test_each_view_has_the_legend_of_its_colors(written):
    """Boxes are counted by their kinds. The script shows one legend: that of the view, or that of colors by time."""
    _, page = written
    names = [text for a, text in page.of("button") if "data-view" in a]
    keys = [k for k, (_, a, _) in enumerate(page.elements) if a.get("class") == "key"]
    assert len(keys) == len(names) + 1 and all("hidden" in page.elements[k][1] for k in keys)
    assert page.elements[keys[-1]][1]["id"] == "ramp"
    legends = {}
    for name, begin, end in zip(names, keys, keys[1:], strict=False):
        spans = [text for tag, _, (text,) in page.elements[begin:end] if tag == "span"]
        kinds = [a["class"] for tag, a, _ in page.elements[begin:end] if tag == "i"]
        legends[name] = dict(zip(kinds, spans, strict=True))
    assert legends["Partitions"] == {"integer": "partition in integers: 1", "float": "partition in floats: 1",
                                     "reference": "NumPy reference: 1"}
    assert all(legends[name] == legends["Partitions"] for name in names if name != "Text") and not legends["Text"]


def test_phones_show_pages_at_their_own_width(written):
    (viewport,) = (a["content"] for a, _ in written[1].of("meta") if a.get("name") == "viewport")
    assert viewport == "width=device-width, initial-scale=1"


def test_the_timeline_names_operations(written):
    _, page = written
    cells = [text for _, text in page.of("td")]
    assert {"%q = matmul partition", "%5 = cum_sum"} <= set(cells)


def test_colors_are_those_of_the_readers_scheme(written):
    _, page = written
    (style,) = (text for _, text in page.of("style"))
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for name in ("back", "text", "integer", "float", "reference", "hot"):
        assert f"--{name}: #" in light and f"--{name}: #" in dark


def test_links_lead_to_boxes(written):
    _, page = written
    shown = {"after0": {**page.boxes("Operations"), **page.boxes("Partitions")}, "before0": page.boxes("As written")}
    links = [(name, id) for records in page.data.values() for r in records.values() for name, id, _ in r.get("go", [])]
    weights = ("before0", "n2")  # the record of a dequantize of constants, which has no box
    assert len(links) > 10 and all(id in shown[name] for name, id in links if (name, id) != weights)
    source, after = page.data["before0"], page.data["after0"]
    (name, id, _), = source["n3"]["go"]
    assert name == "after0" and after[id]["t"] == "matmul partition"


def test_every_box_has_a_record(written):
    _, page = written
    for view, records in (("Partitions", "after0"), ("Operations", "after0"), ("As written", "before0"),
                          ("Memory", "after0")):
        assert page.boxes(view) and set(page.boxes(view)) <= set(page.data[records])


def test_memory_is_the_plan(written):
    model, page = written
    (part,) = model.parts()
    assert set(page.boxes("Memory")) == {f"s{s.buffer}" for s in part.memory.allocations}
    assert all(0 <= s.offset and s.offset + s.nbytes <= part.memory.arena for s in part.memory.allocations)
    assert all(0 <= s.first <= s.last < len(part.report.steps) for s in part.memory.allocations)
    for a in part.memory.allocations:
        for b in part.memory.allocations:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_the_page_has_all_in_it(written):
    written[1].check_self_contained()


HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'\"&lt;", "<!--", "]]>", "\\u003c",
           "a\nb\x00c", "\ud800", "日本語" * 30, "${alert(1)}", "x" * 5000]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_models_are_text(name, tmp_path):
    g = gq.Graph(name)
    x = g.input(name, dtype="f32", shape=[2, 3])
    g.output(g.cum_sum(g.relu(x), axis=0, name=name + " sum"), name=name + " out")
    model = gq.compile(g)
    model.report(tmp_path / "a.html")
    page, plain = Page(tmp_path / "a.html"), reference_page(tmp_path)
    assert [(t, sorted(a)) for t, a, _ in page.elements] == [(t, sorted(a)) for t, a, _ in plain.elements]
    assert page.of("h1")[0][1] == name.encode("utf-8", "replace").decode()
    label = page.data["before0"]["i0"]["r"][0][1].removesuffix(" : f32[2,3]")
    assert name == (json.loads(label) if label.startswith('"') else label)
    for shown in (g._repr_html_(), model._repr_html_()):
        assert "<script>alert" not in shown and "<img src=x" not in shown
        assert {x.tag.partition("}")[2] for x in picture(shown).iter()} == {"svg", "style", "g", "rect", "text", "path"}


def picture(shown):
    """The SVG that a notebook shows, parsed as XML."""
    return ElementTree.fromstring(base64.b64decode(shown.partition("base64,")[2].partition('"')[0]))


def reference_page(folder):
    """The page of the same graph with harmless names."""
    g = gq.Graph("g")
    g.output(g.cum_sum(g.relu(g.input("x", dtype="f32", shape=[2, 3])), axis=0, name="s"), name="o")
    gq.compile(g).report(folder / "plain.html")
    return Page(folder / "plain.html")


def test_without_graphviz_there_are_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "available", lambda: False)
    gq.compile(net()).report(tmp_path / "a.html")
    page = Page(tmp_path / "a.html")
    assert [text for a, text in page.of("button") if "data-view" in a] == ["Nodes", "Memory", "Text"]
    assert f"Pictures need Graphviz: {how_to_install('report')}" in [text for _, text in page.of("p")]
    assert any("matmul" in text for _, text in page.of("td"))


def test_layout_without_graphviz_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    assert not drawing.available()
    with pytest.raises(gq.GraphqError, match=r'pip install -e "\.\[report\]"'):
        lay_out(outline(net()), {})


def test_open_shapes(tmp_path):
    """Before the first call there is no plan, and so no memory and no time."""
    model = gq.compile(gq.parse("graph(n: f32[?,8]) {\n %4 = softmax(n)\n return %4 as s\n}"))
    model.report(tmp_path / "before.html")
    model.report(tmp_path / "after.html", np.ones((3, 8), np.float32))
    before, after = (Page(tmp_path / f"{name}.html") for name in ("before", "after"))
    assert "Timeline" in [text for _, text in after.of("button")]
    assert not {"Timeline", "Memory"} & {text for _, text in before.of("button")}
    assert [page.data["before0"]["n0"]["t"] for page in (before, after)] == ["softmax", "softmax"]


def test_bodies_run_in_stages(tmp_path):
    g = gq.parse("""graph(c: boolean[], x: f32[3]) {
      %0 = relu(x)
      %1 = if_else(c, %0, then_body=graph(a: f32[3]) {
        %r = sqrt(a)
        return %r
      }, else_body=graph(a: f32[3]) {
        %s = exp(a)
        return %s
      }) : f32[3]
      %2 = tanh(%1)
      return %2 as y
    }""")
    model = gq.compile(g)
    model.report(tmp_path / "a.html", np.asarray(True), np.ones(3, np.float32))
    page = Page(tmp_path / "a.html")
    names = [text for a, text in page.of("button") if "data-view" in a]
    assert {"head: Partitions", "between: Operations", "tail: Partitions", "then_body of n0: Partitions"} <= set(names)
    assert all(set(page.boxes(name)) for name in names if name.endswith(("Partitions", "Operations")))


def test_errors(tmp_path):
    model = gq.compile(net())
    with pytest.raises(gq.InputError):
        model.report(tmp_path / "a.html", np.zeros(3))
    with pytest.raises(gq.GraphError, match="path"):
        model.report(3)
    with pytest.raises(OSError):
        model.report(tmp_path / "none" / "a.html")


def test_notebooks(monkeypatch):
    g = net()
    model = gq.compile(g)
    for shown, text in ((g._repr_html_(), repr(g)), (model._repr_html_(), repr(model))):
        assert shown.count("<img") == 1 and len(picture(shown)) > 3
        assert text.replace("<", "&lt;").replace(">", "&gt;") in shown.replace("&#x27;", "'")
    monkeypatch.setattr("graphq.report.page.MOST", 3)
    assert "<img" not in g._repr_html_() and "dequantize(x, scales=[0.05]" in g._repr_html_()


def test_drawings_hold_their_boxes(written):
    """Boxes lie within the drawing, those of a partition within its box, and lines are short enough for theirs."""
    model, _ = written
    made = outline(model.graph)
    placed = lay_out(made, {b.id: (100, 30) for b in made.walk()})
    assert set(placed.places) == {b.id for b in made.walk()} and set(placed.edges) == set(made.edges)
    for box in made.walk():
        outer = placed.places[box.id]
        assert 0 <= outer.x and outer.x + outer.width <= placed.width + 1
        for b in box.inside:
            p = placed.places[b.id]
            assert outer.x <= p.x and p.x + p.width <= outer.x + outer.width
            assert outer.y <= p.y and p.y + p.height <= outer.y + outer.height
    for (source, target), points in placed.edges.items():
        a, b = placed.places[source], placed.places[target]
        assert a.y <= points[0][1] <= points[-1][1] <= b.y + b.height  # edges lead downwards
