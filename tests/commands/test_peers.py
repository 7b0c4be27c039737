"""What timings and comparisons are made of: turns of calls, cosines, differences; what JSON can say; names of peers."""
import json
import sys
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest

import graphq as gq
from graphq.commands import peers
from graphq.commands.shared import comma_separated, plain, save_graph, write
from graphq.model.files import load_graph


def test_calls_take_turns(monkeypatch):
    monkeypatch.setattr(peers, "PAUSE", 0.0)
    called = []
    times = peers.alternate([lambda: called.append(0), lambda: called.append(1)], 0.0)
    assert called == [0, 0, 1, 1] * peers.ROUNDS  # the first call of a turn is not counted
    assert [len(x) for x in times] == [peers.ROUNDS] * 2 and all(t >= 0 for x in times for t in x)


def test_the_seconds_are_shared_by_all_turns(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: None))

    def call():
        now[0] += 1

    times = peers.alternate([call, call], 2 * peers.ROUNDS * 3.0, clock=lambda: now[0])
    assert times == [[1000.0] * 3 * peers.ROUNDS] * 2


def test_cosines():
    assert peers.cosine(np.float32([1, 2]), np.float32([2, 4])) == pytest.approx(1)
    assert peers.cosine(np.float32([[1, 0]]), np.float32([[0, 3]])) == 0
    assert peers.cosine(np.float32([1, 0]), np.float32([-2, 0])) == -1
    assert peers.cosine(np.zeros(2), np.zeros(2)) == 1 and peers.cosine(np.zeros(2), np.ones(2)) == 0
    assert peers.cosine(np.uint8([200, 100]), np.uint8([200, 100])) == pytest.approx(1)  # no sums of 8 bits


def test_differences():
    assert peers.difference(np.uint8([1, 250]), np.uint8([3, 0])) == 250
    assert peers.difference(np.float32([1, -6]), np.float32([1, -4])) == 0.5
    assert peers.difference(np.zeros(0), np.zeros(0)) == 0 and peers.difference(np.float32([2]), np.float32([0])) > 1e29


def test_what_json_can_say(capsys):
    data = {1: np.float32(0.5), "n": float("nan"), "list": (np.int64(3), [float("inf")]), "text": "x", "none": None}
    assert plain(data) == {"1": 0.5, "n": None, "list": [3, [None]], "text": "x", "none": None}
    write(Namespace(json=True), "text", data)
    assert json.loads(capsys.readouterr().out)["list"] == [3, [None]]
    write(Namespace(json=False), "text", data)
    assert capsys.readouterr().out == "text\n"
    assert comma_separated(" a, b ,,c") == ["a", "b", "c"] and comma_separated(" , ") == []


@pytest.mark.parametrize("suffix", [".txt", ".json", ".onnx"])
def test_graphs_are_saved_by_the_name_of_the_file(tmp_path, suffix):
    pytest.importorskip("onnx")
    g = gq.parse("graph net(x: f32[2]) {\n %0 = relu(x)\n return %0 as y\n}")
    save_graph(g, tmp_path / f"g{suffix}")
    head = (tmp_path / f"g{suffix}").read_bytes()[:1]
    assert (head == b"{") == (suffix == ".json") and (head == b"g") == (suffix == ".txt")
    assert [n.op.name for n in load_graph(tmp_path / f"g{suffix}").nodes] == ["relu"]


def test_peers_have_packages():
    assert set(peers.PEERS.values()) == set(peers.PACKAGES) and peers.PACKAGES[peers.EXACT] == "onnxruntime"
    assert peers.PEERS["openvino_bf16"] == "OpenVINO bf16" and peers.PACKAGES[peers.BF16] == "openvino"


def test_a_peer_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None if package == "openvino" else package)
    assert peers.missing(peers.ORT) is None and "it needs openvino (" in peers.missing(peers.F32)
    with pytest.raises(gq.GraphqError, match="OpenVINO f32: it needs openvino"):
        peers.model_file(peers.F32, "m.onnx", {}, 1)


def test_a_peer_that_refuses_a_file(monkeypatch, tmp_path):
    asked = []

    def make(path, threads, *, literal, exact):
        asked.append((path, threads, literal, exact))
        return lambda f: (_ for _ in ()).throw(ValueError("no")) if f else ["y"]

    monkeypatch.setattr(peers, "by_onnxruntime", make)
    monkeypatch.setattr(peers, "by_openvino", lambda name, path, threads: lambda f: [name])
    monkeypatch.setattr(peers, "find_spec", lambda package: package)
    assert peers.model_file(peers.EXACT, "m", {}, 2, literal=True)({}) == ["y"]
    assert peers.model_file(peers.ORT, "m", {}, 3)({}) == ["y"]
    assert asked == [("m", 2, True, True), ("m", 3, False, False)]
    assert peers.model_file(peers.BF16, "m", {}, 1)({}) == [peers.BF16]
    with pytest.raises(gq.GraphqError, match="ONNX Runtime refuses m: no"):
        peers.model_file(peers.ORT, "m", {"x": 1}, 1)


@pytest.mark.parametrize("name, hint", [(peers.OPENVINO, None), (peers.BF16, "bf16"), (peers.F32, "f32")])
@pytest.mark.parametrize("folder", [None, "kept"])
def test_how_openvino_is_asked(monkeypatch, name, hint, folder):
    asked = []

    class Request:
        model_outputs = [SimpleNamespace(get_any_name=lambda: "second"), SimpleNamespace(get_any_name=lambda: "first")]

        def infer(self, feeds, share_inputs):
            return {"first": feeds["x"], "second": -feeds["x"]}

    class Core:
        def read_model(self, path):
            return SimpleNamespace(reshape=lambda shapes: asked.append((path, shapes)))

        def compile_model(self, model, device, hints):
            asked.append((device, hints))
            return SimpleNamespace(create_infer_request=Request)

    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=Core))
    monkeypatch.delenv(peers.OPENVINO_CACHE, raising=False)
    if folder:
        monkeypatch.setenv(peers.OPENVINO_CACHE, folder)
    run = peers.by_openvino(name, "m.onnx", 3)
    x = np.float32([[1, 2]])
    assert [y.tolist() for y in run({"x": x})] == [[[-1, -2]], [[1, 2]]] == [y.tolist() for y in run({"x": x})]
    (path, shapes), (device, hints) = asked  # compiled once for both runs
    assert (path, shapes, device, hints["INFERENCE_NUM_THREADS"]) == ("m.onnx", {"x": [1, 2]}, "CPU", 3)
    assert hints.get("INFERENCE_PRECISION_HINT") == hint and hints.get("CACHE_DIR") == folder
    run({"x": np.zeros((2, 2), np.float32)})
    assert len(asked) == 4


def test_how_onnx_runtime_is_asked(monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    asked = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda path, options, providers: asked.append(options))
    for literal in (False, True):
        peers.by_onnxruntime("m.onnx", 3, literal=literal, exact=False)
    plain, as_written = asked
    assert plain.intra_op_num_threads == as_written.intra_op_num_threads == 3
    off = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert as_written.graph_optimization_level == off != plain.graph_optimization_level
