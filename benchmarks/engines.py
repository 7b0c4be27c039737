"""Time int8 model files in graphq, ONNX Runtime and OpenVINO, and their f32 networks in PyTorch, all in turns.

    python benchmarks/engines.py [NAME=]FILE.onnx ... [--threads 1 2] [--seconds S] [--cpu-time] [--engines NAME ...]
                                 [--machine TEXT] [--json FILE]

The files are quantized ONNX models (QuantizeLinear, DequantizeLinear). PyTorch has no kernels for them, so it runs the
same network in f32 (torch_network.py): operator by operator ("eager"), and compiled by torch.compile, whose compiler is
inductor (`pip install torch`; inductor needs g++). All engines have their default settings. Inputs come from FILE.npz
next to the file, or are random (model_files.py).

`--cpu-time` takes the processor time of the process, which other work on the machine changes less; it is the time of a
run only with one thread. Speedups are ratios of medians: above 1, graphq is faster. engines_chart.py draws the JSON.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import model_files as mf
import timing

import graphq as gq
from graphq.commands.peers import OPENVINO, ORT, alternate, missing, model_file

Row = dict[str, Any]
EAGER, INDUCTOR, GRAPHQ = "PyTorch", "inductor", "graphq"
ENGINES = (EAGER, INDUCTOR, ORT, OPENVINO, GRAPHQ)


def arguments() -> argparse.Namespace:
    """The command line, parsed."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", nargs="+", metavar="[NAME=]FILE.onnx")
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    made.add_argument("--seconds", type=float, default=10.0, help="for each file and thread count (default 10)")
    made.add_argument("--cpu-time", action="store_true", help="measure processor time (with --threads 1)")
    made.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="NAME",
                      help=f"engines next to graphq: {', '.join(ENGINES[:-1])} (default: all that are installed)")
    made.add_argument("--machine", metavar="TEXT", help="the machine's name (default: the CPU's name and the cores)")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for all figures")
    options = made.parse_args()
    if options.cpu_time and options.threads != [1]:
        made.error("--cpu-time adds the times of all threads: use it with --threads 1")
    return options


def machine() -> str:
    """The CPU as Linux names it, and the number of cores."""
    names = [x.partition(":")[2].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    return f"{names[0] if names else 'CPU'}, {len(os.sched_getaffinity(0))} cores"


def precisions() -> dict[str, str]:
    """What each engine computes in, by default and on this CPU."""
    narrow = "bf16" in Path("/proc/cpuinfo").read_text()
    return {EAGER: "f32", INDUCTOR: "f32", ORT: "int8", OPENVINO: "int8, floats in bf16" if narrow else "int8",
            GRAPHQ: "int8"}


def torch_runs(path: Path, feeds: mf.Feeds, threads: int) -> dict[str, mf.Run]:
    """The network in PyTorch, eager and compiled."""
    import torch
    from torch_network import images, network

    torch.set_num_threads(threads)
    inputs = [images(torch.from_numpy(x)) for x in feeds.values()]

    def run(module: Any) -> mf.Run:
        def call(_: object) -> list[Any]:
            with torch.no_grad():
                return [y.numpy() for y in module(*inputs)]

        return call

    return {EAGER: run(network(path, feeds)), INDUCTOR: run(torch.compile(network(path, feeds), dynamic=False))}


def measure(name: str, path: Path, threads: int, options: argparse.Namespace) -> Row:
    """The row of one file at one thread count: medians and minima in ms, and speedups over each engine."""
    feeds = mf.inputs_of(path, {})[0][0]
    runs = torch_runs(path, feeds, threads) if find_spec("torch") and {EAGER, INDUCTOR} & set(options.engines) else {}
    runs |= {peer: model_file(peer, str(path), feeds, threads) for peer in (ORT, OPENVINO) if not missing(peer)}
    runs = {engine: run for engine, run in runs.items() if engine in options.engines}
    model = gq.compile(gq.load_onnx(path), threads=threads)
    runs[GRAPHQ] = lambda f: mf.listed(model(f))
    for run in runs.values():
        run(feeds)
    times = alternate([partial(run, feeds) for run in runs.values()], options.seconds,
                      time.process_time if options.cpu_time else time.perf_counter)
    row: Row = {"model": name, "threads": threads}
    for engine, t in zip(runs, times, strict=True):
        row[engine] = {"median_ms": statistics.median(t), "minimum_ms": min(t), "runs": len(t)}
    for engine in set(runs) - {GRAPHQ}:
        row[engine]["speedup"] = row[engine]["median_ms"] / row[GRAPHQ]["median_ms"]
    return row


def text(row: Row) -> str:
    """The line of one file at one thread count."""
    name = f"{row['model']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
    others = [f"{e} {row[e]['median_ms']:.3f} ({row[e]['speedup']:.2f} x)" for e in ENGINES if e != GRAPHQ and e in row]
    return f"{name}: graphq {row[GRAPHQ]['median_ms']:.3f} ms, " + ", ".join(others)


def main() -> int:
    """Measure, print and write."""
    options = arguments()
    rows = []
    begin = os.getloadavg()
    for given in options.files:
        name, _, file = given.rpartition("=")
        for threads in options.threads:
            rows.append(measure(name or Path(file).stem, Path(file), threads, options))
            print(text(rows[-1]), flush=True)
    for threads in options.threads:
        for engine in ENGINES:
            found = [r[engine]["speedup"] for r in rows if r["threads"] == threads and "speedup" in r.get(engine, {})]
            if found:
                print(f"speedup over {engine}, {threads} thread{'s' * (threads > 1)}: geometric mean "
                      f"{timing.geometric_mean(found):.2f}, from {min(found):.2f} to {max(found):.2f}")
    if options.json is not None:
        packages = {EAGER: "torch", ORT: "onnxruntime", OPENVINO: "openvino"}
        facts = {"machine": options.machine or machine(), "load": [begin[0], os.getloadavg()[0]],
                 "clock": "processor time" if options.cpu_time else "wall time",
                 "versions": {GRAPHQ: gq.__version__} | {e: version(p) for e, p in packages.items() if e in rows[0]},
                 "precision": {e: p for e, p in precisions().items() if e in rows[0]}, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
