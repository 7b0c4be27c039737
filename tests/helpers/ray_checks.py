"""Score on a local cluster of Ray's, and check it: `python ray_checks.py ARTEFACT`. A process of its own, as Ray leaves
processes and warnings behind in the one that started it.
"""
import logging
import os
import signal
import sys

import numpy as np
import psutil
import ray
import ray.data
from scored import model, rows, slowly

import graphq as gq
from graphq.scoring import score

COUNT = 2000


def check(found):
    """Each row once, with the bits of one process."""
    found.sort(key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(COUNT))
    expected = model()(rows(COUNT))
    assert np.array_equal(np.stack([row["y"] for row in found]), expected["y"])
    assert np.array_equal(np.float32([row["best"] for row in found]), expected["best"])


def actors_at_another_level(dataset, artifact):
    for level in ("scalar", "avx2"):
        environment = {"env_vars": {"GRAPHQ_ISA": level}}
        check(score(dataset, artifact, keep=["id"], batch_size=50, concurrency=2, runtime_env=environment).take_all())


def is_actor(process):
    """Whether a process is an actor; children of others come and go meanwhile."""
    try:
        return "ScoringActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def an_actor_is_killed(dataset, artifact):
    scored = score(dataset.map_batches(slowly, batch_size=50), artifact, keep=["id"], batch_size=50, concurrency=2)
    found, killed = [], False
    for batch in scored.iter_batches(batch_size=50, prefetch_batches=0):
        found += [{name: of[k] for name, of in batch.items()} for k in range(len(batch["id"]))]
        if not killed:
            os.kill(next(p.pid for p in psutil.Process().children(recursive=True) if is_actor(p)), signal.SIGKILL)
            killed = True
            assert len(found) < COUNT
    check(found)


def wrong_names(dataset, artifact):
    try:
        score(dataset, artifact, outputs=["z"])
    except gq.InputError as error:
        assert "outputs: the model has 'y' and 'best', not 'z'" in str(error)
    else:
        raise AssertionError("outputs=['z'] was taken")
    try:
        score(dataset, artifact, columns={"x": "picture"}).take_all()
    except ray.exceptions.RayTaskError as error:
        assert "input 'x': there is no column 'picture'" in str(error)
    else:
        raise AssertionError("columns={'x': 'picture'} was taken")


def main(artifact):
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
             runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items([{"x": row, "id": k} for k, row in enumerate(rows(COUNT))], override_num_blocks=40)
    for what in (actors_at_another_level, an_actor_is_killed, wrong_names):
        what(dataset, artifact)
        print(what.__name__, "passed")
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
