"""The examples run as a user runs them, and what they print is right."""
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments, cwd):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, encoding="utf-8", cwd=cwd,
                          env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_digits_int8(tmp_path):
    pytest.importorskip("sklearn")
    out = run(ROOT / "examples" / "digits_int8.py", "--seconds", "0.01", "--isa", "scalar", "--threads", "1",
              cwd=tmp_path)

    measured = {name.strip(): (float(accuracy), int(speed.replace(",", ""))) for name, accuracy, speed in
                re.findall(r"^(.+?) accuracy +([\d.]+) % +([\d,]+) images/s", out, re.MULTILINE)}
    assert set(measured) == {"scikit-learn f32", "graphq int8", "graphq.reference"}
    f32, int8, reference = (measured[k][0] for k in ("scikit-learn f32", "graphq int8", "graphq.reference"))
    assert f32 > 95
    assert abs(f32 - int8) <= 1
    assert abs(int8 - reference) <= 0.5
    assert all(speed > 0 for _, speed in measured.values())

    assert "4 partitions (3 integer), 0 operations outside" in out
    assert "NumPy reference of" not in out
    first = re.findall(r"first result, \w+ kernel cache: [\d.]+ s \((\d+) kernels compiled\)", out)
    cold, warm = map(int, first)
    assert cold > 0 and warm == 0

    rows = out.rstrip().splitlines()[-11:]
    assert [row.split()[0] for row in rows[-3:]] == ["label", "f32", "int8"]
    assert all(len(re.findall(r"\d", row.replace("f32", "").replace("int8", ""))) == 6 for row in rows[-3:])
    assert all(set(row) <= set(" ░▒▓█") for row in rows[:8]) and "█" in "".join(rows[:8])


def test_write_a_pass(tmp_path):
    out = run(ROOT / "examples" / "write_a_pass.py", cwd=tmp_path)
    assert "The pass alone applied 1 time:" in out
    assert "the factor must be a power of two, got 0.3" in out
    plain, mine = out.split("The pipeline as it is:")[1].split("The pipeline with the pass in front:")
    assert "(0 integer)" in plain and "multiply (%scaled) stands between the matmul and the dequantize" in plain
    assert re.search(r"1 partitions? \(1 integer\), 0 operations outside", mine)
    assert float(re.search(r"largest difference to the reference: (\S+)", mine)[1]) < 1e-5


def test_write_a_pass_has_passing_tests(tmp_path):
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull,
              ROOT / "examples" / "write_a_pass.py", cwd=tmp_path)
    assert re.search(r"^7 passed", out, re.MULTILINE), out


NET = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 3, 12, 12] x) => (float[n, 4] y)
    { c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (c)  m = GlobalAveragePool (r)  f = Flatten (m)
      y = Gemm <transB = 1> (f, v, b) }"""


def test_onnx_int8_of_any_file(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")  # which layers take f32 depends on the level
    rng = np.random.default_rng(0)
    m = onnx.parser.parse_model(NET)
    m.graph.initializer.extend(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
                               for name, shape in {"w": (8, 3, 3, 3), "v": (4, 8), "b": (4,)}.items())
    onnx.save(m, tmp_path / "net.onnx")
    np.savez(tmp_path / "inputs.npz", x=rng.standard_normal((2, 3, 12, 12)).astype(np.float32))
    script = ROOT / "examples" / "onnx_int8.py"
    out = run(script, "--model", "net.onnx", "--inputs", "inputs.npz", "--save", "int8.onnx", cwd=tmp_path)
    assert f"net.onnx: 100% of {2 * 8 * 144 * 27 + 2 * 32} multiply-accumulates" in out
    assert float(re.search(r"y: cosine of both results ([\d.]+)", out)[1]) > 0.999
    again = run(script, "--model", "int8.onnx", cwd=tmp_path)
    assert "int8.onnx: 100% of" in again and "the file is quantized already" in again


def asks_for_packages(script, folder):
    """Whether packages that the example reads text with are missing; then it must say so."""
    if find_spec("PIL") and find_spec("rapidocr_onnxruntime"):
        return False
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", cwd=folder)
    assert done.returncode == 1 and "this example needs" in done.stderr and "pip install" in done.stderr
    return True


def test_generate_text(tmp_path):
    out = run(ROOT / "examples" / "generate_text.py", "--tokens", "48", "--layers", "1", "--threads", "1", cwd=tmp_path)
    texts = dict(re.findall(r"^(f32|4 bits): [\d,]+ letters/s, 100% of them as in the text\n((?:.+\n)+)", out,
                            re.MULTILINE))
    assert list(texts) == ["f32", "4 bits"] and texts["f32"] == texts["4 bits"]
    assert "|gly.\nExplicit is better than implicit.\n" in texts["f32"]


def test_quantize_text_recognizer(tmp_path):
    pytest.importorskip("onnx")
    script = ROOT / "examples" / "quantize_text_recognizer.py"
    if asks_for_packages(script, tmp_path):
        return
    out = run(script, "--lines", "2", "--batches", "2", cwd=tmp_path)
    assert re.search(r"^automatic +\d+\.\d %", out, re.MULTILINE) and "in cross-validation" in out


def test_onnx_int8_reads_text(tmp_path):
    pytest.importorskip("onnx")
    script = ROOT / "examples" / "onnx_int8.py"
    if asks_for_packages(script, tmp_path):
        return
    out = run(script, "Twelve 8-bit words", cwd=tmp_path)
    assert out.count("'Twelve 8-bit words'") == 3


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_score_images(tmp_path, engine):
    for package in ("sklearn", "distributed" if engine == "dask" else "ray"):
        pytest.importorskip(package)
    script = ROOT / "examples" / "score_images.py"
    done = subprocess.run([sys.executable, script, "--engine", engine, "--images", "600"], cwd=tmp_path,
                          capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr  # the engines' own messages are on stderr
    assert f"{engine}: 600 images" in done.stdout and "bits equal to the bits of one process" in done.stdout


def post(url, body):
    """The status and the answer of a request in JSON."""
    request = urllib.request.Request(url, body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def test_embeddings(tmp_path):
    """A text has the same vector from a file, alone over HTTP, and in a batch with others."""
    script, texts = ROOT / "examples" / "embeddings.py", ["One.", "", "Several words, and some more of them."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert "vectors.npy: 3 vectors of 128" in run(script, "texts.txt", "--threads", "2", cwd=tmp_path)
    want = np.load(tmp_path / "vectors.npy")
    with subprocess.Popen([sys.executable, script, "--serve", "0", "--threads", "1"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, encoding="utf-8") as process:
        url = process.stdout.readline().partition(",")[0]
        answers = [post(url, {"texts": some})[1]["vectors"] for some in (texts, texts[::-1], *([t] for t in texts))]
        refused = [post(url, body)[0] for body in (b"[" * 99999, b"{}", {"texts": [1]}, {"texts": []})]
        refused += [post(url, {"texts": ["\ud800"]})[0]]  # not a character
        process.kill()
    got = np.array([*answers[0], *answers[1][::-1], *(one[0] for one in answers[2:])], np.float32)
    assert np.array_equal(got, np.concatenate([want] * 3)) and refused == [400] * 4 + [422]
