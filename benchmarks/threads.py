"""Measure costs and gains of threads in the situations of a service, and compare with an earlier commit.

    python benchmarks/threads.py [FILE.onnx ...] [--against COMMIT] [--threads N]

Each version runs in separate processes, in turns. A row has the median and the 99th percentile of a process's calls (as
medians of ROUNDS processes), and the ratio of the earlier time to the current time. The rows are:

- a parallel step of a plan, minus its share of the work
- small calls
- each model: with one thread, back to back, with pauses between calls, with more threads than cores
- each model next to a process that keeps a core busy, with eight concurrent callers (time per call), and next to a
  parallel loop of Numba in another thread
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import timing

ROUNDS = 3

CHILD = '''
import json, sys, threading, time
import numpy as np, graphq as gq
case, path, threads, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

def timed(call, pause=0.0):
    """Milliseconds of calls: the median, and the 99th percentile."""
    call(); time.sleep(1.5); call(); call()  # helpers of a version to compare with may begin late
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        if pause: time.sleep(pause)
        start = time.perf_counter(); call(); found.append(1e3 * (time.perf_counter() - start))
    return np.percentile(found, [50, 99]).tolist()

def chain(steps, rows, threads):
    g = gq.Graph(); y = g.input("x", shape=(rows, 256), dtype="f32")
    for _ in range(steps): y = g.softmax(y, axis=1)
    g.output(y); model, x = gq.compile(g, threads=threads), np.ones((rows, 256), np.float32)
    return lambda: model(x=x)

if case == "step":
    alone, shared = (timed(chain(200, 64, t)) for t in (1, threads))
    out = [1e3 * (shared[0] - alone[0] / threads) / 200] * 2
elif case == "small":
    out = [1e3 * t for t in timed(chain(1, 256, threads), pause=0.005)]
else:
    with np.load(path[:-5] + ".npz") as z:
        feeds = {k.split("/", 2)[2]: z[k] for k in z if k.startswith("0/in/")}
    model = gq.compile(gq.load_onnx(path), threads=1 if case == "one thread" else threads)
    call = lambda: model(feeds)
    if case == "8 callers":
        call(); time.sleep(1.5); call()
        done, end = [0] * 8, time.perf_counter() + seconds
        def work(k):
            while time.perf_counter() < end: call(); done[k] += 1
        callers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        [t.start() for t in callers]; [t.join() for t in callers]
        out = [1e3 * seconds / sum(done)] * 2
    elif case == "beside Numba":
        import numba
        @numba.njit(parallel=True, nogil=True)
        def loop(x):
            for _ in range(100):
                for k in numba.prange(x.size): x[k] = x[k] * 0.5 + 1
        x = np.ones(20_000); loop(x); stop = []
        def others():
            while not stop: loop(x)
        beside = threading.Thread(target=others); beside.start()
        try: out = timed(call)
        finally: stop.append(1); beside.join()
    else:
        out = timed(call, {"every 3 ms": 0.003, "every 20 ms": 0.02}.get(case, 0.0))
print(json.dumps(out), flush=True)
import os; os._exit(0)
'''
MODEL_CASES = ("one thread", "back to back", "every 3 ms", "every 20 ms", "beside a busy process", "16 threads",
               "8 callers", "beside Numba")


def package(commit: str, folder: str) -> str:
    """Extract a commit's package into a folder; returns the entry for PYTHONPATH."""
    root = str(Path(__file__).parents[1])
    archive = subprocess.run(["git", "-C", root, "archive", commit, "graphq", "kernels", "passes"], capture_output=True,
                             check=True).stdout
    subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
    for name in ("kernels", "passes"):
        os.rename(Path(folder) / name, Path(folder) / "graphq" / name)
    return folder


def measured(case: str, path: str, threads: int, seconds: float, environment: dict[str, str]) -> list[float]:
    """Run a case in a new process; returns its numbers."""
    if case == "16 threads":
        threads, environment = 16, environment | {"NUMBA_NUM_THREADS": "16"}
    with timing.busy(int(case == "beside a busy process")):
        done = subprocess.run([sys.executable, "-P", "-c", CHILD, case, path, str(threads), str(seconds)],
                              capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{case} failed:\n{done.stderr}")
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def main() -> None:
    """Measure, and print a line per case."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", nargs="*", help="ONNX models, each with a .npz next to it (benchmarks/model_files.py)")
    made.add_argument("--against", metavar="COMMIT", help="a commit of this repository to compare with")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--seconds", type=float, default=1.0, help="seconds for each process (default 1)")
    options = made.parse_args()
    cases = [("step", "us"), ("small", "us")]
    with tempfile.TemporaryDirectory() as folder:
        sides = {"now": {"GRAPHQ_CACHE_DIR": f"{folder}/now-cache"}}
        if options.against:
            os.mkdir(f"{folder}/before")
            sides["before"] = {"GRAPHQ_CACHE_DIR": f"{folder}/before-cache",
                               "PYTHONPATH": package(options.against, f"{folder}/before")}
        rows = [(case, "", unit) for case, unit in cases]
        rows += [(case, path, "ms") for path in options.files for case in MODEL_CASES]
        for case, path, unit in rows:
            found: dict[str, list[list[float]]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, environment in sides.items():
                    found[name].append(measured(case, path, options.threads, options.seconds, environment))
            middle = {name: [statistics.median(x) for x in zip(*runs, strict=True)] for name, runs in found.items()}
            text = f"{Path(path).stem:18s} {case:22s} {unit}" + "".join(
                f" | {name} {median:8.2f} (p99 {most:8.2f})" for name, (median, most) in middle.items())
            if "before" in middle:
                text += f" | {middle['before'][0] / middle['now'][0]:5.2f}"
            print(text, flush=True)


if __name__ == "__main__":
    main()
