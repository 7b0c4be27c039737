"""`graphq bench`: rows for thread counts, ISA levels and peers; what is refused. Nothing is said of times."""
import json

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands import bench, peers
from graphq.commands.arrays import realistic
from graphq.commands.peers import alternate, cosine, difference
from graphq.commands.shared import comma_separated
from graphq.errors import how_to_install

TEXT = """graph dense(x: u8[?,8]) {
  %0 = dequantize(x, scales=[0.5], zps=[3]) : f32[?,8]
  %y = relu(%0) : f32[?,8]
  return %y
}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("graphq.commands.peers.PAUSE", 0)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "g.txt").write_text(TEXT)
    return str(tmp_path / "g.txt")


def test_rows_of_threads_and_levels(model, capsys):
    assert main(["bench", model, "--threads=1,2", "--isa=scalar,scalar", "--seconds=0.001", "--shape=x=3x8"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "dense, x=3x8"
    assert [line.split()[:2] for line in lines] == [["1", "thread"], *[["graphq", "scalar"]] * 2,
                                                    ["2", "threads"], *[["graphq", "scalar"]] * 2]
    assert lines[0].split()[-3:] == ["speedup", "over", "differs"]
    assert lines[1].split()[4:] == lines[4].split()[4:] == ["1.00", "(1.00)", "0"]  # the first of each thread count


def test_json(model, capsys):
    assert main(["bench", model, "--threads=2", "--isa=scalar", "--seconds=0.001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert found["graph"] == "dense" and found["inputs"] == {"x": [1, 8]} and found["equal"] is True
    assert (row["name"], row["threads"], row["speedup"], row["difference"]) == ("graphq scalar", 2, 1, 0)
    assert 0 < row["least_ms"] <= row["median_ms"] and row["runs"] >= 8
    assert row["cosine"] is None


def rows(capsys, *arguments):
    assert main(["bench", *arguments, "--seconds=0.001", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_rows_of_precisions(tmp_path, capsys):
    """Only results of one precision have to be equal."""
    graph = gq.Graph("float")
    graph.output(graph.matmul(graph.input("x", dtype="f32", shape=(4, 64)), np.linspace(-1, 1, 512, dtype=np.float32)
                              .reshape(64, 8)), name="y")
    (tmp_path / "f.txt").write_text(gq.to_text(graph))
    found = rows(capsys, str(tmp_path / "f.txt"), "--threads=1", "--isa=scalar", "--precision=f32,bf16")
    assert [row["name"] for row in found] == ["graphq scalar", "graphq scalar, bf16"]
    assert found[0]["difference"] == 0 < found[1]["difference"] < 0.1


def test_rows_are_in_the_order_of_the_thread_counts(model, capsys, monkeypatch):
    monkeypatch.setattr(bench, "model_file", lambda name, path, arrays, threads: lambda feeds: [np.zeros((1, 8))])
    monkeypatch.setattr(bench, "as_written", lambda path, graph, arrays: ([np.zeros((1, 8))], "nothing"))
    pytest.importorskip("onnx")
    found = rows(capsys, model, "--threads=2,1,2", "--isa=scalar", "--peer=ort")
    assert [(row["name"], row["threads"]) for row in found] == [
        ("graphq scalar", 2), ("ONNX Runtime", 2), ("graphq scalar", 1), ("ONNX Runtime", 1)]
    monkeypatch.setattr(bench, "process_cores", lambda: {0})
    assert [row["threads"] for row in rows(capsys, model, "--isa=scalar")] == [1]


def test_peers_run_the_file_itself(tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnx")
    graph = gq.Graph("float")
    graph.output(graph.relu(graph.input("x", dtype="f32", shape=(2, 8))), name="y")
    gq.save_onnx(graph, tmp_path / "m.onnx")
    asked = []
    monkeypatch.setattr(bench, "model_file", lambda name, path, arrays, threads: asked.append(path) or (
        lambda feeds: [np.zeros((2, 8))]))
    rows(capsys, str(tmp_path / "m.onnx"), "--threads=1", "--peer=ort")
    assert asked == [str(tmp_path / "m.onnx")]


def test_what_is_said_of_inputs_and_the_seconds_of_all_rows(model, tmp_path, capsys, monkeypatch):
    seconds = []
    monkeypatch.setattr(bench, "alternate", lambda calls, total: seconds.append(total) or [[1.0] for _ in calls])
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.uint8))
    for arguments, source in ([], "random inputs"), (["--shape=x=3x8"], "random inputs"), (
            [f"--input=x={tmp_path}/x.npy"], "given inputs"):
        assert main(["bench", model, "--threads=1", "--isa=scalar,scalar", "--seconds=2", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["source"] == source
    assert seconds == [4.0] * 3


@pytest.mark.parametrize("kind", ["txt", "onnx", "json"])
def test_a_peer_runs_files_of_all_kinds(model, tmp_path, capsys, kind):
    pytest.importorskip("onnxruntime")
    graph = gq.Graph("float")
    graph.output(graph.relu(graph.input("t0", dtype="f32", shape=(2, 8))), name="t1")
    path = tmp_path / f"m.{kind}"
    if kind == "txt":
        path.write_text(gq.to_text(graph))
    else:
        {"onnx": gq.save_onnx, "json": gq.save_onednn_json}[kind](graph, path)
    assert main(["bench", str(path), "--threads=1", "--peer=ort", "--seconds=0.001", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows][1:] == ["ONNX Runtime"] and rows[1]["difference"] == 0
    assert [row["cosine"] for row in rows] == [1, 1]


def test_results_of_levels_that_differ_are_exit_code_1(model, capsys, monkeypatch):
    monkeypatch.setattr(bench, "same_results", lambda left, right: False)
    assert main(["bench", model, "--threads=1,2", "--isa=scalar", "--seconds=0.001"]) == 1
    assert capsys.readouterr().out.endswith("graphq's own results differ\n")


@pytest.mark.parametrize("wrong", [1, 2])
def test_any_result_that_differs_is_exit_code_1(model, monkeypatch, wrong):
    """Not only the last one."""
    calls = []
    monkeypatch.setattr(bench, "same_results", lambda left, right: calls.append(right) or len(calls) != wrong)
    assert main(["bench", model, "--threads=1", "--isa=scalar,scalar,scalar", "--seconds=0.001"]) == 1


def test_peers_may_differ(model, capsys, monkeypatch):
    """Only graphq's own results have to be equal."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(bench, "same_results", lambda left, right: False)
    assert main(["bench", model, "--threads=1", "--isa=scalar", "--peer=ort", "--seconds=0.001"]) == 0
    assert "own results differ" not in capsys.readouterr().out


@pytest.mark.parametrize("text, names", [("a,b", ["a", "b"]), (" a , b,", ["a", "b"]), (",,a", ["a"]), (" , ", []),
                                         ("", [])])
def test_lists_of_names(text, names):
    assert comma_separated(text) == names


@pytest.mark.parametrize("arguments, part", [
    (["--threads=0"], "--threads takes thread counts such as 1,2, got 0"), (["--threads=1,x"], "got 1,x"),
    (["--isa=sse9"], "sse9"), (["--peer=tvm"], "--peer: there is no engine 'tvm'; there are ort, ort_exact, openvino"),
    (["--seconds=nan"], "--seconds must be in [0, 3600], got nan"),
    (["--seconds=3601"], "--seconds must be in [0, 3600], got 3601"), (["--threads=65536"], "got 65536"),
    (["--shape=z=3"], "the model has no input 'z'")])
def test_wrong_options_are_one_line(model, capsys, arguments, part):
    assert main(["bench", model, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and part in err and err.startswith("graphq: ") and err.count("\n") == 1


def test_a_peer_that_is_missing_or_refuses_is_one_line(model, tmp_path, capsys, monkeypatch):
    graph = gq.Graph("sorted")
    graph.output(graph.relu(graph.input("x", dtype="f32", shape=(2, 8))), name="y")
    monkeypatch.setattr(peers, "PACKAGES", {"ONNX Runtime": "no_such_package"})
    assert main(["bench", model, "--threads=1", "--peer=ort"]) == 2
    assert f"ONNX Runtime: it needs no_such_package ({how_to_install('bench')})" in capsys.readouterr().err
    monkeypatch.setattr(peers, "PACKAGES", {"ONNX Runtime": "numpy"})

    def refuses(*_, **__):
        raise ValueError("no such\noperator")

    monkeypatch.setattr(peers, "by_onnxruntime", refuses)
    pytest.importorskip("onnx")
    assert main(["bench", model, "--threads=1", "--peer=ort"]) == 2
    assert "ONNX Runtime refuses" in (err := capsys.readouterr().err) and err.count("\n") == 1


def test_cosines_are_those_to_what_the_graph_means(model, capsys, monkeypatch):
    """A peer that is wrong in one of two outputs is told apart."""
    graph = gq.Graph("two")
    x = graph.input("x", dtype="f32", shape=(1, 8))
    graph.output(graph.relu(x), name="y")
    graph.output(graph.sqrt(graph.abs(x)), name="z")
    with open(model, "w") as file:
        file.write(gq.to_text(graph))

    def wrong(name, path, arrays, threads):
        return lambda feeds: [np.maximum(feeds["x"], 0), np.sqrt(np.abs(feeds["x"])) * np.float32([1, 0] * 4)]

    monkeypatch.setattr(bench, "model_file", wrong)
    pytest.importorskip("onnx")
    assert main(["bench", model, "--threads=1", "--peer=ort_exact", "--seconds=0.001"]) == 0
    _, head, ours, peer = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "cosine" and ours.split()[-1] == "1.000000" and 0.5 < float(peer.split()[-1]) < 0.9
    assert peer.startswith("  ONNX Runtime exact ")


def test_cosines_are_to_the_graph_as_written(model, tmp_path, capsys, monkeypatch):
    """ONNX Runtime without optimizations states the numbers; without that package, the references do."""
    pytest.importorskip("onnxruntime")
    asked = []
    monkeypatch.setattr(peers, "by_onnxruntime", lambda path, threads, *, literal, exact: asked.append(literal) or (
        lambda feeds: [np.full((1, 8), 1 + literal, np.float32)]))
    pytest.importorskip("onnx")
    assert main(["bench", model, "--threads=1", "--peer=ort", "--seconds=0.001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compared_with"] == "ONNX Runtime without optimizations" and set(asked) == {True, False}
    assert found["rows"][1]["cosine"] == pytest.approx(1)  # to the literal run; the two differ by a factor
    graph, arrays = gq.parse(TEXT), {"x": np.full((1, 8), 5, np.uint8)}
    monkeypatch.setattr(peers, "PACKAGES", {"ONNX Runtime": "no_such_package"})
    outputs, how = peers.as_written("none", graph, arrays)
    assert how == "the NumPy references" and np.array_equal(outputs[0], np.full((1, 8), 1.0))


@pytest.mark.parametrize("key", ["x", "0/in/x"])
def test_inputs_are_the_models_own_sample(model, tmp_path, capsys, monkeypatch, key):
    seen = []
    monkeypatch.setattr(bench, "alternate", lambda calls, seconds: [[call() and 0.0 or 1.0] for call in calls])
    monkeypatch.setattr(bench, "table", lambda graph, arrays, rows, title: seen.append(arrays) or "")
    sample = np.arange(16, dtype=np.uint8).reshape(2, 8)
    np.savez(tmp_path / "g.npz", **{key: sample})
    assert main(["bench", model, "--threads=1"]) == 0 and np.array_equal(seen.pop()["x"], sample)
    assert main(["bench", model, "--threads=1", "--shape=x=3x8"]) == 0 and seen.pop()["x"].shape == (3, 8)
    for other in ({key: sample.astype(np.float32)}, {"z": sample}):
        np.savez(tmp_path / "g.npz", **other)
        assert main(["bench", model, "--threads=1"]) == 0 and seen.pop()["x"].shape == (1, 8)
    with open(tmp_path / "g.npz", "wb") as file:
        np.save(file, sample)
    assert main(["bench", model, "--threads=1"]) == 0 and seen.pop()["x"].shape == (1, 8)
    (tmp_path / "g.npz").unlink()
    (tmp_path / "g.npz").mkdir()
    assert main(["bench", model, "--threads=1"]) == 0 and seen.pop()["x"].shape == (1, 8)


def test_random_inputs_do_not_saturate():
    graph = gq.parse("""graph(x: f32[64,64], u: u8[64,64], r: f32[64,64], i: s64[4], c: f32[64,2]) {
      %q = quantize(x, dtype=u8, scales=[0.5], zps=[100])
      %d = dequantize(u, scales=[0.5], zps=[3])
      %z = relu(r)
      %p = quantize(c, dtype=u8, qtype="per_channel", axis=1, scales=[0.5, 0.25])
      return %q, %d, %z, i, %p
    }""")
    given = {"x": np.zeros((64, 64), np.float32), "u": np.zeros((64, 64), np.uint8),
             "r": np.ones((64, 64), np.float32), "i": np.ones(4, np.int64), "c": np.ones((64, 2), np.float32)}
    made = realistic(graph, given)
    assert all(made[n].dtype == given[n].dtype and made[n].shape == given[n].shape for n in given)
    assert all(made[n] is given[n] for n in "ric")
    q = gq.reference(graph, made)["q"]
    for x in (q, made["u"]):
        assert 100 < x.mean() < 155 and 20 < x.std() < 45 and ((x == 0) | (x == 255)).mean() < 0.001


def test_exact_products_of_onnx_runtime_are_asked_for(monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    asked = []
    monkeypatch.setattr(onnxruntime, "InferenceSession",
                        lambda path, options, providers: asked.append(options.get_session_config_entry(
                            "session.x64quantprecision")))
    with pytest.raises(gq.GraphqError):
        peers.model_file(peers.EXACT, "m.onnx", {}, 1)
    assert asked == ["1"]


def test_calls_take_turns():
    order = []
    times = alternate([lambda: order.append("a"), lambda: order.append("b")], 0)
    assert "".join(order) == "aabb" * 8 and [len(t) for t in times] == [8, 8]


def test_cosine():
    assert cosine(np.zeros(3), np.zeros(3)) == 1 and cosine(np.ones(3), -np.ones(3)) == pytest.approx(-1)
    assert cosine(np.zeros(3), np.ones(3)) == 0


def test_differences():
    assert difference(np.array([1, 5], np.uint8), np.array([2, 3], np.uint8)) == 2
    assert difference(np.float32([1, 2]), np.float32([1, 4])) == 0.5
    assert difference(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0
