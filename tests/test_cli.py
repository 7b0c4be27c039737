import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphq as gq
from graphq.cli import COMMANDS, main, parser_of
from graphq.commands.shared import plain

GRAPH = """graph dense(x: u8[4,8]) {
  %0 = dequantize(x, scales=[0.5], zps=[3]) : f32[4,8]
  %y = relu(%0) : f32[4,8]
  return %y
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(GRAPH)
    return path


def run(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "graphq", *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **environment})


def error_line(capsys):
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("graphq: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_parses(name, capsys):
    _, example = COMMANDS[name]
    with pytest.raises(SystemExit) as done:
        main([name, "--help"])
    assert done.value.code == 0 and f"example:\n  graphq {name} {example}\n" in capsys.readouterr().out
    assert parser_of(name).parse_args([name, *example.split()]).run


def test_more_threads_than_cores_are_no_more_threads(file, capsys):
    assert main(["run", str(file), "--threads", "9999"]) == 0
    out, err = capsys.readouterr()
    used = re.search(r"(\d+ threads?)", out)[1]
    assert err == f"--threads 9999: {used}, at most one for each core\n"
    assert main(["run", str(file), "--threads", "1"]) == 0 and capsys.readouterr().err == ""


def test_show_prints_the_graph(file, capsys):
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out == GRAPH


def test_show_elides(tmp_path, capsys):
    g = gq.Graph()
    g.output(g.constant(np.arange(100, dtype=np.float32)), name="c")
    (tmp_path / "g.txt").write_text(gq.to_text(g))
    assert main(["show", "--elide", "3", str(tmp_path / "g.txt")]) == 0
    assert "... 97 more" in capsys.readouterr().out


def test_passes_prints_partitions(file, capsys):
    assert main(["passes", str(file)]) == 0
    out = capsys.readouterr().out
    assert 'anchor="eltwise"' in out
    gq.parse(out)


def test_passes_prints_near_misses(tmp_path, capsys):
    (tmp_path / "g.txt").write_text("""graph(x: u8[4,8], w: f32[8,2]) {
      %0 = dequantize(x, scales=[0.5])
      %1 = matmul(%0, w)
      return %1
    }""")
    assert main(["passes", str(tmp_path / "g.txt")]) == 0
    assert "# FuseMatmul: %1 = matmul(%0, w) : f32[4,2]: expected dequantize or dynamic_dequantize, found input w" \
        in capsys.readouterr().out


def test_explain(file, capsys):
    assert main(["explain", str(file), "--threads=1", "--isa=scalar"]) == 0
    out = capsys.readouterr().out
    assert "ISA level scalar, 1 thread" in out and "plan: 1 step\n" in out and "GB/s" not in out
    assert main(["explain", str(file), "--kernels", "--threads=1"]) == 0
    assert "GB/s" in capsys.readouterr().out
    for wrong in ("--isa=sse9", "--threads=0"):
        assert main(["explain", str(file), wrong]) == 2
        error_line(capsys)


@pytest.mark.parametrize("text, part", [
    ("graph(x: u8[4]) { %0 = rellu(x) return %0 }", "unknown op 'rellu'"),
    ("graph(x: f32[4]) {", "line 1, column 19"),
    ("graph(x: f32[4]) { %0 = relu(%1) %1 = relu(%0) return %0 }", "%1"),
    ("graph(x: f32[4]) { %0 = softmax(x, axis=7) return %0 }", "axis"),
])
@pytest.mark.parametrize("command", ["show", "passes", "explain", "run", "bench", "profile", "partitions"])
def test_wrong_graph_is_one_line_and_exit_code_2(tmp_path, capsys, command, text, part):
    (tmp_path / "g.txt").write_text(text)
    assert main([command, str(tmp_path / "g.txt")]) == 2
    assert part in error_line(capsys)


OF_MODELS = [name for name in COMMANDS if name != "cache"]
MORE = {"quantize": ["--mode=dynamic", "--out=out.txt"], "compare": ["g.txt", "--data=x.npz"], "diff": ["g.txt"],
        "reduce": ["--check=true"], "verify": ["--digests=digests.json"]}
"""What else a command cannot do without."""


@pytest.mark.parametrize("name, content, part", [
    ("none.txt", None, "none.txt: No such file"), ("none.onnx", None, "No such file"),
    ("none.json", None, "none.json: No such file"),
    ("binary.txt", b"\xff\xfe\x00", "binary.txt: not a graph's text form"),
    ("binary.onnx", b"\xff\xfe\x00", "not an ONNX model"), ("empty.txt", b"", "empty.txt: line 1, column 1"),
    ("binary.json", b"\xff\xfe\x00", "binary.json: "), ("text.json", b"graph(x: f32[4]) {", "text.json: "),
    ("text.onnx", b"graph(x: f32[4]) {", "not an ONNX model"), ("cut.json", b'{"version": ', "cut.json: "),
    ("binary.graphq", b"\xff\xfe\x00", "binary.graphq: "), ("folder", "", "irectory")])
@pytest.mark.parametrize("command", OF_MODELS)
def test_bad_files_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, command, name, content, part):
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    if content == "":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    assert main([command, name, *MORE.get(command, [])]) == 2
    assert part in error_line(capsys)


@pytest.mark.parametrize("arguments, part", [
    ([], "required: COMMAND"), (["frobnicate"], "invalid choice: 'frobnicate'"), (["cache"], "required: action"),
    (["cache", "remove"], "invalid choice: 'remove'"), (["show"], "required: MODEL"),
    (["show", "g.txt", "--elide=x"], "invalid int value: 'x'"), 
    (["show", "g.txt", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
    (["run", "g.txt", "--thread=2"], "did you mean --threads"),
    (["run", "g.json", "--frobnicate=1"], "unrecognized arguments: --frobnicate=1")])
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, part, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and part in err and err.startswith("graphq") and err.count("\n") == 1


def test_an_interruption_is_said(file, monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("graphq.commands.show.run", interrupted)
    assert main(["show", str(file)]) == 130
    assert capsys.readouterr().err == "graphq: interrupted\n"


def test_version_and_help_in_a_process():
    assert run("--version").stdout == f"graphq {gq.__version__}\n"
    text = run("--help").stdout
    assert all(f"\n    {name}" in text for name in COMMANDS) and "Exit codes: 0 success" in text


def test_the_page_of_the_command_line_has_all_commands_and_their_json():
    page = (Path(__file__).parents[1] / "docs" / "command_line.md").read_text()
    table, json_fields = page.split("## JSON")
    for name in COMMANDS:
        assert f"`{name}`" in table.split("## Exit codes")[0] and f"\n| `{name}" in json_fields


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0 and out.startswith(f"usage: graphq {name} ") and "--json" in out


def test_cache_info_and_clear(tmp_path):
    folder = tmp_path / "cache"
    code = """
import numpy as np, graphq as gq
g = gq.Graph()
g.output(g.relu(g.input("x", dtype="f32", shape=(5,))), name="y")
print(gq.compile(g, isa="scalar", threads=1)(x=np.full(5, -1, np.float32)).sum())
"""
    environment = {**os.environ, "GRAPHQ_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr

    def info():
        lines = run("cache", "info", GRAPHQ_CACHE_DIR=str(folder)).stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    before = info()
    assert before["folder:"] == str(folder) and int(before["modules:"]) > 0 and int(before["bytes:"]) > 0
    (folder / "mine.txt").write_text("not a kernel")
    cleared = run("cache", "clear", GRAPHQ_CACHE_DIR=str(folder))
    assert cleared.stdout == f"{before['modules:']} kernel modules and 0 models removed\n" and cleared.returncode == 0
    after = info()
    assert (after["modules:"], after["bytes:"]) == ("0", "0")
    assert (folder / "mine.txt").exists()


def test_reader_that_stops_early_is_no_error(file):
    command = f"{sys.executable} -m graphq show {file} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def printed(capsys, *arguments):
    """What a command prints as JSON."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json(file, capsys, monkeypatch, tmp_path):
    found = printed(capsys, "show", str(file))
    assert (found["name"], found["inputs"], found["outputs"]) == ("dense", {"x": "u8[4,8]"}, {"y": "f32[4,8]"})
    assert found["operations"] == {"dequantize": 1, "relu": 1} and gq.to_text(gq.parse(found["text"])) + "\n" == GRAPH
    found = printed(capsys, "passes", str(file))
    assert 'anchor="eltwise"' in found["graph"] and found["near_misses"] == []
    assert printed(capsys, "explain", str(file), "--threads=1")["schema"] == "graphq.explain/2"
    found = printed(capsys, "explain", str(file), "--threads=1", "--value=y")
    assert (found["schema"], found["value"]) == ("graphq.explain.value/1", "%y")
    (part,) = printed(capsys, "partitions", str(file))
    assert part["operations"] == [{"id": 0, "name": "dequantize"}, {"id": 1, "name": "relu"}]
    assert (part["id"], part["supported"], part["inputs"], part["outputs"]) == (0, True, ["x"], ["%y"])
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "cache"))
    assert printed(capsys, "cache", "info") == {"folder": str(tmp_path / "cache"), "modules": 0, "models": 0,
                                                  "bytes": 0}
    assert printed(capsys, "cache", "clear") == {"removed": 0, "models": 0}


def test_explain_of_one_value(file, capsys):
    assert main(["explain", str(file), "--threads=1", "--value=y"]) == 0
    assert "y" in capsys.readouterr().out
    assert main(["explain", str(file), "--threads=1", "--value=nothing"]) == 2
    assert "nothing" in error_line(capsys)


def test_numbers_that_json_cannot_say():
    assert plain({"a": np.float32(1.5), 1: (np.int64(2), float("inf"), [float("nan"), True, None])}) == {
        "a": 1.5, "1": [2, None, [None, True, None]]}


# -- oneDNN files -----------------------------------------------------------------------------------------------


def test_partitions_prints_a_line_each(onednn_file, capsys):
    assert main(["partitions", str(onednn_file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "partition 0 matmul: [0:matmul, 1:relu] in (t0, t1) out (%t3)",
        "partition 1 softmax: [2:softmax] in (%t3) out (%t9)",
    ]


def test_explain_takes_onednn_files(onednn_file, capsys):
    assert main(["explain", str(onednn_file)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("nothing in this model is quantized: graphq quantize") and second.startswith("graph ")
    onednn_file.write_text("{")
    assert main(["explain", str(onednn_file)]) == 2
    error_line(capsys)


def test_explain_takes_onnx_files(tmp_path, capsys):
    pytest.importorskip("onnx")
    gq.save_onnx(gq.parse(GRAPH), tmp_path / "g.onnx")
    assert main(["explain", str(tmp_path / "g.onnx"), "--threads=1"]) == 0
    assert "eltwise partition (dequantize, relu)" in capsys.readouterr().out
    (tmp_path / "g.onnx").write_bytes(b"strange")
    assert main(["explain", str(tmp_path / "g.onnx")]) == 2
    assert "not an ONNX model" in error_line(capsys)


def test_run_takes_onednn_files_as_any_model(onednn_file, capsys):
    assert main(["run", str(onednn_file), "--compare"]) == 0
    out = capsys.readouterr().out
    assert "input t0: f32[2,4], random\n" in out and "; against the reference: " in out


def test_partitions_and_run_in_a_process(onednn_file):
    assert run("partitions", onednn_file).stdout.count("partition ") == 2
    done = run("run", onednn_file)
    assert done.returncode == 0 and "input t0: f32[2,4], random\n" in done.stdout
