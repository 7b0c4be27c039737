"""docs/onnx_operators.md says what the code has."""
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_operators_is_current():
    text = (DOCS / "onnx_operators.md").read_text(encoding="utf-8")
    if f"onnx {onnx.__version__} " not in text:
        pytest.skip("written with another version of onnx")
    done = subprocess.run([sys.executable, DOCS / "onnx_operators.py"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == text, "run: python docs/onnx_operators.py > docs/onnx_operators.md"
