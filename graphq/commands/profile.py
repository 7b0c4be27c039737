"""Time each step of a model's runs on random or given inputs; --trace writes a timeline of the threads.

The trace shows the run of median length, with one track per thread. Open it in Perfetto (ui.perfetto.dev) or
chrome://tracing.
"""
import argparse
from pathlib import Path

from graphq.commands.arrays import INPUTS, input_arrays
from graphq.commands.shared import MODEL, TARGET, Arguments, compiled, option, write
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (
    *MODEL, *INPUTS, *TARGET,
    option("--runs", type=int, default=20, metavar="N", help="number of runs (default 20)"),
    option("--peaks", action="store_true",
           help="also measure the machine's peak rates, and show each step's share of its peak"),
    option("--trace", type=Path, metavar="FILE.json", help="write a timeline"))


def run(options: argparse.Namespace) -> None:
    """Profile the model, and print the table of its steps."""
    graph = load_graph(options.file)
    arrays = input_arrays(graph, options)
    model = compiled(graph, options)
    profile = model.profile(arrays, runs=options.runs, peaks=options.peaks)
    if options.trace is not None:
        profile.to_chrome_trace(options.trace)
    numbers = {thread: k for k, thread in enumerate(profile.threads)}
    write(options, f"{model!r}\n{profile}", {
        "graph": graph.name, "isa": model.level.name, "threads": model.threads, "runs": options.runs,
        "steps_ms": 1e3 * profile.seconds, "run_ms": 1e3 * profile.elapsed, "steps": [
            {"number": s.number, "kernel": s.kernel, "median_ms": 1e3 * s.seconds, "least_ms": 1e3 * s.least,
             "macs": s.macs, "bytes": s.nbytes, "gops": s.gops, "gigabytes_a_second": s.gigabytes,
             "decisive": s.decisive, "share_of_peak": s.share,
             "pieces": [{"thread": numbers[p.thread], "begin_ms": 1e3 * p.begin, "ms": 1e3 * p.seconds,
                         "blocks": [p.first, p.end]} for p in s.pieces]} for s in profile.steps]})
