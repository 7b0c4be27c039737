"""The notebook of the examples runs as it stands, and the repository has it without outputs."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parent.parent / "examples" / "tour.ipynb"
RUN = """
import sys
import nbformat
from nbclient import NotebookClient
made = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(made, kernel_name="python3", timeout=300).execute()
nbformat.write(made, sys.argv[2])
"""


def code(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_the_repository_has_no_outputs():
    assert len(code(TOUR)) > 10
    for cell in code(TOUR):
        assert cell["outputs"] == [] and cell["execution_count"] is None and cell["metadata"] == {}


def test_it_runs_and_shows_tables_and_pictures(tmp_path):
    for name in ("nbclient", "ipykernel"):
        pytest.importorskip(name)
    done = subprocess.run([sys.executable, "-c", RUN, TOUR, tmp_path / "done.ipynb"], cwd=tmp_path, capture_output=True,
                          encoding="utf-8", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    shown = {"".join(cell["source"]).splitlines()[-1]: cell["outputs"][-1].get("data", {})
             for cell in code(tmp_path / "done.ipynb") if cell["outputs"]}
    for last, mark, text in (("g", "<details", "<graph two_layers"),
                             ("model", "<details", "<compiled graph two_layers"),
                             ("model.explain()", "<table>", "graph two_layers: 2 partitions (1 integer)"),
                             ("edited.explain()", "<table>", "graph two_layers: 2 partitions (2 integer)"),
                             ("edited.profile(data)", "<table>", "2 steps"),
                             ("g.partitions()", "<table>", "partition 0 matmul")):
        assert mark in "".join(shown[last]["text/html"]) and "".join(shown[last]["text/plain"]).startswith(text), last
    assert (tmp_path / "two_layers.html").is_file()
