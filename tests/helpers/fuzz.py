"""Random ONNX models and random graphs, for as long as one likes: what graphq makes of them agrees with the reference.

    python tests/helpers/fuzz.py [--hours 1] [--seed 0] [--kinds onnx graphs control] [--one KIND:SEED]

Each seed is one model: its graph's reference must agree with ONNX's evaluator, the formulas after all passes with the
reference, and, for one model of `--compiled` (8), kernels at a random ISA level and thread count with the formulas, bit
for bit. Reports of compiled models never raise. "signs" are random graphs with scales of any sign. Models of the kind
`control` have If, Loop and Scan with random bodies; their reference, kernels and saved form must equal ONNX Runtime.
Prints a line for each fault, with the seed that repeats it; the exit code says whether there was one.
tests/test_random.py runs the first seeds.
"""
from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
import warnings
from typing import Any

from differential import faults
from random_graphs import random_graph
from random_onnx import random_model
from random_onnx_control import control_faults, random_control

import graphq as gq
from graphq.kernels.target import isa

KINDS = ("onnx", "graphs", "signs", "control")


def check_reports(graph: gq.Graph, feeds: dict[str, Any], **options: Any) -> None:
    """Ask a model for all its reports; none may raise."""
    model = gq.compile(graph, **options)
    model(feeds)
    model.explain(full=True)
    model.explain(full=True, kernels=True, format="json")
    profile = model.profile(feeds, runs=1)
    with tempfile.TemporaryDirectory() as folder:
        model.report(os.path.join(folder, "page.html"), feeds, profile=profile)


def check(kind: str, seed: int, *, compiled: bool, reports: bool = False) -> list[str]:
    """The faults of one seed; an exception is one."""
    chosen = random.Random(seed)
    options = {"isa": chosen.choice([level.name for level in isa.available()]), "threads": chosen.randint(1, 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in ("graphs", "signs"):
            graph, feeds = random_graph(seed, signs=kind == "signs")
            nodes = " ".join(n.op.name for n in graph.nodes if n.op.name != "constant")
        else:
            made = random_model(seed) if kind == "onnx" else random_control(seed)
            nodes = f"opset {made.model.opset_import[0].version}: {' '.join(n.op_type for n in made.model.graph.node)}"
        try:
            if kind == "onnx":
                found = faults(gq.load_onnx(made.model), made.feeds, made.wanted, compiled=compiled, **options)
            elif kind in ("graphs", "signs"):
                found = faults(graph, feeds, compiled=compiled, **options)
            else:
                found = control_faults(made, compiled=compiled, **options)
            if reports and compiled:
                graph, feeds = (graph, feeds) if kind in ("graphs", "signs") else (gq.load_onnx(made.model), made.feeds)
                check_reports(graph, feeds, **options)
        except Exception as e:  # what is looked for
            found = [f"{type(e).__name__}: {e}"]
    return [f"{kind}:{seed} ({nodes}): {text[:500]}" for text in found]


def main() -> int:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--compiled", type=int, default=8, help="one model of so many is compiled")
    parser.add_argument("--one", help="only this one, such as onnx:17, compiled")
    given = parser.parse_args()
    if given.one:
        kind, _, seed = given.one.partition(":")
        found = check(kind, int(seed), compiled=True, reports=True)
        print(*found or ["no fault"], sep="\n")
        return len(found)
    if "GRAPHQ_CACHE_DIR" not in os.environ:  # kernels of random graphs are used once
        os.environ["GRAPHQ_CACHE_DIR"] = tempfile.mkdtemp(prefix="graphq-fuzz-")
    end, total, wrong = time.monotonic() + 3600 * given.hours, 0, 0
    for seed, kind in ((seed, kind) for seed in itertools.count(given.seed) for kind in given.kinds):
        if time.monotonic() > end:
            break
        found = check(kind, seed, compiled=seed % given.compiled == 0, reports=True)
        total, wrong = total + 1, wrong + bool(found)
        for text in found:
            print(text, flush=True)
    print(f"{total} models from seed {given.seed} on in {given.hours:g} hours, {wrong} with faults")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
