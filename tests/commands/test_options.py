"""What options of commands ask for, and what commands say of the answers: no option is lost, no two are swapped."""
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands import compile as compile_command
from graphq.commands import shared
from graphq.dtypes import s8
from graphq.kernels.jit import cache
from graphq.quantization.scheme import Scheme
from graphq.quantization.tuned import TARGET

TEXT = "graph net(x: f32[2,3]) {\n  %0 = relu(x) : f32[2,3]\n  return %0 as y\n}"


class Asked(Exception):
    """Raised in place of the answer."""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.txt").write_text(TEXT)
    return str(tmp_path / "net.txt")


def asked_by(monkeypatch, where, name, *arguments):
    """The keywords with which a command calls the function `name` of the module `where`."""
    def raises(*_, **keywords):
        raise Asked(keywords)

    monkeypatch.setattr(where, name, raises)
    with pytest.raises(Asked) as stop:
        main(list(arguments))
    return stop.value.args[0]


@pytest.mark.parametrize("command", ["run", "bench", "explain", "profile", "report", "compile"])
@pytest.mark.parametrize("options", [
    {"isa": "avx2", "threads": 1, "precision": "f32", "ties": "settled", "ranges": "rows"},
    {"isa": "scalar", "threads": 2, "precision": "bf16", "ties": "formula", "ranges": "tensor"}])
def test_options_of_the_target(file, monkeypatch, command, options):
    where = compile_command if command == "compile" else shared
    found = asked_by(monkeypatch, where, "compile", command, file, *(f"--{k}={v}" for k, v in options.items()))
    assert found.pop("cache", "kernels") == "kernels" and found == options


@pytest.mark.parametrize("command", ["run", "explain", "profile", "report"])
def test_options_for_a_saved_model(file, tmp_path, monkeypatch, command):
    path = str(tmp_path / "net.graphq")
    gq.compile(gq.parse(TEXT), isa="scalar", threads=1).save(path)
    found = asked_by(monkeypatch, shared, "load_compiled", command, path, "--isa=avx2", "--threads=1")
    assert found == {"isa": "avx2", "threads": 1}


def test_what_explain_is_asked_for(file, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(gq.CompiledGraph, "profile", lambda self, arrays: sorted(arrays))
    monkeypatch.setattr(gq.CompiledGraph, "explain", lambda self, value, **what: asked.append((value, what)) or "")
    for arguments in [], ["--full"], ["--kernels", "--value=y"], ["--profile"], ["--json"]:
        assert main(["explain", file, "--isa=scalar", "--threads=1", *arguments]) == 0
    nothing = {"kernels": False, "full": False, "profile": None}
    assert asked == [(None, nothing), (None, nothing | {"full": True}), ("y", nothing | {"kernels": True}),
                     (None, nothing | {"profile": ["x"]}), (None, nothing | {"format": "json"})]


def test_what_report_is_asked_for(file, monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(gq.CompiledGraph, "report", lambda self, out, arrays=None, *, title: asked.append(
        (out, arrays and sorted(arrays), title)) or Path(out).write_text("page"))
    for arguments in [], [f"--out={tmp_path}/page.html"], ["--profile"]:
        assert main(["report", file, "--isa=scalar", "--threads=1", *arguments]) == 0
    assert asked == [(tmp_path / "net.html", None, "net.txt"), (tmp_path / "page.html", None, "net.txt"),
                     (tmp_path / "net.html", ["x"], "net.txt")]


def test_every_number_of_a_profile(file, monkeypatch, capsys):
    pieces = [SimpleNamespace(thread=70, begin=0.25, seconds=0.5, first=3, end=9),
              SimpleNamespace(thread=90, begin=0.75, seconds=0.125, first=9, end=11)]
    step = SimpleNamespace(number=4, kernel="k", seconds=2.0, least=1.5, macs=100, nbytes=200, gops=7.0, gigabytes=8.0,
                           decisive="vpdpbusd", share=0.5, pieces=pieces)
    asked = []
    monkeypatch.setattr(gq.CompiledGraph, "profile", lambda self, arrays, **what: asked.append(what) or SimpleNamespace(
        threads=[90, 70], seconds=3.0, elapsed=4.0, steps=[step]))
    assert main(["profile", file, "--isa=scalar", "--threads=1", "--runs=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "graph": "net", "isa": "scalar", "threads": 1, "runs": 7, "steps_ms": 3000, "run_ms": 4000, "steps": [{
            "number": 4, "kernel": "k", "median_ms": 2000, "least_ms": 1500, "macs": 100, "bytes": 200, "gops": 7,
            "gigabytes_a_second": 8, "decisive": "vpdpbusd", "share_of_peak": 0.5, "pieces": [
                {"thread": 1, "begin_ms": 250, "ms": 500, "blocks": [3, 9]},
                {"thread": 0, "begin_ms": 750, "ms": 125, "blocks": [9, 11]}]}]}
    main(["profile", file, "--isa=scalar", "--threads=1", "--peaks"])
    assert asked == [{"runs": 7, "peaks": False}, {"runs": 20, "peaks": True}]


@pytest.mark.parametrize("arguments, told", [([], True), (["--no-rank"], False), (["--json"], False)])
@pytest.mark.parametrize("loss", [TARGET, 2 * TARGET])
@pytest.mark.parametrize("better", [False, True])
def test_when_compare_advises(file, tmp_path, monkeypatch, capsys, arguments, told, loss, better):
    class Found:
        advised = {"wide": ["a", "b c"], "exclude": ["d"]}

        def __init__(self):
            self.loss, self.better = loss, better and "--no-rank" not in arguments

        def json(self):
            return "json"

        def __str__(self):
            return "table"

    asked = []
    comparing = import_module("graphq.quantization.compare")  # graphq.quantization has a function of this name
    monkeypatch.setattr(comparing, "compare", lambda left, right, batches, rank: asked.append(rank) or Found())
    (tmp_path / "batches.py").write_text("import numpy\ndef some():\n    yield {'x': numpy.ones((2, 3), 'f')}\n")
    data = f"{tmp_path}/batches.py:some"
    other = tmp_path / "other.txt"
    other.write_text(TEXT)
    assert main(["compare", file, str(other), f"--data={data}", *arguments]) == 0
    first, *more = capsys.readouterr().out.splitlines()
    assert first == ("json" if arguments == ["--json"] else "table") and asked == [arguments != ["--no-rank"]]
    out = Path(file).with_stem(f"{Path(file).stem}_better")
    assert more == [f"graphq quantize {other} --data {data} --out {out} --int16=a '--int16=b c' --exclude=d"] * (
        told and better and loss > TARGET)


def test_every_field_of_partitions(tmp_path, capsys):
    (tmp_path / "g.txt").write_text("""graph(x: f32[2,3], y: f32[3,4], n: f32[2]) {
      %a = relu(x)
      %b = matmul(%a, y)
      %c = wildcard(n, dtypes=[f32], shapes=[[2]])
      %d = tanh(%b)
      return %d, %c
    }""")
    assert main(["partitions", str(tmp_path / "g.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    graph = gq.parse((tmp_path / "g.txt").read_text())
    assert {p["supported"] for p in found} == {True, False}
    for p, wanted in zip(found, graph.partitions(), strict=True):
        operations = [{"id": k, "name": n.op.name} for k, n in zip(wanted.op_ids, wanted.ops, strict=True)]
        inputs, outputs = ([graph.label(v) for v in values] for values in (wanted.inputs, wanted.outputs))
        assert p == {"id": wanted.id, "anchor": wanted.anchor, "supported": wanted.supported,
                     "operations": operations, "inputs": inputs, "outputs": outputs}


def test_every_number_of_the_cache(monkeypatch, capsys):
    held = cache.Info(Path("/folder"), 3, 2, 500)
    monkeypatch.setattr(cache, "info", lambda: held)
    monkeypatch.setattr(cache, "clear", lambda: held)
    assert main(["cache", "info", "--json"]) == main(["cache", "clear", "--json"]) == main(["cache", "clear"]) == 0
    out = capsys.readouterr().out
    first, second = out.split("\n}\n")[:2]
    assert json.loads(first + "}") == {"folder": "/folder", "modules": 3, "models": 2, "bytes": 500}
    assert json.loads(second + "}") == {"removed": 3, "models": 2}
    assert out.endswith("\n3 kernel modules and 2 models removed\n")


LAYERS = """graph(x: f32[4,16], r: f32[4]) {
  %w = constant(value=f32[16,8]{WEIGHTS})
  %fc = matmul(x, %w)
  %q = quantize(r, dtype=u8, scales=[0.1])
  return %fc, %q
}"""


@pytest.fixture
def layers(tmp_path):
    (tmp_path / "net.txt").write_text(LAYERS.replace("WEIGHTS", ", ".join(str(k % 7 - 3.5) for k in range(128))))
    (tmp_path / "batches.py").write_text("def some():\n    yield {}\n")
    return [str(tmp_path / "net.txt"), f"--data={tmp_path}/batches.py:some", f"--out={tmp_path}/out.onnx"]


def test_what_quantize_is_asked_for(layers, monkeypatch):
    pytest.importorskip("onnx")
    module, data = import_module("graphq.quantization.quantize"), import_module("graphq.quantization.data")
    monkeypatch.setattr(data, "load_data", lambda text, graph: text)
    monkeypatch.setattr("graphq.quantization.between.stored_between", lambda graph: ["a value"])
    asked = []

    def asks(graph, batches, scheme, **more):
        asked.append((scheme, more))
        raise Asked

    monkeypatch.setattr(module, "automatic", asks)
    monkeypatch.setattr(module, "quantize", asks)
    for arguments in (["--weight-bits=7", "--exclude=fc", "--preset=accurate"], ["--method=mse", "--int16=fc"],
                      ["--activations=s8", "--symmetric", "--limits=a=b=-1:2"], ["--int16-weights=fc", "--between=*"]):
        with pytest.raises(Asked):
            main(["quantize", *layers, *arguments])
    automatic = Scheme(method="automatic")
    assert asked == [
        (replace(automatic, weight_bits=7, exclude=("fc",), preset="accurate"), {}),
        (Scheme(method="mse", wide=("fc",)), {}),
        (Scheme(activations=s8, symmetric=True, limits={"a=b": (-1, 2)}), {}),
        (replace(automatic, wide_weights=("fc",), between=("*",)), {})]


def test_the_operator_set_is_checked_before_the_search_and_used(layers, monkeypatch, capsys):
    onnx = pytest.importorskip("onnx")
    assert main(["quantize", *layers, "--opset=5"]) == 2 and "5" in capsys.readouterr().err
    model, _, out = layers
    assert main(["quantize", model, out, "--mode=dynamic", "--opset=18"]) == 0
    assert [x.version for x in onnx.load(out.removeprefix("--out=")).opset_import if not x.domain] == [18]


@pytest.mark.parametrize("arguments, said", [
    (["--mode=dynamic", "--exclude=fc"], "--exclude leaves no matmul or convolution of "),
    (["--method=min_max"], "quantize needs --data unless --mode is dynamic or weight_only"),
    ([], "quantize needs --data unless --mode is dynamic or weight_only")])
def test_quantize_refuses(layers, capsys, arguments, said):
    model, _, out = layers
    assert main(["quantize", model, out.replace(".onnx", ".txt"), *arguments]) == 2
    assert said in capsys.readouterr().err
