"""Compare graphq's numbers with the numbers of the real oneDNN library, for every oneDNN Graph file of a folder.

    python benchmarks/onednn_oracle.py GRAPHS ORACLE.py --python ONEDNN_ENV/bin/python [--only GLOB] [--inputs KIND]

ORACLE.py binds the `onednn` wheel by ctypes. It defines `random_inputs(spec)`, `OneDNN().run(spec, inputs)` and the
types `NP`. --python is the interpreter of a virtual environment with onednn, onednn-devel, numpy and ml_dtypes. The
oracle draws the inputs (normal distribution, all integers); with --inputs=graphq, graphq draws them (positive scales,
floats in [-1, 1]).

The script prints a line per file, then counts. A file is equal; within (integers 1 step, f32 1e-4 of the largest
number, bf16, f16 and f8 2 ulp); explained, if docs/onednn_differences.md names the file; differs; or not run, if oneDNN
refuses, crashes or is slow.

Two more comparisons show why a file differs. "rounding at" compares fused oneDNN with a reference that keeps f32,
except that it rounds the named tensors, whose rounding explains oneDNN best. "op by op" compares the reference with
oneDNN without fusion: each operation is a partition.
"""
from __future__ import annotations

import argparse
import collections
import fnmatch
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchdnn_knobs import apply_knobs
from benchdnn_text import parse_knobs
from onednn_difference import Arrays, best_rounding, compare

import graphq as gq
from graphq.commands.arrays import accepted_inputs

# Knobs for files that take oneDNN minutes, or have a type (f16) without oneDNN kernels on many CPUs. Files with [] have
# unknown shapes that oneDNN refuses: oneDNN gets them as saved by graphq, with inferred shapes.
OTHERWISE = {
    "timms-sdpa-fwd-no-mask-bf16-f32": ["--mb=4"],
    "torchbench-sdpa-fwd-bf16-f32": ["--mb=1"],
    "torchbench-sdpa-fwd-w-mask-bf16-f32": ["--mb=1"],
    "gqa-plain-bottom-right-implicit-causal-mask-f16-f32": ["--dt=0:bf16+1:bf16+4:bf16+22:bf16+24:bf16+25:bf16"],
    "gated-mlp-f16-f32": ["--dt=0:bf16+1:bf16+4:bf16+14:bf16+15:bf16+16:bf16"],
    "gated-mlp-gelu-f16-f32": ["--dt=0:bf16+1:bf16+4:bf16+12:bf16+13:bf16+14:bf16"],
    "codegemma-bf16-f32": [], "gemma2-bf16-f32": [], "int8_maxpool_add_mul_fusion": [],
}


def ask(given: argparse.Namespace, path: Path, graph: gq.Graph, policy: str,
        inputs: Arrays | None = None) -> tuple[Arrays, Arrays]:
    """The oracle's inputs and outputs by tensor name; raises RuntimeError if the oracle has no answer."""
    lib = Path(given.python).absolute().parent.parent / "lib"
    environment = {**os.environ, "OCL_ICD_FILENAMES": f"{lib}/libintelocl.so", "LD_LIBRARY_PATH": str(lib)}
    with tempfile.TemporaryDirectory() as folder:
        child = Path(__file__).with_name("onednn_oracle_child.py")
        command = [given.python, str(child), given.oracle, str(path), folder, policy]
        if inputs is not None:
            plain: dict[str, Any] = {k[1:]: v.view(f"u{v.dtype.itemsize}") for k, v in inputs.items()}
            np.savez(f"{folder}/given.npz", **plain)
            command.append(f"{folder}/given.npz")
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=given.timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"oneDNN: no answer in {given.timeout:.0f} s") from None
        if done.returncode != 0:
            says = done.stderr.strip().splitlines()[-1:] if done.returncode == 1 else []
            raise RuntimeError(f"oneDNN {(says or [f'crashes (exit status {done.returncode})'])[0]}")
        found: list[Arrays] = []
        for name, values in (("inputs", graph.inputs), (policy, graph.outputs)):
            with np.load(f"{folder}/{name}.npz") as arrays:
                found.append({str(v.name): arrays[str(v.name)[1:]].view(v.dtype.numpy).reshape(v.type.dims)
                              for v in values})
    return found[0], found[1]


def check(path: Path, given: argparse.Namespace) -> tuple[str, str]:
    """The verdict on one file, and its details."""
    knobs = OTHERWISE.get(path.stem)
    details, worst = list(knobs or []), 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            graph = gq.load_onednn_json(path)
            if knobs is not None:
                graph, path = apply_knobs(graph, parse_knobs(knobs)[0]), Path(folder) / "graph.json"
                gq.save_onednn_json(graph, path)
            inputs, fused = ask(given, path, graph, "fusion",
                                accepted_inputs(graph, 0) if given.inputs == "graphq" else None)
            ours = gq.reference(graph, inputs)
            compiled: np.ndarray | dict[str, np.ndarray] = gq.compile(graph)(inputs)
            for what, out in (("reference", ours), ("compiled", compiled)):
                texts, grade = compare(what, out, fused)
                details, worst = details + texts, max(worst, grade)
            if worst == 2:
                rounded, out = best_rounding(graph, inputs, fused)
                details += compare(f"rounding at {rounded}", out, fused)[0] or [f"rounding at {rounded}: equal"]
                unfused = ask(given, path, graph, "debug", inputs)[1]
                details += compare("op by op", ours, unfused)[0] or ["op by op: equal"]
        except (gq.GraphqError, RuntimeError) as error:
            details.append(str(error))
            return "differs" if worst == 2 else "not run", "; ".join(details)
    return ("equal", "within", "differs")[worst], "; ".join(details)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", type=Path)
    for name, options in (("oracle", {}), ("--python", {"required": True}), ("--only", {"default": "*"})):
        parser.add_argument(name, **options)
    parser.add_argument("--inputs", choices=["oracle", "graphq"], default="oracle")
    parser.add_argument("--timeout", type=float, default=60, help="time limit of oneDNN in seconds")
    given = parser.parse_args()
    notes = Path(__file__).parent.parent / "docs" / "onednn_differences.md"
    explained = notes.read_text(encoding="utf-8") if notes.exists() else ""
    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(p for p in given.graphs.rglob("*.json") if fnmatch.fnmatch(str(p), given.only)):
        start = time.perf_counter()
        verdict, details = check(path, given)
        if verdict == "differs" and f"`{path.stem}`" in explained:
            verdict = "explained"
        counts[verdict] += 1
        print(f"{verdict:10s}{time.perf_counter() - start:6.1f} s  {path.name}  {details}", flush=True)
    print(f"{counts.total()} files: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
