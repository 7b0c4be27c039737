"""Commands that print what is known of a model: show, partitions, explain, report, cache; as text and as JSON."""
import json

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main

TEXT = """graph net(x: f32[2,3], w: f32[3,4]) {
  %0 = matmul(x, w) : f32[2,4]
  %1 = relu(%0) : f32[2,4]
  %2 = relu(%1) : f32[2,4]
  return %2 as y
}"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.txt").write_text(TEXT)
    return tmp_path / "net.txt"


def run(capsys, *arguments):
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def test_show(file, capsys):
    text = gq.to_text(gq.parse(TEXT))
    assert run(capsys, "show", file) == f"{text}\n"
    assert json.loads(run(capsys, "show", file, "--json")) == {
        "name": "net", "inputs": {"x": "f32[2,3]", "w": "f32[3,4]"}, "outputs": {"y": "f32[2,4]"},
        "operations": {"matmul": 1, "relu": 2}, "text": text}


def test_show_cuts_arrays(tmp_path, capsys):
    g = gq.Graph("long")
    g.output(g.add(g.input("x", dtype="f32", shape=(9,)), g.constant(np.arange(9, dtype=np.float32))), name="y")
    (tmp_path / "long.txt").write_text(gq.to_text(g))
    assert run(capsys, "show", tmp_path / "long.txt", "--elide", "2") == f"{gq.to_text(g, elide=2)}\n" != \
        run(capsys, "show", tmp_path / "long.txt")


def test_partitions(file, capsys):
    found = json.loads(run(capsys, "partitions", file, "--json"))
    parts = gq.parse(TEXT).partitions()
    assert run(capsys, "partitions", file) == "\n".join(map(str, parts)) + "\n"
    assert [(p["id"], p["anchor"], p["supported"]) for p in found] == [(p.id, p.anchor, p.supported) for p in parts]
    assert [[o["name"] for o in p["operations"]] for p in found] == [["matmul", "relu", "relu"]]
    assert [o["id"] for o in found[0]["operations"]] == list(parts[0].op_ids)
    assert found[0]["inputs"] == ["x", "w"] and found[0]["outputs"] == [parts[0].outputs[0].graph.label(
        parts[0].outputs[0])]


def test_explain(file, capsys):
    text = run(capsys, "explain", file, "--threads", "1")
    assert text.startswith("nothing in this model is quantized") and "graph net: " in text and "1 thread\n" in text
    data = json.loads(run(capsys, "explain", file, "--json"))
    assert data["graph"] == "net" and data["schema"].startswith("graphq.explain/")
    of_value = json.loads(run(capsys, "explain", file, "--json", "--value", "y"))
    assert of_value["schema"].startswith("graphq.explain.value/")
    assert "%2 = relu(" in run(capsys, "explain", file, "--value", "y")
    assert "ISA level scalar" in run(capsys, "explain", file, "--isa", "scalar")
    assert "% of the time: " in run(capsys, "explain", file, "--profile") and "% of the time: " not in text
    assert main(["explain", str(file), "--value", "nothing"]) == 2


def test_report(file, tmp_path, capsys):
    said = run(capsys, "report", file)
    page = file.with_suffix(".html")
    assert said == f"{page}: {page.stat().st_size} bytes\n" and "net.txt" in page.read_text("utf-8")
    data = json.loads(run(capsys, "report", file, "-o", tmp_path / "other.html", "--profile", "--json"))
    assert data == {"page": str(tmp_path / "other.html"), "bytes": (tmp_path / "other.html").stat().st_size}
    assert "median ms" in (tmp_path / "other.html").read_text("utf-8") and "median ms" not in page.read_text("utf-8")
