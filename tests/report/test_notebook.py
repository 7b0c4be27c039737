"""What notebooks show: the repr of a result is its text, its HTML has tables, and texts of models stay text."""
import copy
import pickle
import re
from html import unescape

import numpy as np
import pytest

import graphq as gq
from graphq.quantization import compare, quantize
from graphq.report.notebook import ReportText, profile_html
from graphq.report.profile import Profile, StepTime

WEIGHTS = np.random.default_rng(0).integers(-127, 128, (64, 16), dtype=np.int8)


def attention(name="scores"):
    g = gq.Graph("net")
    q = g.dequantize(g.input("q", shape=(8, 64), dtype="u8"), scales=[0.02], zps=[128], name="qf")
    k = g.dequantize(g.constant(WEIGHTS), scales=[0.01])
    g.output(g.cum_sum(g.matmul(g.multiply(q, 0.125, name="scaled"), k, name=name), axis=0), name="y")
    return g


@pytest.fixture(scope="module")
def model():
    return gq.compile(attention(), threads=1)


def cells(html):
    return [unescape(x) for x in re.findall(r"<td[^>]*>(.*?)</td>", html)]


def test_explain_is_its_text_and_a_table(model):
    found = model.explain()
    assert isinstance(found, str) and repr(found) == str(found) and str(found).startswith("graph net: ")
    (cause,) = model.explanation().causes
    shown = cells(found._repr_html_())
    assert shown[:3] == [f"matmul {cause.value}", cause.reason, cause.edit] and any("cum_sum" in x for x in shown)
    assert found._repr_html_().count("<details><summary>") == 2  # the partitions, and the whole text
    one = model.explain("scores")
    assert repr(one) == str(one) and unescape(one._repr_html_()).endswith(f">{one}</pre>")
    for made in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert made == found and type(made) is str
    assert ReportText.of("a", lambda: "<b>a</b>")._repr_html_() == "<b>a</b>"


def test_explain_of_stages_has_each_part():
    g = gq.parse("""graph(c: boolean[], x: f32[3]) {
      %0 = relu(x)
      %1 = if_else(c, %0, then_body=graph(a: f32[3]) {
        %r = sqrt(a)
        return %r
      }, else_body=graph(a: f32[3]) {
        return a
      }) : f32[3]
      return %1 as y
    }""")
    model = gq.compile(g, threads=1)
    model(np.asarray(True), np.ones(3, np.float32))
    assert [name for name in re.findall(r"<p><b>(.*?)</b>", model.explain()._repr_html_())][0] == "head"


def test_profiles_are_their_text_and_a_table(model):
    found = model.profile(np.zeros((8, 64), np.uint8), runs=1)
    assert repr(found) == str(found)
    html = found._repr_html_()
    assert "%scores = matmul" in "".join(cells(html)) and html.count("<img") == 1
    assert "<img" not in profile_html(Profile((StepTime(0, "k", 0.001, 0),)))


def test_partitions_are_lines_and_a_table():
    found = attention().partitions()
    assert isinstance(found, list) and repr(found) == "\n".join(map(str, found)) and repr(found[0]) == str(found[0])
    shown = cells(found._repr_html_())
    assert len(shown) == 5 * len(found) and shown[:2] == ["0", "matmul"] and shown[3] == "q"


def test_comparisons_are_their_text():
    g = gq.Graph("dense")
    g.output(g.matmul(g.input("x", shape=(4, 64), dtype="f32"), WEIGHTS.astype(np.float32)), name="y")
    batches = [{"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}]
    found = compare(quantize(g, batches), g, batches)
    assert repr(found) == str(found) and "<table>" in found._repr_html_()


def test_graphs_show_counts_and_folded_text(monkeypatch):
    g = attention()
    shown = unescape(g._repr_html_())
    assert "2 dequantize, 1 multiply, 1 matmul, 1 cum_sum" in shown
    assert f"<details><summary>{len(str(g).splitlines())} lines of text</summary>" in shown and str(g) in shown
    monkeypatch.setattr("graphq.report.page.MOST", 1)
    assert "<details open>" in g._repr_html_()  # short, and there is no drawing
    monkeypatch.setattr("graphq.report.page.OPENED", 3)
    monkeypatch.setattr("graphq.report.page.LINES", 4)
    shown = g._repr_html_()
    assert "<details>" in shown and shown.count("\n") < 8 and f"... {len(str(g).splitlines()) - 4} more lines" in shown


def test_names_are_text():
    name = "</pre><script>alert(1)</script>"
    g = attention(name)
    model = gq.compile(g, threads=1)
    profile = model.profile(np.zeros((8, 64), np.uint8), runs=1)
    for shown in (g, model, model.explain(), model.explain(name), profile, g.partitions()):
        assert "<script>" not in shown._repr_html_()
