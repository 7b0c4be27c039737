"""The benchmarks run, with whatever peers are installed; their times are nobody's business here."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def run(name, *arguments):
    return subprocess.run([sys.executable, FOLDER / name, "--seconds", "0.001", "--threads", "1", *map(str, arguments)],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.parametrize(("name", "case", "macs", "variants"), [
    ("matmul.py", "mm_gemv", 1024 * 1024, ["u8", "s8", "gelu_add", "f32", "4bit"]),
    ("conv.py", "conv_1x1_256", 56 * 56 * 256 * 64, ["u8"])])
def test_rows(tmp_path, name, case, macs, variants):
    done = run(name, "--variant", *variants, "--case", case, "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(r["variant"], r["case"], r["threads"], r["macs"]) for r in rows] == [(v, case, 1, macs) for v in variants]
    for row in rows:
        assert row["graphq"]["minimum_ms"] > 0 and row["graphq"]["tops"] > 0
        for peer in {"ONNX Runtime", "oneDNN", "NumPy", "8-bit weights"} & set(row):
            assert row[peer]["largest_difference"] <= row["tolerance"]
    assert done.stdout.count(f"\n{case} ") == len(variants) and done.stdout.startswith("u8\ncase ")


def test_wrong_arguments():
    done = run("matmul.py", "--case", "mm_none")
    assert done.returncode == 2 and "invalid choice: 'mm_none'" in done.stderr
