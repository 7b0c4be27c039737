"""Measure batch scoring on Dask and Ray: rows per second, the engine's cost per batch, rows lost to kills.

    python benchmarks/scoring.py [--engine dask|ray|both] [--workers 1 2 4] [--batch 4096] [--seconds 20]
        [--kills 20] [--simulated 8 16]

The model is a quantized perceptron with u8 rows of 512 and three layers of 2,048. A worker has one thread, and makes
the rows of a batch from their row numbers.

Rows per second are computed from the difference between a run of all rows and a run of a fourth of them. The start of a
run is therefore not included; it is printed separately (Ray starts its actors for each run). Efficiency is relative to
min(workers, cores) processes without an engine that make and score the same batches at the same time, because cores may
slow each other down. The engine's cost per batch is the time of one worker per batch, in a run without rows and model.

In a run with a kill, SIGKILL ends a worker's process at a random time; all rows are then compared with the rows of a
single process. More workers than cores are simulated: they only wait for as long as a batch takes. Their efficiency
shows the limit that the engine itself sets.
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
"""The fewest rows of a Ray block."""


def perceptron() -> gq.Graph:
    """The model; it has one output number per row."""
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
    """The rows with these numbers."""
    return ((ids[:, None] * 31 + np.arange(WIDTH) * (ids[:, None] % 13 + 1)) % 251).astype(np.uint8)


def waited(batch: Any, seconds: float) -> Any:
    """Wait, and return the batch unchanged."""
    time.sleep(seconds)
    return batch


def with_rows(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the rows to a batch of row numbers."""
    return {"id": batch["id"], "x": rows_of(batch["id"])}


class Cluster(NamedTuple):
    """An engine with workers.

    `run(count, work)` scores `count` rows and returns the results in order. `work` is the path of a model, or a number
    of seconds: then each batch waits so long, and the results are row numbers. `processes` returns the scoring
    processes.
    """

    run: Callable[[int, str | float], np.ndarray]
    processes: Callable[[], list[int]]


@contextmanager
def dask_cluster(workers: int, batch: int) -> Iterator[Cluster]:
    """A local cluster of Dask."""
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
    """Actors of Ray, and one more core for the tasks that make the rows."""
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
            raise SystemExit(f"rows lost or duplicated: {len(table)} of {count}")
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
    """Call a function; returns its result and the seconds."""
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start


def rate_of(cluster: Cluster, few: int, count: int, work: str | float) -> tuple[np.ndarray, float, float]:
    """Score `count` rows; returns results, rows per second after the first `few`, and the seconds to the first row."""
    _, short = timed(cluster.run, few, work)
    found, usual = timed(cluster.run, count, work)
    rate = (count - few) / (usual - short)
    return found, rate, usual - count / rate


def alone(model: str, batch: int, seconds: float) -> float:
    """Rows per second of this process, without an engine."""
    predictor, ids, batches = gq.Predictor(model, threads=1), np.arange(batch), 0
    predictor({"x": rows_of(ids)})
    start = time.perf_counter()
    while not batches or time.perf_counter() - start < seconds:
        predictor({"x": rows_of(ids + batches * batch)})
        batches += 1
    return batches * batch / (time.perf_counter() - start)


def together(processes: int, model: str, batch: int, seconds: float) -> float:
    """Rows per second of concurrent processes without an engine."""
    with get_context("spawn").Pool(processes) as pool:
        return sum(pool.starmap(alone, [(model, batch, seconds)] * processes, chunksize=1))


def killed(cluster: Cluster, model: str, expected: np.ndarray, usual: float) -> bool:
    """Run once and kill a process at a random time; returns whether the kill came before the end."""
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
    parser.add_argument("--batch", type=int, default=4096, help="rows per batch")
    parser.add_argument("--seconds", type=float, default=20, help="approximate time of one process for all rows")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--simulated", type=int, nargs="*", default=[], help="numbers of simulated workers")
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
              f"; {1000 * batch / base[1]:.1f} ms per batch", flush=True)
        for engine in CLUSTERS if options.engine == "both" else [options.engine]:
            for workers in options.workers:
                with CLUSTERS[engine](workers, batch) as cluster:
                    cluster.run(4 * batch * workers, model)  # load the model in each worker
                    found, rate, begin = rate_of(cluster, few, count, model)
                    if not np.array_equal(found, expected):
                        raise SystemExit(f"{engine}: results differ from a single process's")
                    print(f"{engine}, {workers} workers: {rate:,.0f} rows/s, efficiency "
                          f"{rate / base[min(workers, cores)]:.2f}; {begin:.2f} s until the first row", flush=True)
                    if workers == options.workers[0]:
                        _, rate, _ = rate_of(cluster, few, count, 0.0)
                        print(f"{engine}: {1000 * workers * batch / rate:.2f} ms of the engine per batch", flush=True)
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
                    print(f"{engine}: {hits} workers killed, 0 of {hits * count} rows lost, duplicated or different",
                          flush=True)


if __name__ == "__main__":
    main()
