"""The commands quantize and compare: files in, files and tables out, one line for each mistake."""
import json
import re
import shlex

import numpy as np
import pytest
from float_networks import SAME, perceptron

import graphq as gq
from graphq.cli import main
from graphq.dtypes import s8
from graphq.quantization.comparison import Comparison
from graphq.quantization.data import load_data
from graphq.quantization.products import prepared

pytest.importorskip("onnx")
BATCHES = perceptron()[1]


def function():
    """As a user writes one for --data."""
    return iter(BATCHES)


@pytest.fixture
def folder(tmp_path):
    """A model, and its data in every form."""
    gq.save_onnx(perceptron()[0], tmp_path / "model.onnx")
    for kind in ("npz", "npy"):
        (tmp_path / kind).mkdir()
        for k, batch in enumerate(BATCHES):
            if kind == "npz":
                np.savez(tmp_path / kind / f"{k}.npz", **batch)
            else:
                np.save(tmp_path / kind / f"{k}.npy", batch["x"])
    np.savez(tmp_path / "one.npz", **BATCHES[0])
    np.savez(tmp_path / "all.npz", **{f"{k}/in/x": b["x"] for k, b in enumerate(BATCHES)})
    return tmp_path


@pytest.mark.parametrize("data, count", [("npz", 3), ("npy", 3), ("one.npz", 1), ("all.npz", 3)])
def test_data_from_files(folder, data, count):
    found = load_data(str(folder / data), perceptron()[0])
    assert len(found) == count
    for batch, want in zip(found, BATCHES, strict=False):
        np.testing.assert_array_equal(batch["x"], want["x"])
    assert len(found[1:]) == count - 1


def test_data_from_a_function(monkeypatch, tmp_path):
    (tmp_path / "my_batches.py").write_text("import numpy as np\n\n\ndef some():\n"
                                            "    yield {'x': np.ones((1, 16), np.float32)}\n\n\n"
                                            "def given(path):\n    return []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (batch,) = load_data("my_batches:some", perceptron()[0])
    assert batch["x"].sum() == 16
    (batch,) = load_data(f"{tmp_path / 'my_batches.py'}:some", perceptron()[0])
    assert batch["x"].sum() == 16
    for text, why in (("my_batches:other", "module 'my_batches' has no attribute 'other'"),
                      ("no_such_module:some", "No module named 'no_such_module'"),
                      ("my_batches:given", "missing a required argument: 'path'"),
                      ("my_batches:np", "is not a callable object")):
        with pytest.raises(gq.InputError, match=f"data {text}: .*{why}.*; it must be a function without"):
            load_data(text, perceptron()[0])


def test_wrong_data(folder):
    graph = perceptron()[0]
    (folder / "empty").mkdir()
    (folder / "text.npz").write_text("no archive")
    np.savez(folder / "other.npz", y=np.zeros(3))
    for name, message in (("empty", "holds no .npz or .npy"), ("text.npz", "text.npz"),
                          ("other.npz", "must hold arrays x, or batches of them as 0/in/x; it holds y"),
                          ("model.onnx", "must be a folder, an .npz or .npy file, or a function FILE.py:NAME")):
        with pytest.raises(gq.InputError, match=message):
            load_data(str(folder / name), graph)


@pytest.mark.parametrize("options", [[], ["--method", "percentile"], ["--activations", "s8", "--symmetric"],
                                     ["--exclude", "y"], ["--weight-bits", "7"]])
def test_quantize_and_compare(folder, capsys, options):
    model, out, data = (str(folder / name) for name in ("model.onnx", "q.onnx", "all.npz"))
    assert main(["quantize", model, "--data", data, "--out", out, *options]) == 0
    text = capsys.readouterr()
    assert f"q.onnx: {(folder / 'q.onnx').stat().st_size / 1024:.3g} KiB, " in text.out and text.err == ""
    searched = options in ([], ["--exclude", "y"], ["--weight-bits", "7"])
    assert ("of settings (*: chosen)" in text.out) == searched and " ms per run, f32 " in text.out
    made = gq.load_onnx(out)
    largest = max(int(abs(n.output.data.astype(int)).max()) for n in made.nodes_of(["constant"])
                  if n.output.dtype == s8)
    of_seven = "7" in options or "7-bit weights" in text.out.partition("\n* ")[2].partition("\n")[0]
    assert largest == (64 if of_seven else 127)
    assert main(["compare", out, model, "--data", data]) == 0
    compared = capsys.readouterr().out
    assert "1 - cosine" in compared and "hidden" in compared
    assert main(["quantize", model, "--data", data, "--out", out, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == out and bool(found["losses"]) == searched
    left, wide = found["layers_f32"], found["layers_int16"]
    assert left in ([["y"]] if "--exclude" in options else [[], ["y"]] if searched else [[]])
    assert len(made.nodes_of(("quantize",))) == 2 - len(left) + len(wide)  # of 16 bits the remainder is quantized, too
    assert found["speed"]["ratio"] * found["speed"]["milliseconds"] == pytest.approx(found["speed"]["milliseconds_f32"])
    table = re.findall(r"^[* ] +(\d\S+)  (\d\S+)  (.+)$", text.out, re.MULTILINE)
    curve = [(p["time"], p["loss"], p["setting"]) for p in found.get("curve", [])]
    assert [(float(time), float(loss), s) for time, loss, s in table] == [
        (pytest.approx(time + 0.005, abs=0.006), pytest.approx(loss, rel=1e-2), s + ", slower than f32" * (time > 1))
        for time, loss, s in curve]
    assert all(float(t) >= p[0] and float(loss) >= p[1] for (t, loss, _), p in zip(table, curve, strict=True))
    assert not searched or found["setting"] in [p["setting"] for p in found["curve"]]
    assert main(["compare", out, model, "--data", data, "--json", "--no-rank"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] < 0.01


@pytest.mark.parametrize("options", [[], ["--no-rank"]])
def test_a_terminal_is_told_what_takes_long(folder, capsys, monkeypatch, options):
    model, data = str(folder / "model.onnx"), str(folder / "all.npz")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["compare", model, model, "--data", data, *options]) == 0
    assert ("--no-rank leaves it out" in capsys.readouterr().err) == (not options)


def test_the_folder_of_the_new_file_is_checked_first(folder, capsys):
    out = folder / "none" / "q.onnx"
    assert main(["quantize", str(folder / "model.onnx"), "--data", "not read", "--out", str(out)]) == 2
    assert f"{out}: there is no folder {folder / 'none'}: create it first" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--mode", "dynamic"], ["--mode", "weight_only", "--weight-bits", "4"]])
def test_modes_without_data(folder, capsys, options):
    out = folder / "q.onnx"
    assert main(["quantize", str(folder / "model.onnx"), "--out", str(out), *options]) == 0
    assert gq.compile(gq.load_onnx(out))(BATCHES[0]["x"]).shape == (6, 4)
    assert main(["quantize", str(out), "--out", str(folder / "again.onnx"), *options]) == 2
    assert ("is already quantized: '" in (said := capsys.readouterr().err)) == ("dynamic" in options) and said
    assert ("has no matmul or convolution in f32 to quantize" in said) == ("weight_only" in options)


def test_sizes_count_external_data(folder, capsys):
    """A file whose weights are elsewhere is larger than it looks."""
    onnx = pytest.importorskip("onnx")
    model, out = folder / "split.onnx", folder / "q.onnx"
    onnx.save_model(onnx.load(folder / "model.onnx"), model, save_as_external_data=True, location="weights.bin",
                    size_threshold=0)
    assert main(["quantize", str(model), "--out", str(out), "--mode", "dynamic", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model_bytes"] == model.stat().st_size + (folder / "weights.bin").stat().st_size
    assert found["bytes"] == out.stat().st_size


@pytest.mark.parametrize("moved, mixed", [(False, False), (True, False), (False, True)])
def test_a_quantized_model_is_refused_before_any_work(folder, capsys, moved, mixed):
    """PyTorch's PT2E files transpose dequantized weights, and reshape dequantized activations."""
    g = gq.Graph()
    x = g.dequantize(g.quantize(g.input("x", dtype="f32", shape=(4, 2, 8)), dtype="u8", scales=[0.1], zps=[128]),
                     scales=[0.1], zps=[128])
    w = g.dequantize(g.constant(np.ones((4, 16) if moved else (8, 4), np.int8)), scales=[0.1])
    if moved:
        x, w = g.static_reshape(x, shape=[4, 16]), g.static_transpose(w, order=[1, 0])
    y = g.matmul(x, w, name="product")
    g.output(g.matmul(y, np.ones((4, 4), np.float32)) if mixed else y, name="y")
    gq.save_onnx(g, folder / "int8.onnx")
    assert main(["quantize", str(folder / "int8.onnx"), "--data", "no file", "--out", str(folder / "q.onnx")]) == 2
    assert re.search("is already quantized: '.*' multiplies integers. Quantize the f32 graph", capsys.readouterr().err)


def test_a_network_that_is_faster_in_f32(tmp_path, capsys):
    graph = gq.Graph()
    x = graph.input("x", dtype="f32", shape=(1, 8, 8, 8))
    graph.output(graph.convolution(x, np.ones((8, 1, 3, 3), np.float32), **SAME, groups=8), name="y")
    gq.save_onnx(graph, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32))
    command = ["quantize", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "x.npy"), "--out",
               str(tmp_path / "q.onnx")]
    assert main(command) == 2
    assert "every layer of" in (error := capsys.readouterr().err) and "is faster in f32" in error
    assert main([*command, "--int16", "y"]) == 0


@pytest.mark.parametrize("options, message", [
    ([], "quantize needs --data"), (["--data", "nowhere.npz"], "nowhere.npz"),
    (["--mode", "dynamic", "--exclude", "nothing"], "no matmul or convolution is named 'nothing'"),
    (["--weight-bits", "4"], "need mode 'weight_only'"),
    (["--states", "--data", __file__ + ":function"], "states need an LSTM"),
    (["--states", "--method", "mse", "--data", __file__ + ":function"], "states need an LSTM"),
    (["--preset", "accurate", "--method", "mse", "--data", "x.npz"], "--preset needs the automatic search"),
    (["--max-time", "0.1", "--max-loss", "0.1", "--data", __file__ + ":function"], "only one of --max-loss, --max-t"),
    (["--preset", "balanced", "--max-loss", "1", "--data", "x.npz"], "give only one of --preset, --max-loss: "),
    (["--max-loss", "1e-9", "--data", __file__ + ":function"], "no setting loses at most 1e-09: the least loss is "),
    (["--max-loss", "0", "--data", __file__ + ":function"], "scheme: max_loss must be positive, got 0.0"),
    (["--max-time", "0", "--data", __file__ + ":function"], "scheme: max_time must be positive, got 0.0"),
    (["--mode", "dynamic", "--method", "mse", "--symmetric"], "symmetric has no effect in mode 'dynamic'")])
def test_mistakes_are_one_line(folder, capsys, options, message):
    assert main(["quantize", str(folder / "model.onnx"), "--out", str(folder / "q.onnx"), *options]) == 2
    text = capsys.readouterr()
    assert text.out == "" and text.err.startswith("graphq: ") and text.err.count("\n") == 1 and message in text.err
    assert not (folder / "q.onnx").exists()


def test_products_of_the_users_choice(folder, capsys):
    model, out, data = (str(folder / name) for name in ("model.onnx", "q.onnx", "all.npz"))
    options = ["--int16", "hid*", "--int16-weights", "op:Gemm", "--limits", "relu=0:25.5", "--json"]
    hidden = next(n for n in prepared(gq.load_onnx(model)).nodes if n.op.name == "relu").output.name
    options[5] = f"{hidden}=0:25.5"
    assert main(["quantize", model, "--data", data, "--out", out, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "hidden" in found["layers_int16"] and len(found["weights_int16"]) == 2 and found["layers_f32"] == []
    assert found["estimate"]["batches"] == 3 and found["estimate"]["sure"] is False
    scales = [n.attrs["scales"][0] for n in gq.load_onnx(out).nodes_of(["quantize"])]
    assert any(s == pytest.approx(0.1) for s in scales)
    with pytest.raises(SystemExit):
        main(["quantize", model, "--data", data, "--out", out, "--limits", "relu=0"])
    assert "must be NAME=LOW:HIGH with numbers, got 'relu=0'" in capsys.readouterr().err
    assert main(["quantize", model, "--data", data, "--out", str(folder / "q.txt"), "--opset", "13"]) == 2
    assert "--opset applies only to ONNX files; " in capsys.readouterr().err


def test_reports_of_schemes(folder, capsys):
    args = ["quantize", str(folder / "model.onnx"), "--data", str(folder / "npz"), "--out", str(folder / "q.onnx")]
    assert main([*args, "--method", "min_max", "--exclude", "hid*", "--int16", "y", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers_f32"] == ["hidden"] and found["layers_int16"] == ["y"] and found["not_quantized"] == {}


def test_advice_is_a_command_to_paste(folder, capsys, monkeypatch):
    model, out, data = (str(folder / name) for name in ("model.onnx", "q.onnx", "npz"))
    assert main(["quantize", model, "--data", data, "--out", out, "--method", "min_max"]) == 0
    monkeypatch.setattr("graphq.quantization.tuned.TARGET", 0.0)
    monkeypatch.setattr(Comparison, "advised", {"wide": ["y"], "wide_weights": ["y"]})
    monkeypatch.setattr(Comparison, "better", True)
    capsys.readouterr()
    assert main(["compare", out, model, "--data", data]) == 0
    program, *options = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert program == "graphq" and "--int16=y" in options and "--int16-weights=y" in options
    before = (folder / "q.onnx").read_bytes()
    assert main(options) == 0 and "y with 16-bit activations" in capsys.readouterr().out
    assert (folder / "q.onnx").read_bytes() == before != (folder / "q_better.onnx").read_bytes()


def test_several_batches_in_a_file_of_a_folder(folder, capsys):
    (folder / "numbered").mkdir()
    np.savez(folder / "numbered" / "all.npz", **{f"{k}/in/x": b["x"] for k, b in enumerate(BATCHES)})
    args = ["quantize", str(folder / "model.onnx"), "--out", str(folder / "q.onnx"), "--method", "min_max"]
    assert main([*args, "--data", str(folder / "numbered")]) == 2
    assert "all.npz holds 3 batches; in a folder each file is one: give only this file" in capsys.readouterr().err
    assert main([*args, "--data", str(folder / "numbered" / "all.npz")]) == 0


def test_values_between_products_and_presets(folder, capsys):
    args = ["quantize", str(folder / "model.onnx"), "--data", str(folder / "npz"), "--out", str(folder / "q.onnx")]
    assert main([*args, "--preset", "fast", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["between_layers"] == []
    assert main([*args, "--between", "*"]) == 2
    assert "model.onnx is stored that could be an integer" in capsys.readouterr().err
    assert main([*args, "--method", "min_max", "--between", "nothing"]) == 2
    assert "no value stored between layers is named 'nothing'; there are none" in capsys.readouterr().err
    assert main([*args, "--method", "min_max", "--exclude", "*"]) == 2
    assert "--exclude leaves no matmul or convolution" in capsys.readouterr().err
