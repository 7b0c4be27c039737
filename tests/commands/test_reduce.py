"""`graphq reduce`: a command or a pass says what is interesting."""
import json
import sys
import tempfile

import pytest

import graphq as gq
from graphq.cli import main

GRAPH = """graph(x: f32[4,8], w: f32[8,3]) {
  %0 = relu(x) : f32[4,8]
  %1 = matmul(%0, w) : f32[4,3]
  %2 = tanh(%1) : f32[4,3]
  return %2
}"""
TANH = "graph(x0: f32[1,1]) {\n  %0 = tanh(x0) : f32[1,1]\n  return %0\n}"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "g.txt").write_text(GRAPH)
    return tmp_path / "g.txt"


def run(capsys, *arguments):
    code = main(["reduce", *map(str, arguments)])
    return (code, *capsys.readouterr())


@pytest.mark.parametrize("check", ["grep -q tanh", "grep -q tanh {} && test -f {}"])
def test_a_command_checks(file, capsys, check):
    assert run(capsys, file, "--check", check)[:2] == (0, TANH + "\n")


def test_a_script_checks_and_the_result_is_written(file, capsys):
    script = file.parent / "check.py"
    script.write_text("import sys\nsys.exit(0 if 'matmul' in open(sys.argv[1]).read() else 3)\n")
    out = file.parent / "least.txt"
    code, text, _ = run(capsys, file, "--check", f"{sys.executable} {script}", "--out", out)
    assert code == 0 and [n.op.name for n in gq.parse(out.read_text()).nodes] == ["matmul"]
    assert "1 nodes after" in text


def test_files_of_other_kinds(file, capsys):
    pytest.importorskip("onnx")
    model, least = file.parent / "g.onnx", file.parent / "least.onnx"
    gq.save_onnx(gq.parse(GRAPH), model)
    code, _, _ = run(capsys, model, "--check", "grep -q Tanh", "--same-kind", "--out", least)
    assert code == 0 and [n.op.name for n in gq.load_onnx(least).nodes] == ["tanh"]
    gq.save_onednn_json(gq.parse(GRAPH), file.parent / "g.json")
    code, out, _ = run(capsys, file.parent / "g.json", "--check", "grep -q tanh", "--json")
    assert code == 0 and json.loads(out)["nodes"] == 1


def test_a_pass_checks(file, capsys):
    (file.parent / "mine.py").write_text("def drop_tanh(g):\n    for n in g.nodes_of(['tanh']):\n"
                                         "        g.replace_uses(n.output, n.inputs[0])\n    return g.prune()\n")
    code, out, _ = run(capsys, file, "--pass", f"{file.parent}/mine.py:drop_tanh")
    assert code == 0 and "def test_drop_tanh_keeps_numbers" in out and "tanh(x0)" in out


def test_what_is_not_interesting_is_said(file, capsys):
    for check in (("--check", "false"), ("--pass", "canonicalize")):
        code, out, err = run(capsys, file, *check)
        assert code == 1 and out == "" and "itself does not fail" in err
    assert run(capsys, file, "--check", "true", "--trials=-1")[0] == 2


@pytest.mark.parametrize("after", ["", "    g.relu(g.inputs[0])\n"])
def test_a_pass_that_raises_is_told(file, capsys, after):
    (file.parent / "mine.py").write_text(f"def broken(g):\n{after}    raise ValueError('no axis')\n")
    code, out, err = run(capsys, file, "--pass", f"{file.parent}/mine.py:broken")
    assert code == 1 and out == ""
    assert err == f"graphq: {file} itself does not fail: the pass raises ValueError: no axis\n"


def test_trials_are_bounded(file, capsys):
    code, out, _ = run(capsys, file, "--check", "grep -q tanh", "--trials=0")
    assert code == 0 and out == GRAPH + "\n"


def test_folders_with_spaces(file, capsys, monkeypatch):
    (file.parent / "a b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(file.parent / "a b"))
    assert run(capsys, file, "--check", "grep -q tanh")[:2] == (0, TANH + "\n")


def test_a_pass_that_is_wrong_at_some_sizes_only(file, capsys):
    file.write_text(GRAPH.replace("[4,8]", "[?,8]").replace("[4,3]", "[?,3]"))
    (file.parent / "mine.py").write_text(
        "def drop_tanh(g):\n    for n in g.nodes_of(['tanh']):\n        if n.output.type.known:\n"
        "            g.replace_uses(n.output, n.inputs[0])\n    return g.prune()\n")
    code, out, _ = run(capsys, file, "--pass", f"{file.parent}/mine.py:drop_tanh")
    assert code == 0 and "tanh(x0)" in out
