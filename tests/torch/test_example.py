"""The example trains a network, and all ways to run it agree."""
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("sklearn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_int8.py"


def test_torch_int8(tmp_path):
    known = entry_points(group="torch_dynamo_backends", name="graphq")  # none in a checkout that is not installed
    without = ["encoder", "inductor", *(["torch.compile"] if not known else [])]
    options = [x for text in without for x in ("--without", text)]
    done = subprocess.run([sys.executable, EXAMPLE, "--seconds", "0.01", "--epochs", "2", *options],
                          capture_output=True, encoding="utf-8", cwd=tmp_path, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\nCNN, batch 1, threads: 1\n")
    found = {name.strip(): float(x) for name, x in re.findall(r"^(.+?) +([\d.]+)% ", done.stdout, re.MULTILINE)}
    assert {"eager f32", "graphq f32", "graphq int8"} <= found.keys()
    assert all(abs(x - found["eager f32"]) < (0.3 if "f32" in name else 5) for name, x in found.items())
