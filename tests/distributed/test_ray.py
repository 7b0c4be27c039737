"""score on Ray: the bits of one process, by a pool of actors at different ISA levels, one of which is killed."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scored import model, rows

import graphq as gq
from graphq.distributed import score

ray = pytest.importorskip("ray", reason="the extra ray is not installed (no wheel for this Python or platform?)")
psutil = pytest.importorskip("psutil")
HELPERS = Path(__file__).parent.parent / "helpers"
COUNT = 2000
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    path = tmp_path_factory.mktemp("artefact") / "net.graphq"
    model().save(path)
    return path


@pytest.fixture(scope="module")
def dataset():
    import ray.data

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error",
             runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join((str(HELPERS), os.environ.get("PYTHONPATH", "")))}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data.from_items([{"x": row, "id": k} for k, row in enumerate(rows(COUNT))], override_num_blocks=40)
    ray.shutdown()


def check(found):
    """Each row once, with the bits of one process."""
    found.sort(key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(COUNT))
    expected = model()(rows(COUNT))
    assert np.array_equal(np.stack([row["y"] for row in found]), expected["y"])
    assert np.array_equal(np.float32([row["best"] for row in found]), expected["best"])


@pytest.mark.parametrize("level", ["scalar", "avx2"])
def test_actors_at_another_level_give_the_same_bits(dataset, artefact, level):
    environment = {"env_vars": {"GRAPHQ_ISA": level}}
    check(score(dataset, artefact, keep=["id"], batch_size=50, concurrency=2, runtime_env=environment).take_all())


def test_an_actor_is_killed_in_the_midst(dataset, artefact):
    slow = dataset.map_batches(Slow, batch_size=50, concurrency=1)
    found, killed = [], None
    for row in score(slow, artefact, keep=["id"], batch_size=50, concurrency=2).iter_rows(prefetch_batches=0):
        found.append(row)
        if killed is None:
            actors = [p for p in psutil.Process().children(recursive=True) if "ScoringActor" in " ".join(p.cmdline())]
            killed = actors[0].pid
            os.kill(killed, signal.SIGKILL)
            assert len(found) < COUNT
    assert killed is not None
    check(found)


class Slow:
    """Pass batches on after a while, so that there is a midst to kill an actor in."""

    def __call__(self, batch):
        time.sleep(0.05)
        return batch


def test_wrong_names(dataset, artefact):
    with pytest.raises(gq.InputError, match="outputs: the model has 'y' and 'best', not 'z'"):
        score(dataset, artefact, outputs=["z"])


def test_a_missing_column_is_said_when_it_runs(dataset, artefact):
    with pytest.raises(ray.exceptions.RayTaskError, match="input 'x': there is no column 'picture'"):
        score(dataset, artefact, columns={"x": "picture"}).take_all()


def test_import_of_graphq_imports_no_engine():
    code = "import sys, graphq, graphq.distributed; print([m for m in ('dask', 'ray', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"
