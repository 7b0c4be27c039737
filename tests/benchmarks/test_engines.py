"""The networks for PyTorch have the file's numbers; the chart and the figures of pages are those of the JSON."""
import json
import subprocess
import sys
from pathlib import Path

import engines_chart
import numpy as np
import pytest
import timing

ROOT = Path(__file__).parents[2]
FIGURES = json.loads((ROOT / "docs" / "engines.json").read_text(encoding="utf-8"))
NET = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 2, 5, 5] x) => (float[1, 3] y)
    <float s = {0.02}, uint8 z = {0}, uint8 m = {128}, int8[3, 2, 1, 1] w = {50, -50, 30, 20, -10, 90}, int8 n = {0},
     int64[2] shape = {0, -1}, float[75, 3] v>
    {
      a = QuantizeLinear (x, s, m)
      b = DequantizeLinear (a, s, m)
      f = DequantizeLinear (w, s, n)
      c = Conv <pads = [0, 0, 0, 0]> (b, f)
      d = QuantizeLinear (c, s, z)
      e = DequantizeLinear (d, s, z)
      r = Reshape (e, shape)
      y = MatMul (r, v)
    }"""


@pytest.fixture
def net(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.standard_normal((75, 3)).astype(np.float32), "v")
    kept = [t for t in model.graph.initializer if t.name != "v"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, weights])
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_the_network_in_pytorch_has_the_numbers_without_rounding(net):
    torch = pytest.importorskip("torch")
    from torch_network import network

    import graphq as gq

    x = np.random.default_rng(1).uniform(-1, 1, (1, 2, 5, 5)).astype(np.float32)
    with torch.no_grad():
        (got,) = network(net, {"x": x})(torch.from_numpy(x))
    graph = gq.load_onnx(net)
    sums = np.einsum("oi,nihw->nohw", np.array([[50, -50], [30, 20], [-10, 90]]) * np.float32(0.02), x)
    weights = next(n.output.data for n in graph.nodes if n.op.name == "constant" and n.output.shape == (75, 3))
    np.testing.assert_allclose(got.numpy(), sums.clip(0, 5.1).reshape(1, -1) @ weights, rtol=1e-4, atol=1e-4)


def test_figures(net, tmp_path):
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "engines.py", f"small={net}", "--threads", "1",
                           "--seconds", "0.001", "--cpu-time", "--engines", "ONNX Runtime", "--machine", "mine",
                           "--json", tmp_path / "figures.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    (row,) = figures["rows"]
    assert (figures["machine"], row["model"], row["threads"]) == ("mine", "small", 1)
    assert row["ONNX Runtime"]["speedup"] == row["ONNX Runtime"]["median_ms"] / row["graphq"]["median_ms"]
    assert "PyTorch" not in row and done.stdout.startswith("small, 1 thread: graphq ")


@pytest.mark.parametrize(("name", "colors"), [("light", engines_chart.LIGHT), ("dark", engines_chart.DARK)])
def test_the_chart_shows_the_figures(name, colors):
    assert (ROOT / "docs" / f"engines_{name}.svg").read_text(encoding="utf-8") == \
        engines_chart.draw(FIGURES, 1, colors) + "\n"


def test_pages_quote_the_figures():
    """README and the page on measurements have each speedup with one thread and with two, and their means."""
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/measurements.md"))
    engines = ["PyTorch", "inductor", "ONNX Runtime", "OpenVINO"]
    models = dict.fromkeys(row["model"] for row in FIGURES["rows"])
    assert len(models) == 5 and len(FIGURES["rows"]) == 10

    def both(figure, rows):
        return " / ".join(f"{figure([row for row in rows if row['threads'] == n]):.2f}" for n in (1, 2))

    def cells(rows):
        return " | ".join(both(lambda found, e=e: timing.geometric_mean([row[e]["speedup"] for row in found]), rows)
                          for e in engines)

    for model in models:
        rows = [row for row in FIGURES["rows"] if row["model"] == model]
        times = both(lambda found: found[0]["graphq"]["median_ms"], rows)
        assert f"| {model} | {times} | {cells(rows)} |" in page
        assert f" | {cells(rows)} |" in readme and model in readme
    assert f"| geometric mean |  | {cells(FIGURES['rows'])} |" in page
    assert f"| geometric mean | | {cells(FIGURES['rows'])} |" in readme
