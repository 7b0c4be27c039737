"""`graphq passes`: which passes run, what is printed, what is checked."""
import json

import numpy as np
import pytest
from level_graphs import numbers

import graphq as gq
from graphq.cli import main

GRAPH = """graph(x: u8[4,8], w: f32[8,3]) {
  %0 = dequantize(x, scales=[0.5], zps=[3]) : f32[4,8]
  %1 = relu(%0) : f32[4,8]
  %2 = relu(%1) : f32[4,8]
  %3 = matmul(%2, w) : f32[4,3]
  return %3
}"""

MINE = '''
from graphq.passes import Rewrite

class ReluAsAbs(Rewrite):
    """relu(x) -> abs(x), which is wrong"""

    def pattern(self, g, x):
        return g.relu(x)

    def replace(self, g, x):
        return g.abs(x)

number = 3
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "g.txt").write_text(GRAPH)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "g.txt"


def run(capsys, *arguments):
    code = main(["passes", *map(str, arguments)])
    return (code, *capsys.readouterr())


def test_the_passes_that_are_named_run(file, capsys):
    code, out, _ = run(capsys, file, "--passes", "DropRepeatedRelu")
    assert code == 0 and out.split("# ")[0].count("relu(") == 1 and "partition" not in out
    code, out, _ = run(capsys, file, "--passes=eliminate_dead_code, fold_constants")
    assert code == 0 and out.split("\n}")[0] + "\n}" == GRAPH
    code, out, _ = run(capsys, file, f"--passes=DropRepeatedRelu,{file.parent}/mine.py:ReluAsAbs")
    assert code == 0 and "abs(" in out and "relu(" not in out.split("# ")[0]
    code, out, _ = run(capsys, file)
    assert code == 0 and "partition" in out


@pytest.mark.parametrize("after,headings", [
    ("all", ["# after fold_constants: 0", "# after DropRepeatedRelu: 1"]), ("changed", ["# after DropRepeatedRelu: 1"]),
    ("fold_constants", ["# after fold_constants: 0"]),
    ("DropRepeatedRelu,fold_constants", ["# after fold_constants: 0", "# after DropRepeatedRelu: 1"]),
])
def test_graphs_are_printed_after_passes(file, capsys, after, headings):
    code, _, err = run(capsys, file, "--passes=fold_constants,DropRepeatedRelu", "--print-after", after)
    assert code == 0 and [line for line in err.splitlines() if line.startswith("#")] == headings
    gq.parse(err.split(headings[-1])[1])


def test_graphs_are_printed_after_passes_from_files(file, capsys):
    mine = f"{file.parent}/mine.py:ReluAsAbs"
    code, _, err = run(capsys, file, f"--passes=fold_constants,{mine}", "--print-after", mine)
    assert code == 0 and [line for line in err.splitlines() if line.startswith("#")] == ["# after ReluAsAbs: 2"]


def test_passes_inside_of_a_fixpoint_are_printed_too(file, capsys):
    code, _, err = run(capsys, file, "--print-after=changed")
    assert code == 0 and "# after DropRepeatedRelu: 1" in err and "# after FuseFloatMatmul: 1" in err


def test_numbers_are_verified(file, capsys):
    code, out, _ = run(capsys, file, "--verify=numeric")
    lines = out.splitlines()
    assert code == 0 and lines[0] == "graph graph(x: u8[4,8], w: f32[8,3])" and "matmul(" not in out
    assert sum("] 1/" in x and "eliminate_dead_code: no change" in x for x in lines) == 1
    assert any("DropRepeatedRelu: 1 change, numbers are right" in x for x in lines)
    assert lines[-2].startswith("[############]") and lines[-1].startswith("numbers are right after each of")
    wrong = f"{file.parent}/mine.py:ReluAsAbs"
    code, out, _ = run(capsys, file, "--passes", wrong, "--verify=numeric")
    assert "[############] 1/1 ReluAsAbs: WRONG" in out
    assert code == 1 and "pass ReluAsAbs changed the graph's numbers" in out and "def test_relu_as_abs" in out
    code, out, _ = run(capsys, file, "--passes", wrong, "--verify=numeric", "--json")
    fault = json.loads(out)["fault"]
    assert code == 1 and fault["pass"] == "ReluAsAbs" and f"ReluAsAbs = named_object({wrong!r})" in fault["test"]
    assert run(capsys, file, "--passes", wrong, "--verify=graph")[0] == 0


def test_json(file, capsys):
    code, out, _ = run(capsys, file, "--passes=DropRepeatedRelu", "--json")
    data = json.loads(out)
    assert code == 0 and data["changes"] == [{"pass": "DropRepeatedRelu", "count": 1}] and data["fault"] is None
    assert len(gq.parse(data["graph"]).nodes) == 3


def test_the_passes_are_listed(file, capsys):
    code, out, _ = run(capsys, file, "--list")
    assert code == 0 and out.splitlines()[0] == "eliminate_dead_code" and "  DropRepeatedRelu" in out.splitlines()


def test_ranges_by_row(tmp_path, capsys):
    """The three commands that do not compile their model work on the graph with a range for each row."""
    g = gq.Graph()
    x, w = g.input("x", shape=(8, 16), dtype="f32"), numbers((16, 4), "s8", 1)
    s, z = g.dynamic_range(x)
    x = g.dynamic_dequantize(g.dynamic_quantize(x, s, z, dtype="u8"), s, z)
    g.output(g.matmul(x, g.dequantize(g.constant(w), scales=[0.01]), name="y"))
    (tmp_path / "q.txt").write_text(gq.to_text(g))
    f = gq.Graph()
    f.output(f.matmul(f.input("x", shape=(8, 16), dtype="f32"), f.constant(w.astype(np.float32) / 100), name="y"))
    (tmp_path / "f.txt").write_text(gq.to_text(f))
    rows = np.float32([[1], [4], [16], [64], [256], [1024], [4096], [16384]])
    np.savez(tmp_path / "x.npz", x=numbers((8, 16), "s8", 2).astype(np.float32) * rows)
    found = {}
    for ranges in "tensor", "rows":
        def out(command, *more, ranges=ranges):
            assert main([command, str(tmp_path / "q.txt"), *more, "--json", f"--ranges={ranges}"]) == 0
            return json.loads(capsys.readouterr().out)

        found[ranges] = out("compare", str(tmp_path / "f.txt"), f"--data={tmp_path}/x.npz", "--no-rank")["loss"]
        assert ("dynamic_range" in [o["name"] for p in out("partitions") for o in p["operations"]]) == \
            (out("passes", "--list")[0] == "eliminate_dead_code") == ("dynamic_range" in out("passes")["graph"]) == \
            (ranges == "tensor")
    assert 0 < found["rows"] < found["tensor"]


@pytest.mark.parametrize("passes,message", [
    ("canonicalze", "no pass is named 'canonicalze'; did you mean canonicalize?"), ("no.such.module:f", "No module"),
    ("nix", "no pass is named 'nix'; there are eliminate_dead_code, "),
    ("mine.py:Nothing", "has no attribute 'Nothing'"), ("mine.py:number", "3 is not a pass"), ("none.py:f", "none.py"),
])
def test_wrong_passes_are_one_line(file, capsys, monkeypatch, passes, message):
    monkeypatch.chdir(file.parent)
    code, out, err = run(capsys, file, "--passes", passes)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    code, _, err = run(capsys, file, "--print-after=no_such_pass")
    assert code == 2 and "no pass is named 'no_such_pass'" in err


def test_no_passes(file, capsys):
    assert run(capsys, file, "--passes=,")[:2] == (0, GRAPH + "\n")


def test_passes_that_change_nothing_are_no_changes(file, capsys):
    code, out, _ = run(capsys, file, "--passes=fold_constants,DropRepeatedRelu", "--json")
    assert code == 0 and json.loads(out)["changes"] == [{"pass": "DropRepeatedRelu", "count": 1}]


def test_graphs_that_are_printed_are_cut_as_asked(tmp_path, capsys):
    (tmp_path / "g.txt").write_text("graph(x: f32[9]) {\n %c = constant(value=f32[9]{1,2,3,4,5,6,7,8,9})\n"
                                    " %0 = add(x, %c)\n return %0\n}")
    for elide, cut in ([], "... 3 more"), (["--elide=2"], "... 7 more"):
        assert cut in run(capsys, tmp_path / "g.txt", "--passes=fold_constants", "--print-after=all", *elide)[2]


def test_changes_and_graphs_that_were_checked_are_counted(tmp_path, capsys):
    """A pass that makes two changes is checked once, on each of the sizes of an open graph."""
    (tmp_path / "g.txt").write_text("""graph(x: f32[?], y: f32[3]) {
      %0 = relu(x)
      %1 = relu(%0)
      %2 = relu(y)
      %3 = relu(%2)
      return %1, %3
    }""")
    code, out, _ = run(capsys, tmp_path / "g.txt", "--passes=DropRepeatedRelu", "--verify=numeric")
    *lines, last = out.splitlines()
    graphs = sum(line.startswith("graph graph(x: ") for line in lines)
    told = "[############] 1/1 DropRepeatedRelu: 2 changes, numbers are right"
    assert code == 0 and graphs > 1 and lines.count(told) == graphs
    assert last == f"numbers are right after each of {graphs} changes of {graphs} graphs"
