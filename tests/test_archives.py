"""An archive of the repository has no links `graphq/kernels` and `graphq/passes`; some systems make them text files."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUN = """
import sys
import numpy as np
import graphq as gq
from graphq import passes
from graphq.kernels import families
from graphq.model import kept
g = gq.Graph()
g.output(g.relu(g.input("x", dtype="f32", shape=(4, 8))), name="y")
assert gq.compile(g, threads=1)(np.full((4, 8), 3, "f4")).sum() == 96
before = kept.versions()
with open(passes.__file__, "a") as file:
    file.write("#")
kept.versions.cache_clear()
assert kept.versions() != before  # kept models of other passes are not found
print(families.__file__, passes.__file__, "numba" in sys.modules, sep="\\n")
"""


@pytest.mark.parametrize("links", ["left out", "text files"])
def test_everything_runs_without_links(links, tmp_path):
    for name in ("graphq", "kernels", "passes"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "kernels", "passes")
                        if name == "graphq" else shutil.ignore_patterns("__pycache__"))
        if links == "text files" and name != "graphq":
            (tmp_path / "graphq" / name).write_text(f"../{name}")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "GRAPHQ_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, "-P", "-c", RUN], capture_output=True, text=True, env=environment)
    # Numba is imported by the processes that compile, so these have found the folders, too.
    assert ran.stdout.split() == [str(tmp_path / "kernels" / "families.py"), str(tmp_path / "passes" / "__init__.py"),
                                  "False"], ran.stderr
