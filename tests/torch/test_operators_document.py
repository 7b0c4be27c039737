"""docs/from_torch_operators.md lists the operators of the table."""
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_operators_is_current():
    done = subprocess.run([sys.executable, DOCS / "from_torch.py"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    text = (DOCS / "from_torch_operators.md").read_text(encoding="utf-8")
    assert done.stdout == text, "run: python docs/from_torch.py > docs/from_torch_operators.md"
