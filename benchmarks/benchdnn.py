"""Run oneDNN Graph files as benchdnn's graph driver does: partition, compile, compare with the reference.

    python benchmarks/benchdnn.py FILE.json [--in-shapes=...] [--mb=...] [...]    a case for each combination of knobs
    python benchmarks/benchdnn.py --batch CASES.txt [--root FOLDER] [--failures]  the cases of a file of such lines

`benchdnn_text.py` describes the knobs. A case passes, fails (wrong results, or an unexpected number of partitions) or
is refused. The exit code is 1 unless all cases pass. To run a oneDNN Graph file unchanged, use `graphq run FILE.json`.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchdnn_knobs import apply_knobs
from benchdnn_text import KNOBS, Case, Knobs, parse_knobs, parse_line

from graphq.base.budget import size_text
from graphq.commands.arrays import accepted_inputs
from graphq.commands.run import Deviation, compare
from graphq.compile import compile
from graphq.errors import GraphqError
from graphq.ir import Graph, Value
from graphq.ir.interpret import named_outputs, reference
from graphq.onednn.files import load_onednn_json
from graphq.onednn.partitions import partitions
from graphq.onednn.reader import read_text

MAX_BYTES = 8 << 30
"""The most bytes that all tensors of a graph may take together; larger graphs are refused."""

SPREADS = (1.0, 0.25, 0.06, 0.015)
"""Fractions of the inputs' range to draw from, tried in order until the outputs are not saturated."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. `status` is "passed", "failed" or "refused"; `reason` explains the last two.

    `partitions` is the number of partitions that oneDNN Graph would make. `differences` has an entry for each output,
    and is empty if the graph did not run. `seconds` is the time of the whole run, with compilation and reference.
    """

    case: str
    status: str
    reason: str = ""
    partitions: int = 0
    differences: tuple[Deviation, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        worst = "; ".join(map(str, self.differences))
        detail = self.reason if self.status != "passed" else worst
        return f"{self.status:8s}{self.partitions} partitions {self.seconds:6.2f} s  {self.case}" + \
            (f"  ({detail})" if detail else "")


def run_file(path: str | os.PathLike[str], knobs: Knobs) -> Outcome:
    """Run one file with one combination of knobs. Raises no exception.

    The outcome is "refused" if graphq refuses the graph or the file cannot be read. It is "failed" for a difference, an
    unexpected number of partitions, or any other exception, because such an exception is a bug of graphq.
    """
    case, start, count = str(Case(os.path.basename(path), knobs)), time.perf_counter(), 0
    try:
        graph = apply_knobs(load_onednn_json(path), knobs)
        _check_size(graph)
        parts = partitions(graph)
        count = len(parts)
        inputs, got = _compiled(graph)
        wanted = named_outputs(graph.output_names, reference(graph, inputs))
    except (GraphqError, OSError) as error:
        return Outcome(case, "refused", " ".join(str(error).split()), count, (), time.perf_counter() - start)
    except Exception as error:  # a bug of graphq must not stop the other runs of a batch
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(case, "failed", reason, count, (), time.perf_counter() - start)
    differences = tuple(compare(name, got[name], wanted[name], v) for name, v in
                        zip(graph.output_names, graph.outputs, strict=True))
    seconds = time.perf_counter() - start
    reasons = [str(d) for d in differences if not d.passed]
    if knobs.expected_partitions and count != knobs.expected_partitions:
        reasons.append(f"{count} partitions, expected {knobs.expected_partitions}: "
                       + ", ".join(p.anchor for p in parts))
    return Outcome(case, "failed" if reasons else "passed", "; ".join(reasons), count, differences, seconds)


def run_batch(path: str | os.PathLike[str], root: Path) -> Iterator[Outcome]:
    """Run each line of a batch file; graph files are relative to `root`, and malformed lines are "refused".

    Raises ParseError or OSError if the batch file itself cannot be read.
    """
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            cases = parse_line(line)
        except GraphqError as error:
            yield Outcome(line.strip(), "refused", f"{os.fspath(path)}: line {number}: {error}")
            continue
        for case in cases:
            yield run_file(root / case.file, case.knobs)


def _compiled(graph: Graph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Compile the graph and run it on random inputs, narrower ones if outputs saturate; returns inputs and outputs."""
    for spread in SPREADS:
        inputs = accepted_inputs(graph, 0, spread)
        model = compile(graph)  # compiled again, because a model keeps its constant inputs
        outputs = named_outputs(graph.output_names, model(inputs))
        if not any(_out_of_range(outputs[n], v) for n, v in zip(graph.output_names, graph.outputs, strict=True)):
            return inputs, outputs
    return inputs, outputs


def _out_of_range(x: np.ndarray, value: Value) -> bool:
    """Whether more than half of a quantized tensor is saturated, or of a float tensor not finite."""
    dtype = value.dtype
    if dtype.kind == "bool" or dtype.bits > 8 and dtype.kind == "int" or not x.size:
        return False
    if dtype.bits > 8:
        return bool(np.isfinite(x.astype(np.float32)).mean() < 0.5)
    wide = x.astype(np.float32)
    # u8 zeros do not show saturation: about half of the results of a relu are zero.
    ends = wide >= dtype.max if dtype.min == 0 else (wide <= dtype.min) | (wide >= dtype.max)
    low = np.mean(wide <= dtype.min) if dtype.min == 0 else 0.0
    return bool(ends.mean() > 0.4 or low > 0.9)


def _check_size(graph: Graph) -> None:
    values = [*graph.inputs, *(o for n in graph.nodes for o in n.outputs)]
    for v in values:
        if not v.type.known:
            raise GraphqError(f"{graph.label(v)}: the shape of {v.type} is not known; set it with --in-shapes")
    total = sum(v.type.size * max(v.dtype.itemsize, 4) for v in values)
    if total > MAX_BYTES:
        raise GraphqError(f"the graph's tensors take {size_text(total)}, more than {size_text(MAX_BYTES)}")


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; print a line for each, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.json")
    for knob in KNOBS:
        parser.add_argument(knob, dest="knobs", action="append", default=[], metavar="TEXT", type=f"{knob}={{}}".format)
    parser.add_argument("--batch", type=Path, help="a file with one case per line")
    parser.add_argument("--root", type=Path, help="folder of the batch's files (default: the batch file's folder)")
    parser.add_argument("--failures", action="store_true", help="print only cases that did not pass")
    options = parser.parse_args(arguments)
    if (options.file is None) == (options.batch is None) or options.batch and options.knobs:
        parser.error("give a file, with knobs or without, or --batch=FILE without knobs")
    counts = dict.fromkeys(("passed", "failed", "refused"), 0)
    try:
        for outcome in _outcomes(options):
            counts[outcome.status] += 1
            if outcome.status != "passed" or not options.failures:
                print(outcome, flush=True)
    except (GraphqError, OSError) as error:
        parser.error(str(error))
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    return 0 if counts["passed"] == sum(counts.values()) else 1


def _outcomes(options: argparse.Namespace) -> Iterable[Outcome]:
    if options.batch:
        return run_batch(options.batch, options.root or options.batch.parent)
    load_onednn_json(options.file)  # an error of the batch file itself is not the outcome of a case
    return (run_file(options.file, knobs) for knobs in parse_knobs(options.knobs))


if __name__ == "__main__":
    sys.exit(main())
