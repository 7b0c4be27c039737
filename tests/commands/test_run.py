"""How far an output may be from the reference's, by dtype.

`graphq run` of models: on random inputs, on given ones, into files, and what is refused.
"""
import json
import re

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands.run import compare


def check(dtype, got, wanted):
    g = gq.Graph()
    value = g.input("x", dtype=dtype, shape=(len(wanted),))
    a, b = (np.asarray(x, np.float32).astype(value.dtype.numpy) for x in (got, wanted))
    return compare("x", a, b, value)


@pytest.mark.parametrize("dtype, got, wanted, passed", [
    ("f32", [1, 2, np.nan, np.inf], [1, 2, np.nan, np.inf], True),
    ("f32", [1, 2], [1.00001, 2], True),
    ("f32", [1, 2], [1.0001, 2], False),
    ("f32", [1, np.nan], [1, 2], False),
    ("f32", [1, 2], [1, np.nan], False),
    ("f32", [1, np.inf], [1, -np.inf], False),
    ("f32", [0, 0], [0, np.inf], False),
    ("bf16", [1, 1.015625], [1, 1], True),
    ("bf16", [1, 1.0234375], [1, 1], False),
    ("f16", [1, 1.001953125], [1, 1], True),
    ("f16", [1, 1.0029296875], [1, 1], False),
    ("f8_e4m3", [1, 1.125], [1, 1], True),
    ("f8_e4m3", [1, 1.25], [1, 1], False),
    ("u8", [3, 4], [3, 5], True),
    ("u8", [3, 4], [3, 6], False),
    ("u8", [3, 4], [4, 5], False),
    ("s8", [1] * 20000, [0] * 3 + [1] * 19997, True),
    ("s8", [1] * 20000, [0] * 4 + [1] * 19996, False),
])
def test_compare(dtype, got, wanted, passed):
    assert check(dtype, got, wanted).passed == passed


@pytest.mark.parametrize("dtype, got, wanted, text", [
    ("f32", [1, 2], [1, np.inf], "not finite in 1 elements"), ("f32", [np.inf, 2], [1, 2], "not finite in 1 elements"),
    ("f32", [1, np.nan], [np.nan, 1], "not finite in 2 elements"), ("f32", [8, 1], [8, 3], "2.5e-01 of the largest"),
    ("f32", [3, 8], [1, 8], "2.5e-01 of the largest"), ("f32", [8, 1], [4, 1], "1.0e+00 of the largest"),
    ("boolean", [1, 0], [1, 1], "1 steps, in 5.0e-01 of the elements"),
    ("bf16", [2, 1.015625], [2, 1], "2.0 ulp, in 5.0e-01 of the elements"),
    ("bf16", [1.9921875, 1], [2, 1], "0.5 ulp, in 5.0e-01 of the elements"),
    ("f16", [2.0**-23, 1], [2.0**-24, 1], "1.0 ulp, in 5.0e-01 of the elements")])
def test_distances_in_words(dtype, got, wanted, text):
    assert check(dtype, got, wanted).text == text


def test_another_shape_is_too_far():
    value = gq.Graph().input("x", dtype="f32", shape=(1, 2))
    deviation = compare("y", np.ones(2, np.float32), np.ones((1, 2), np.float32), value)
    assert not deviation.passed and str(deviation) == "y: shape [2], not [1, 2]"


X = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def graph():
    g = gq.Graph("net")
    x, ids = g.input("x", dtype="f32", shape=(None, 3)), g.input("ids", dtype="s64", shape=(2,))
    g.output(g.multiply(g.relu(x), 2), name="y")
    g.output(g.gather(np.eye(2, dtype=np.float32), ids), name="rows")
    return g


@pytest.fixture(params=["onnx", "txt"])
def model(request, tmp_path):
    path = tmp_path / f"model.{request.param}"
    if request.param == "onnx":
        pytest.importorskip("onnx")
        gq.save_onnx(graph(), path)
    else:
        path.write_text(gq.to_text(graph()))
    return str(path)


def test_random_inputs(model, capsys):
    assert main(["run", model, "--isa=scalar", "--threads=1"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"<compiled graph net: x: f32\[\?,3\], ids: s64\[2\] -> y: .*; ISA level scalar, 1 thread>\n"
                        r"input x: f32\[1,3\], random\ninput ids: s64\[2\], random\n"
                        r"first result after \d+\.\d\d s, compilation included; then .* ms per run \(median of \d+\)\n"
                        r"output y: f32\[1,3\], 0 to [\d.]+, mean [\d.]+\noutput rows: f32\[2,2\], .*\n", out)


def test_arrays_from_and_to_files(model, tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    assert main(["run", model, f"--input=x={tmp_path}/x.npy", f"--output=y={tmp_path}/y", "--compare"]) == 0
    assert np.array_equal(np.load(tmp_path / "y"), 2 * np.maximum(X, 0))
    out = capsys.readouterr().out
    assert f"input x: f32[4,3], from {tmp_path}/x.npy\n" in out and "; against the reference: equal\n" in out


def test_shapes_of_random_inputs(model, capsys):
    assert main(["run", model, "--shape", "x=7x3"]) == 0
    assert "input x: f32[7,3], random" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, part", [
    (["--input", "z=x.npy"], "the model has no input 'z'; it has x, ids"), (["--input", "x"], "takes NAME=..., got x"),
    (["--output", "z=y.npy"], "the model has no output 'z'; it has y, rows"),
    (["--input", "x=none"], "none: No such file"),
    (["--input", "x=f64.npy"], "got dtype float64"),
    (["--shape", "x=7x4"], "input 'x' must be f32[?,3], got shape [7, 4]"), (["--shape", "x=7,3"], "got 7,3"),
    (["--input", "x=text"], "input 'x': text: "), (["--input", "x=several.npz"], "holds several arrays"),
    (["--isa", "none"], "none")])
def test_wrong_arguments(model, tmp_path, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(tmp_path)
    np.save("f64.npy", X.astype(np.float64))
    np.savez("several.npz", X, X)
    (tmp_path / "text").write_text("x")
    assert main(["run", model, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and part in err and err.count("\n") == 1


def test_open_dimensions_that_1_does_not_fit(tmp_path, capsys):
    g = gq.Graph()
    g.output(g.max_pool(g.input("x", dtype="f32", shape=(None, None, 4, 1)), kernel=2))
    (tmp_path / "g.txt").write_text(gq.to_text(g))
    assert main(["run", str(tmp_path / "g.txt")]) == 2
    assert "(for inputs of shape x=1x1x4x1; choose others with --shape)" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "g.txt"), "--shape=x=1x4x4x1"]) == 0


def test_results_that_are_wrong_are_exit_code_1(model, capsys, monkeypatch):
    from graphq.commands import run

    true, formula = run.reference, gq.CompiledGraph.formula

    def wrong(results):
        return {name: x + np.float32(0.01) for name, x in results.items()}

    monkeypatch.setattr(run, "reference", lambda g, x: wrong(true(g, x)))
    assert main(["run", model, "--compare"]) == 0
    assert "of the largest, but equal to its formula" in capsys.readouterr().out
    monkeypatch.setattr(gq.CompiledGraph, "formula", lambda m, x: wrong(formula(m, x)))
    assert main(["run", model, "--compare"]) == 1
    assert "of the largest, and not equal to its formula" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["y", "rows"])
def test_one_wrong_output_decides_the_exit_code(wrong, tmp_path, capsys, monkeypatch):
    """Whether it is the first output or the last."""
    from graphq.commands import run

    true = gq.CompiledGraph.__call__
    monkeypatch.setattr(gq.CompiledGraph, "__call__", lambda model, arrays: {
        name: x + np.float32(name == wrong) for name, x in true(model, arrays).items()})
    monkeypatch.setattr(run, "RUNS", 1)
    (tmp_path / "g.txt").write_text(gq.to_text(graph()))
    assert main(["run", str(tmp_path / "g.txt"), "--isa=scalar", "--threads=1", "--compare", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["outputs"]
    assert {x["name"]: x["passed"] for x in found} == {"y": wrong != "y", "rows": wrong != "rows"}


def test_json(model, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.full((1, 3), np.inf, np.float32))
    assert main(["run", model, f"--input=x={tmp_path}/x.npy", "--compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"][0] == {"name": "x", "type": "f32[1,3]", "source": f"{tmp_path}/x.npy"}
    assert found["outputs"][0] == {"name": "y", "type": "f32[1,3]", "min": None, "max": None, "mean": None,
                                   "difference": "equal", "passed": True}
    assert found["runs"] > 0 and 0 < found["least_ms"] <= found["median_ms"] and found["graph"] == "net"
