"""`graphq profile`: the table, JSON, and the file of the timeline, of models of every kind of file."""
import json

import pytest

import graphq as gq
from graphq.cli import main


@pytest.fixture(params=["txt", "onnx", "json"])
def model(request, tmp_path):
    g = gq.Graph("net")
    g.output(g.softmax(g.relu(g.input("t0", dtype="f32", shape=(4, 8))), axis=1), name="t1")
    path = tmp_path / f"net.{request.param}"
    if request.param == "txt":
        path.write_text(gq.to_text(g))
    else:
        if request.param == "onnx":
            pytest.importorskip("onnx")
        {"onnx": gq.save_onnx, "json": gq.save_onednn_json}[request.param](g, path)
    return str(path)


def test_the_table(model, capsys):
    assert main(["profile", model, "--runs=2", "--threads=1", "--isa=scalar"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("<compiled graph ") and second.endswith("; by kernel:")
    assert rest[-1].startswith("a run of ") and " on 1 thread, busy for " in rest[-1]


def test_json_and_the_timeline(model, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main(["profile", model, "--runs=2", "--threads=1", "--json", "--peaks", f"--trace={trace}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["threads"], found["runs"]) == (1, 2) and found["run_ms"] > 0
    assert [s["number"] for s in found["steps"]] == list(range(len(found["steps"])))
    assert all(0 < s["least_ms"] <= s["median_ms"] and s["share_of_peak"] > 0 for s in found["steps"])
    assert [p["blocks"] for s in found["steps"] for p in s["pieces"]] and found["steps"][0]["pieces"][0]["thread"] == 0
    assert sum(e["ph"] == "X" for e in json.loads(trace.read_text())["traceEvents"]) == len(found["steps"])


@pytest.mark.parametrize("arguments, part", [
    (["--runs=0"], "runs must be a positive int, got 0"), (["--trace=none/x.json"], "none/x.json: No such file"),
    (["--isa=sse9"], "sse9"), (["--threads=0"], "threads must be a positive int")])
def test_wrong_options_are_one_line(model, capsys, arguments, part):
    assert main(["profile", model, "--runs=1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and part in err and err.startswith("graphq: ") and err.count("\n") == 1
