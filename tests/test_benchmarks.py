"""The benchmarks run, with whatever peers are installed; their times are nobody's business here."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def run(name, *arguments):
    return subprocess.run([sys.executable, FOLDER / name, "--seconds", "0.001", "--threads", "1", *map(str, arguments)],
                          capture_output=True, text=True)


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "case", "macs", "variants"), [
    ("matmul.py", "mm_gemv", 1024 * 1024, ["u8", "gelu_add", "f32", "4bit"]),
    ("conv.py", "conv_1x1_256", 56 * 56 * 256 * 64, ["u8"])])
def test_rows(tmp_path, name, case, macs, variants):
    done = run(name, "--variant", *variants, "--case", case, "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(r["variant"], r["case"], r["threads"], r["macs"]) for r in rows] == [(v, case, 1, macs) for v in variants]
    for row in rows:
        assert row["graphq"]["minimum_ms"] > 0 and row["graphq"]["tops"] > 0
        for peer in {"oneDNN", "NumPy", "8-bit weights", "ONNX Runtime"} & set(row):
            assert row[peer]["largest_difference"] <= row["tolerance"]
    assert done.stdout.count(f"\n{case} ") == len(variants) and done.stdout.startswith("u8\ncase ")


def test_sizes_of_a_case(tmp_path):
    done = run("matmul.py", "--variant", "u8", "--case", "5x64x48", "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["case"], row["macs"]) == ("5x64x48", 5 * 64 * 48)


def test_decode():
    done = run("decode.py", "--matrices", "2", "--k", "64", "--n", "32", "--weights", "s4", "--level", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split("  ")[0] for line in done.stdout.splitlines() if "ONNX" not in line]
    assert names == ["reading", "graphq s4, level 4"]


def test_onnx_operators():
    pytest.importorskip("onnxruntime")
    done = run("onnx_operators.py", "--operators", "TensorScatter in place, tokens 1")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("TensorScatter in place, tokens 1 ") and "graphq" in line and "ONNX Runtime" in line


def test_wrong_arguments():
    done = run("matmul.py", "--case", "mm_none")
    assert done.returncode == 2 and "invalid choice: 'mm_none'" in done.stderr


def test_models(tmp_path):
    onnx = pytest.importorskip("onnx")
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul (x, w) }""")
    onnx.save(m, tmp_path / "net.onnx")
    done = run("models.py", "--dims", "x=5x3", "--busy", "1", "--json", tmp_path / "rows.json", "--",
               tmp_path / "net.onnx")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["file"], row["threads"], row["macs"]) == ("net", 1, 5 * 3 * 2)
    assert row["graphq"]["coverage"] == 0 and row["graphq"]["cosine"] > 0.9999 and row["graphq"]["decisions"] == [1, 1]
    assert done.stdout.startswith("net, 1 thread: ")


def test_inputs_and_decisions_of_models(tmp_path):
    files = load("model_files")
    np.savez(tmp_path / "net.npz", **{"0/in/x/y": np.ones(2), "0/out/z": np.zeros(3)})
    feeds, want = files.inputs_of(tmp_path / "net.onnx", {})
    assert [list(f) for f in feeds] == [["x/y"]] and want[0][0].shape == (3,)
    text = np.eye(4)[[[1, 1, 0, 1, 2, 2, 0, 0]]]
    assert files.ctc(text) == ((1, 1, 2),) and files.classes(text) == (1, 1, 0, 1, 2, 2, 0, 0)
    assert files.mask(np.asarray([[0.2, 0.4]])) == (False, True)
    assert files.agreement(files.classes, [[text]] * 2, [[np.roll(text, 1, axis=1)], [text]]) == (1, 11 / 16)
    shapes = {"ctc": text, "mask": np.ones((1, 1, 4, 4)), "argmax": np.ones((1, 8))}
    assert {name: files.decision_of(y) for name, y in shapes.items()} == dict(zip(shapes, shapes, strict=True))
    assert files.decision_of(text - 0.5) == "argmax"
