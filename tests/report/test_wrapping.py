"""Lines of reports: their width, what stays whole, and open sizes, which no line shows as numbers."""
import json
import re

import numpy as np
import pytest

import graphq as gq
from graphq.report import explain
from graphq.report.explain import WIDEST, columns, wrapped


@pytest.mark.parametrize("given, expected", [("100", 100), ("60", 60), ("400", WIDEST), ("", 80), ("no", 80)])
def test_the_terminal_decides_up_to_a_limit(monkeypatch, given, expected):
    monkeypatch.setenv("COLUMNS", given)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert columns() == expected


def test_further_lines_are_indented_or_aligned_with_the_title():
    assert wrapped("  %y = add(%a, %b) of several\nshort", 20) == "  %y = add(%a, %b)\n      of several\nshort"
    assert wrapped("    edit: quantize it, or not", 20) == "    edit: quantize\n          it, or not"


def test_a_name_stays_whole_up_to_the_limit():
    name = '%"' + "a b/" * 20 + '"'
    assert wrapped(f"  x reads {name} in f32", 40).splitlines() == ["  x reads", f"      {name}", "      in f32"]
    lines = wrapped("  " + "x" * 300, 80).splitlines()
    assert max(map(len, lines)) == WIDEST and "".join(x.strip() for x in lines) == "x" * 300
    assert wrapped('  one " quote that is not closed, and more', 30).split() == \
        'one " quote that is not closed, and more'.split()


def test_reports_are_wrapped(monkeypatch):
    g = gq.Graph("scaled")
    q = g.dequantize(g.input("q_u8", shape=(16, 64), dtype="u8"), scales=[0.02], zps=[128], name="q")
    k = g.dequantize(g.input("k_s8", shape=(64, 32), dtype="s8"), scales=[0.015], name="k")
    g.output(g.matmul(g.multiply(q, 0.125, name="scaled"), k), name="scores")
    model = gq.compile(g, threads=1)
    for width in (60, 80, 100):
        monkeypatch.setattr(explain, "columns", lambda width=width: width)
        for text in (model.explain(full=True), model.explain("scores")):
            assert max(map(len, text.splitlines())) <= width
            assert re.search(r"^ +why:  multiply", text, re.M) and re.search(r"^ +edit: fold", text, re.M)


@pytest.mark.parametrize("operands, role", [
    ("q: f32[2,3,4], k: f32[2,4,5]", "second operand, k, is"), ("q: f32[3,4], k: f32[4,5]", "second operand, k, is"),
    ("q: f32[3,4], k: f32[4,5] constant", "weights, k, are"), ("q: u8[3,4], k: f32[4,5]", "weights, k, are")])
def test_an_operand_that_is_computed_is_not_called_weights(operands, role):
    q = "%d = dequantize(q, scales=[0.1])" if "u8" in operands else "%d = relu(q)"
    model = gq.compile(gq.parse(f"graph({operands}) {{\n {q}\n %y = matmul(%d, k)\n return %y\n}}"), threads=1)
    assert f"its {role} an input of the graph in f32" in model.explain("y")


def test_of_a_product_of_two_computed_values_one_is_the_second_operand():
    model = gq.compile(gq.parse("""graph(x: f32[3,4]) {
      %a = tanh(x)
      %b = static_transpose(%a, order=[1, 0])
      %y = matmul(%a, %b)
      return %y
    }"""), threads=1)
    text = model.explain("y")
    assert "its activations, %a, are f32" in text and "its second operand, %b, is f32" in text


OPEN = {
    "reshapes and a reference": """graph(x: u8[?,4,6]) {
      %w = constant(value=s8[6,3]{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9})
      %dw = dequantize(%w, scales=[0.1])
      %dx = dequantize(x, scales=[0.1])
      %f = static_reshape(%dx, shape=[-1, 6])
      %m = matmul(%f, %dw)
      %s = softmax(%m, axis=1)
      %r = static_reshape(%s, shape=[-1, 12])
      %y = sign(%r)
      return %y
    }""",
    "a refusal": """graph(x: u8[?,4,6]) {
      %dx = dequantize(x, scales=[0.1])
      %m = reduce_sum(%dx, axes=[0])
      %t = static_transpose(%dx, order=[1, 2, 0])
      %s = softmax(%t, axis=2)
      %q = quantize(%s, dtype=u8, scales=[0.1])
      %c = concat(%t, %t, axis=2)
      return %q, %m, %c
    }""",
    "an input marked constant": """graph(x: u8[?,4,6], w: s8[6,3] constant) {
      %dw = dequantize(w, scales=[0.1])
      %dx = dequantize(x, scales=[0.1])
      %f = static_reshape(%dx, shape=[-1, 6])
      %m = matmul(%f, %dw)
      return %m
    }"""}


@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN)
def test_open_sizes_are_never_numbers(text):
    model = gq.compile(gq.parse(text), threads=1)
    for batch in (2, 23, 211, 1):
        arrays = {"x": np.zeros((batch, 4, 6), np.uint8), "w": np.ones((6, 3), np.int8)}
        model({name: arrays[name] for name in model.inputs})
        data = model.explain(format="json")
        types = re.findall(r"\b[a-z]+\d+\[([^\]]*)\]", model.explain(full=True) + json.dumps(data))
        assert {d for t in types for d in t.split(",")} <= {"x.0", "?", "1", "3", "4", "6", "12"}
        tensors = [t for n in data["nodes"] for t in n["operation"]["outputs"]] + data["inputs"]
        assert {d for t in tensors for d in t["shape"]} <= {None, 1, 3, 4, 6, 12}
        assert data["inputs"][0] == {"label": "x", "type": "u8[x.0,4,6]", "dtype": "u8", "shape": [None, 4, 6],
                                     "nbytes": None}
        macs = [n["macs"] for n in data["nodes"] if n["macs"]]
        assert data["sizes"] == {"x.0": batch} and set(macs) <= {batch * 4 * 6 * 3}


def test_the_partitions_of_onednn_graph_are_named(tmp_path):
    """A pattern may span several partitions of graphq."""
    model = gq.compile(gq.parse("""graph(q: f32[1,4,8], k: f32[1,8,4], v: f32[1,4,8]) {
      %s = matmul(q, k)
      %p = softmax(%s, axis=2)
      %y = matmul(%p, v)
      %z = cum_sum(%y, axis=1)
      %r = relu(q)
      return %z, %r
    }"""), threads=1)
    data = model.explain(format="json")
    assert data["patterns"] == [{"anchor": "attention", "values": ["%s", "%p", "%y"]},
                                {"anchor": "cum_sum", "values": ["%z"]}, {"anchor": "eltwise", "values": ["%r"]}]
    assert [p.anchor for p in model.source.partitions()] == ["attention", "cum_sum", "eltwise"]
    lines = model.explain(full=True).splitlines()
    at = lines.index("oneDNN Graph would make 3 partitions (graph.partitions()):")
    assert lines[at + 1:] == ["  attention: %s, %p, %y", "  cum_sum: %z", "  without an anchor: 1"]
    assert "oneDNN Graph" not in model.explain()
    model.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\n".join(lines[at:]) in text[text.rindex("<pre>"):]
