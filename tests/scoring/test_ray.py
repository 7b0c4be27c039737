"""score on Ray: the bits of one process, by pools of actors at other ISA levels, and with one that is killed."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scored import model

CHECKS = Path(__file__).parent.parent / "helpers" / "ray_checks.py"


def test_score_on_a_local_cluster(tmp_path):
    for package in ("ray", "psutil"):
        pytest.importorskip(package, reason="the extra ray is not installed: it has no wheel for each Python")
    model().save(tmp_path / "net.graphq")
    done = subprocess.run([sys.executable, CHECKS, tmp_path / "net.graphq"], capture_output=True, encoding="utf-8",
                          cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^(\w+) passed$", done.stdout, re.MULTILINE)  # among what Ray says of the dead actor
    assert passed == ["actors_at_another_level", "an_actor_is_killed", "wrong_names"]


def test_import_of_graphq_imports_no_engine():
    code = "import sys, graphq, graphq.scoring; print([m for m in ('dask', 'ray', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"
