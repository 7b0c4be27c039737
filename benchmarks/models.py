"""Compare speed and accuracy with ONNX Runtime and OpenVINO on the same model files, in turns.

    python benchmarks/models.py FILE.onnx ... [--threads 1 2] [--seconds S] [--isa LEVEL]
                                [--decision argmax|ctc|mask] [--dims INPUT=1x3x48x320 ...]
                                [--precision bf16] [--f32] [--bf16 FLOAT_FILE.onnx]
                                [--first-result] [--busy N] [--json FILE]

Inputs and literal outputs of a model come from FILE.npz next to it ("0/in/NAME", "0/out/NAME", ...). Without FILE.npz,
inputs are random, and ONNX Runtime computes the literal outputs without optimizations. These outputs are exact if the
file expresses quantization as quantize and dequantize; ONNX Runtime's integer operators saturate on CPUs without VNNI.

The table has the smallest cosine over inputs and outputs, the number of inputs with the same decision, and the fraction
of equal classes, texts or pixels. A decision is the class, the text of a CTC output, or the pixels of a mask.

OpenVINO computes floats in bf16 if the CPU has it. `--precision bf16` also times graphq in bf16, `--f32` OpenVINO in
f32, `--bf16` OpenVINO in bf16 on the model before quantization. `--first-result` starts processes and measures the
seconds to the first result, with an empty and with a filled kernel cache, and the peak memory. `--busy` adds other
processes that compute all the time. Ratios above 1 mean that graphq is faster.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import model_files as mf
import numpy as np
import timing

import graphq as gq
from graphq.commands.peers import BF16, F32, OPENVINO, ORT, alternate, cosine, missing, model_file

Row = dict[str, Any]
OURS_BF16 = "graphq bf16"


def arguments() -> argparse.Namespace:
    """The command line, parsed."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", type=Path, nargs="+", metavar="FILE.onnx")
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    made.add_argument("--seconds", type=float, default=3.0, help="for each file and thread count (default 3)")
    made.add_argument("--isa", metavar="LEVEL", help="an ISA level of graphq (default: the best)")
    made.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: also time graphq in bf16")
    made.add_argument("--decision", choices=list(mf.DECISIONS), help="default: by the output's rank and rows")
    made.add_argument("--dims", nargs="+", default=[], metavar="INPUT=1x3x48x320", help="shapes of open inputs")
    made.add_argument("--f32", action="store_true", help="also time OpenVINO in f32")
    made.add_argument("--bf16", type=Path, metavar="FILE.onnx", help="the f32 file that OpenVINO also runs in bf16")
    made.add_argument("--first-result", type=int, nargs="?", const=3, default=0, metavar="RUNS",
                      help="also measure new processes (default 3 of each)")
    made.add_argument("--busy", type=int, default=0, metavar="N", help="other processes, each keeping a core busy")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for all rows")
    return made.parse_args()


def faithfulness(run: mf.Run, feeds: list[mf.Feeds], want: list[list[np.ndarray]], decision: str | None) -> Row:
    """The smallest cosine, the largest difference relative to the largest number, and the equal decisions."""
    decide = mf.DECISIONS[decision or mf.decision_of(want[0][0])]
    outs = [run(f) for f in feeds]
    pairs = [(a, b) for x, y in zip(outs, want, strict=True) for a, b in zip(x, y, strict=True)]
    same, share = mf.agreement(decide, outs, want)
    return {"cosine": min(cosine(a, b) for a, b in pairs),
            "relative": max(float(np.abs(a.astype(float) - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
                            for a, b in pairs),
            "decisions": [same, len(feeds)], "same_decision": share}


def measure(path: Path, threads: int, options: argparse.Namespace, dims: dict[str, tuple[int, ...]]) -> Row:
    """All figures of one file at one thread count."""
    feeds, want = mf.inputs_of(path, dims)
    model = gq.compile(gq.load_onnx(path), threads=threads, isa=options.isa)
    runs: dict[str, mf.Run] = {"graphq": lambda f: mf.listed(model(f))}
    if options.precision == "bf16":
        narrow = gq.compile(gq.load_onnx(path), threads=threads, isa=options.isa, precision="bf16")
        runs[OURS_BF16] = lambda f: mf.listed(narrow(f))
    for name in (ORT, OPENVINO):
        if not missing(name):
            runs[name] = model_file(name, str(path), feeds[0], threads)
    if want is None:
        literal = runs["graphq"] if missing(ORT) else model_file(ORT, str(path), feeds[0], threads, literal=True)
        want = [literal(f) for f in feeds]
    found: dict[str, Row] = {name: faithfulness(run, feeds, want, options.decision) for name, run in runs.items()}
    found["graphq"]["coverage"] = model.coverage().share
    others = {F32: path if options.f32 else None, BF16: options.bf16}
    for name, file in others.items():
        if file and not missing(name):
            runs[name], found[name] = model_file(name, str(file), feeds[0], threads), {}
    with timing.busy(options.busy):
        times = alternate([partial(run, feeds[0]) for run in runs.values()], options.seconds)
    for name, t in zip(runs, times, strict=True):
        found[name] |= {"median_ms": statistics.median(t), "minimum_ms": min(t)}
    for name in set(runs) - {"graphq"}:
        for ratio, key in (("ratio_of_medians", "median_ms"), ("ratio_of_minima", "minimum_ms")):
            found[name][ratio] = found[name][key] / found["graphq"][key]
    if options.first_result:
        for name in set(runs) - {*others, OURS_BF16}:
            found[name] |= mf.first_results(name, path, feeds[0], threads, options.first_result)
    return {"file": path.stem, "threads": threads, "macs": model.coverage().total, **found}


def text(row: Row) -> str:
    """The lines of one file at one thread count."""
    share = row["graphq"]["coverage"]
    lines = [f"{row['file']}, {row['threads']} thread{'s' * (row['threads'] > 1)}: {row['macs'] / 1e6:,.0f} million "
             f"multiply-accumulates, {100 * share:.1f}% in integer partitions"]
    for name in ("graphq", OURS_BF16, ORT, OPENVINO, F32, BF16):
        if name not in row:
            continue
        r = row[name]
        line = f"  {name:14s} {r['median_ms']:9.3f} ms ({r['minimum_ms']:.3f})"
        line += f"  ratio {r['ratio_of_medians']:5.2f} ({r['ratio_of_minima']:.2f})" if name != "graphq" else " " * 20
        if "cosine" in r:
            line += f"  cosine {r['cosine']:.6f}  relative {r['relative']:.1e}"
            line += f"  decisions {r['decisions'][0]}/{r['decisions'][1]} ({100 * r['same_decision']:.2f}%)"
        if "cold_s" in r:
            line += f"  first result {r['cold_s']:.2f} s, again {r['warm_s']:.2f} s, {r['peak_mb']:.0f} MB"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    options = arguments()
    dims = {}
    for given in options.dims:
        name, _, shape = given.rpartition("=")
        dims[name] = tuple(int(d) for d in shape.split("x"))
    rows = []
    for path in options.files:
        for threads in options.threads:
            rows.append(measure(path, threads, options, dims))
            print(text(rows[-1]), flush=True)
    for threads in options.threads:
        mine = [r for r in rows if r["threads"] == threads]
        for line in timing.means(mine, [ORT, OPENVINO, F32, BF16]):
            print(f"{threads} thread{'s' * (threads > 1)}: {line}")
    for name in (ORT, OPENVINO):
        if reason := missing(name):
            print(f"{name} was not measured: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
