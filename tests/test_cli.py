import os
import subprocess
import sys

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main

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
    assert "# FuseMatmul: %1 = matmul(%0, w) : f32[4,2]: expected dequantize, found input w" in capsys.readouterr().out


@pytest.mark.parametrize("text, part", [
    ("graph(x: u8[4]) { %0 = rellu(x) return %0 }", "unknown op 'rellu'"),
    ("graph(x: f32[4]) {", "line 1, column 19"),
    ("graph(x: f32[4]) { %0 = relu(%1) %1 = relu(%0) return %0 }", "%1"),
    ("graph(x: f32[4]) { %0 = softmax(x, axis=7) return %0 }", "axis"),
])
@pytest.mark.parametrize("command", ["show", "passes"])
def test_wrong_graph_is_one_line_and_exit_code_2(tmp_path, capsys, command, text, part):
    (tmp_path / "g.txt").write_text(text)
    assert main([command, str(tmp_path / "g.txt")]) == 2
    assert part in error_line(capsys)


def test_missing_file_and_binary_file(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none.txt")]) == 2
    assert "none.txt: No such file" in error_line(capsys)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert main(["show", str(tmp_path / "binary")]) == 2
    assert "decode" in error_line(capsys)
    assert main(["show", str(tmp_path)]) == 2
    assert "directory" in error_line(capsys)


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["cache"], ["cache", "remove"], ["show"]])
def test_wrong_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: graphq" in capsys.readouterr().err


def test_version_and_help_in_a_process():
    assert run("--version").stdout == f"graphq {gq.__version__}\n"
    assert "cache info | clear" in run("--help").stdout


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
    assert cleared.stdout == f"{before['modules:']} kernel modules removed\n" and cleared.returncode == 0
    after = info()
    assert (after["modules:"], after["bytes:"]) == ("0", "0")
    assert (folder / "mine.txt").exists()


def test_reader_that_stops_early_is_no_error(file):
    command = f"{sys.executable} -m graphq show {file} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
