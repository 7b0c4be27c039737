"""Measure the time to the first result in a new process, with an empty and with a filled kernel cache.

    python benchmarks/startup.py [--runs N] [--isa LEVEL] [--threads N]

Each run starts two Python processes with one new cache folder: "cold" compiles and fills the folder, "warm" loads from
it. The script prints medians of the runs in seconds: importing NumPy, importing graphq, compiling the graph and running
it once, and the whole process. The graph is a perceptron of three int8 layers with different epilogues.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from model_files import BYTECODE

CHILD = """
import json, sys, time
options = json.loads(sys.argv[1])
t = [time.perf_counter()]
import numpy as np
t.append(time.perf_counter())
import graphq as gq
from graphq.kernels.jit.modules import statistics
t.append(time.perf_counter())
rng = np.random.default_rng(0)
g = gq.Graph("perceptron")
y = g.input("x", shape=(64, 256), dtype="u8")
for n, act in ((512, g.relu), (512, g.gelu), (64, g.sigmoid)):
    k = y.shape[1]
    w = g.constant(rng.integers(-127, 128, (k, n), dtype=np.int8))
    w = g.dequantize(w, qtype="per_channel", axis=1, scales=rng.uniform(1e-4, 4e-4, n).tolist())
    y = g.bias_add(g.matmul(g.dequantize(y, scales=[0.02], zps=[120]), w), rng.standard_normal(n).astype(np.float32))
    y = g.quantize(act(y), dtype="u8", scales=[0.02], zps=[3])
g.output(y, name="y")
model = gq.compile(g, isa=options["isa"], threads=options["threads"])
model(x=rng.integers(0, 256, (64, 256), dtype=np.uint8))
t.append(time.perf_counter())
names = ("import numpy", "import graphq", "first result")
print(json.dumps({**{n: b - a for n, a, b in zip(names, t, t[1:])},
                  "compiled": statistics().compiled, "loaded": statistics().loaded}))
"""


def run_once(folder: str, options: dict[str, Any]) -> dict[str, float]:
    """Start a process; returns its times and counts, and the seconds of the whole process."""
    environment = {**os.environ, **BYTECODE, "GRAPHQ_CACHE_DIR": folder}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(options)], env=environment,
                          capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"the measured process failed:\n{done.stderr}")
    return {**json.loads(done.stdout), "process": seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    options = {"isa": given.isa, "threads": given.threads}

    results: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            for runs in results.values():
                runs.append(run_once(folder, options))
    columns = list(results["cold"][0])
    print(" " * 5 + "".join(f"{c:>14s}" for c in columns))
    for state, runs in results.items():
        medians = [statistics.median(r[c] for r in runs) for c in columns]
        cells = (f"{m:14.0f}" if c in ("compiled", "loaded") else f"{m:14.3f}"
                 for c, m in zip(columns, medians, strict=True))
        print(f"{state:5s}" + "".join(cells))


if __name__ == "__main__":
    main()
