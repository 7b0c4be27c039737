"""Batch scoring on Dask and Ray: rows a second by workers, the engine's cost of a batch, rows lost to killed workers.

    python benchmarks/scoring.py [--engine dask|ray|both] [--workers 1 2 4] [--batch 4096] [--seconds 20]
        [--kills 20] [--simulated 8 16]

The model is a perceptron of u8 rows of 512 with three layers of 2,048, quantized; its worker makes the rows
of a batch from their numbers. Each worker has one thread. Rows a second are those between a run
of a fourth of the rows and one of all, so that what a run takes to begin (Ray starts its actors for each) is a figure
of its own. Efficiency is over min(workers, cores) processes without an engine, which make and score the same batches
at a time; the cores of a machine may slow each other down. The engine's cost of a batch is what one worker takes for
each batch of a run that makes no rows and has no model. A run with a kill ends one worker's process by SIGKILL at a
random time; all of its rows are compared with those of one process. More workers than cores are simulated: they make
no rows, and wait for as long as a batch takes; efficiency is then what the engine itself lets them reach.
"""
from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

import graphq as gq
from graphq.scoring import score

WIDTH, LAYER = 512, 2048

BLOCK = 4096
"""Rows of a block of Ray's at least."""


def perceptron() -> gq.Graph:
    """The model; its output is one number a row."""
    rng = np.random.default_rng(0)
    g = gq.Graph("perceptron")
    x = g.input("x", shape=(None, WIDTH), dtype="u8")
    for inputs in (WIDTH, LAYER, LAYER):
        weights = g.constant(rng.integers(-127, 128, (inputs, LAYER), dtype=np.int8))
        y = g.relu(g.matmul(g.dequantize(x, scales=[0.02], zps=[3]), g.dequantize(weights, scales=[0.001])))
        x = g.quantize(y, dtype="u8", scales=[0.02], zps=[3])
    g.output(g.reduce_mean(y, axes=[-1]), name="y")
    return g


def rows_of(ids: np.ndarray) -> np.ndarray:
    """The rows of these numbers."""
    return ((ids[:, None] * 31 + np.arange(WIDTH) * (ids[:, None] % 13 + 1)) % 251).astype(np.uint8)


def waited(batch: Any, seconds: float) -> Any:
    """The batch as it is, after a while."""
    time.sleep(seconds)
    return batch


def with_rows(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch of numbers with their rows."""
    return {"id": batch["id"], "x": rows_of(batch["id"])}


class Cluster(NamedTuple):
    """An engine with workers.

    `run(count, work)` gives the results of as many rows in order: of the model at a path, or, where work is a number of
    seconds, the rows' numbers after so long a wait for each batch. `processes` gives the scoring processes.
    """

    run: Callable[[int, str | float], np.ndarray]
    processes: Callable[[], list[int]]


@contextmanager
def dask_cluster(workers: int, batch: int) -> Iterator[Cluster]:
    """Dask's local cluster."""
    import dask
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    def run(count: int, work: str | float) -> np.ndarray:
        ids = da.arange(count, chunks=batch)
        if isinstance(work, str):
            rows = ids.map_blocks(rows_of, new_axis=1, chunks=(ids.chunks[0], (WIDTH,)), dtype=np.uint8)
            found = score(rows, work)
        else:
            found = ids.map_blocks(waited, seconds=work, dtype=ids.dtype)
        return np.asarray(client.compute(found).result())

    with dask.config.set({"distributed.scheduler.allowed-failures": 100}), \
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None,
                         silence_logs=logging.CRITICAL) as cluster, Client(cluster) as client:
        client.wait_for_workers(workers)
        yield Cluster(run, lambda: list(client.run(os.getpid).values()))


@contextmanager
def ray_cluster(workers: int, batch: int) -> Iterator[Cluster]:
    """Ray's actors, and a core more for the tasks that make the rows."""
    import psutil
    import ray
    import ray.data

    class Waiting:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return waited(batch, self.seconds)

    def run(count: int, work: str | float) -> np.ndarray:
        ids = ray.data.range(count, override_num_blocks=max(1, count // max(batch, BLOCK)))
        options: dict[str, Any] = {"batch_size": batch, "concurrency": workers}
        if isinstance(work, str):
            found = score(ids.map_batches(with_rows, batch_size=batch), work, keep=["id"], **options)
        else:
            found = ids.map_batches(Waiting, fn_constructor_args=(work,), batch_format="numpy", **options)
        table = found.to_pandas().sort_values("id")
        if not np.array_equal(table["id"], np.arange(count)):
            raise SystemExit(f"rows lost or double: {len(table)} of {count}")
        return table["y" if isinstance(work, str) else "id"].to_numpy()

    def processes() -> list[int]:
        return [p.pid for p in psutil.Process().children(recursive=True) if "ScoringActor" in " ".join(p.cmdline())]

    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield Cluster(run, processes)
    finally:
        ray.shutdown()


CLUSTERS = {"dask": dask_cluster, "ray": ray_cluster}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What a function gives, and its seconds."""
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start


def rate_of(cluster: Cluster, few: int, count: int, work: str | float) -> tuple[np.ndarray, float, float]:
    """What a run of `count` rows gives, rows a second beyond the first `few`, and the seconds until the first row."""
    _, short = timed(cluster.run, few, work)
    found, usual = timed(cluster.run, count, work)
    rate = (count - few) / (usual - short)
    return found, rate, usual - count / rate


def alone(model: str, batch: int, seconds: float) -> float:
    """Rows a second of this process."""
    predictor, ids, batches = gq.Predictor(model, threads=1), np.arange(batch), 0
    predictor({"x": rows_of(ids)})
    start = time.perf_counter()
    while not batches or time.perf_counter() - start < seconds:
        predictor({"x": rows_of(ids + batches * batch)})
        batches += 1
    return batches * batch / (time.perf_counter() - start)


def together(processes: int, model: str, batch: int, seconds: float) -> float:
    """Rows a second of processes that run at a time, without an engine."""
    with get_context("spawn").Pool(processes) as pool:
        return sum(pool.starmap(alone, [(model, batch, seconds)] * processes, chunksize=1))


def killed(cluster: Cluster, model: str, expected: np.ndarray, usual: float) -> bool:
    """Run once, and kill a process at a random time of it; whether one was killed before the end."""
    done, hit = threading.Event(), []

    def kill() -> None:
        if not done.wait(random.uniform(0.1, 0.8) * usual):
            for process in cluster.processes()[:1]:
                os.kill(process, signal.SIGKILL)
                hit.append(process)

    thread = threading.Thread(target=kill)
    thread.start()
    found = cluster.run(len(expected), model)
    done.set()
    thread.join()
    if not np.array_equal(found, expected):
        raise SystemExit(f"{np.sum(found != expected)} of {len(expected)} rows differ after a kill")
    return bool(hit)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=[*CLUSTERS, "both"], default="both")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch")
    parser.add_argument("--seconds", type=float, default=20, help="about how long one process takes for all rows")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--simulated", type=int, nargs="*", default=[], help="numbers of workers that only wait")
    options = parser.parse_args()

    random.seed(0)
    batch = options.batch
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "perceptron.graphq")
        gq.compile(perceptron(), threads=1).save(model)
        counts = sorted({min(w, cores) for w in [1, *options.workers]})
        base = {n: together(n, model, batch, options.seconds / 2) for n in counts}
        few, count = (max(1, int(base[1] * options.seconds / part) // batch) * batch for part in (4, 1))
        predictor = gq.Predictor(model, threads=1)
        expected = np.concatenate([predictor({"x": rows_of(np.arange(k, k + batch))})["y"]
                                   for k in range(0, count, batch)])
        print(f"{cores} cores; {count} rows in batches of {batch}; without an engine " +
              ", ".join(f"{n} processes {rate:,.0f} rows/s" for n, rate in base.items()) +
              f"; {1000 * batch / base[1]:.1f} ms a batch", flush=True)
        for engine in CLUSTERS if options.engine == "both" else [options.engine]:
            for workers in options.workers:
                with CLUSTERS[engine](workers, batch) as cluster:
                    cluster.run(4 * batch * workers, model)  # loads the model in each worker
                    found, rate, begin = rate_of(cluster, few, count, model)
                    if not np.array_equal(found, expected):
                        raise SystemExit(f"{engine}: results differ from those of one process")
                    print(f"{engine}, {workers} workers: {rate:,.0f} rows/s, efficiency "
                          f"{rate / base[min(workers, cores)]:.2f}; {begin:.2f} s until the first row", flush=True)
                    if workers == options.workers[0]:
                        _, rate, _ = rate_of(cluster, few, count, 0.0)
                        print(f"{engine}: {1000 * workers * batch / rate:.2f} ms of the engine a batch", flush=True)
            for workers in options.simulated:
                with CLUSTERS[engine](workers, batch) as cluster:
                    cluster.run(4 * batch * workers, 0.0)
                    _, rate, _ = rate_of(cluster, few * workers, count * workers, batch / base[1])
                    print(f"{engine}, {workers} simulated workers: efficiency {rate / (base[1] * workers):.2f}",
                          flush=True)
            if options.kills:
                with CLUSTERS[engine](2, batch) as cluster:
                    cluster.run(8 * batch, model)
                    _, usual = timed(cluster.run, count, model)
                    hits = 0
                    for _ in range(4 * options.kills):
                        hits += killed(cluster, model, expected, usual)
                        if hits == options.kills:
                            break
                    print(f"{engine}: {hits} workers killed, 0 of {hits * count} rows lost, double or different",
                          flush=True)


if __name__ == "__main__":
    main()
