"""Run a model on random or given inputs: how fast it is, what comes out and, by --compare, how far from the reference.

With benchdnn's knobs a oneDNN Graph file runs as benchdnn runs it: each combination of the knobs' settings is a case,
which is compared with the reference and passes, fails or is refused. --batch does so for each line of a file of knobs
and --case=FILE.json.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.commands.arrays import add_inputs, check_names, input_arrays, pairs
from graphq.commands.shared import MODEL, add_json, add_target, compiled, write
from graphq.dtypes import as_dtype
from graphq.errors import ParseError
from graphq.ir import Graph
from graphq.ir.interpret import named_outputs, reference
from graphq.ir.tensor_type import TensorType
from graphq.kernels.threads.team import run_until_settled
from graphq.model.files import load_graph

if TYPE_CHECKING:
    from graphq.onednn.benchdnn import Outcome

SECONDS, RUNS = 1.0, 20
"""A model is timed until its runs have taken that long, or for that many runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, arrays, the target, and benchdnn's knobs."""
    from graphq.onednn.knob_text import KNOBS

    parser.add_argument("file", type=Path, nargs="?", metavar="MODEL",
                        help=MODEL)
    add_json(parser)
    add_inputs(parser)
    parser.add_argument("--output", action="append", default=[], metavar="NAME=FILE.npy",
                        help="write an output's array")
    parser.add_argument("--compare", action="store_true",
                        help="also run the reference in NumPy; exit with 1 where results are wrong")
    add_target(parser)
    cases = parser.add_argument_group("oneDNN Graph files, in benchdnn's manner")
    for knob in KNOBS:
        cases.add_argument(knob, dest="knobs", action="append", default=[], metavar="TEXT",
                           type=f"{knob}={{}}".format)
    cases.add_argument("--batch", type=Path, help="a file of such runs, a line each")
    cases.add_argument("--root", type=Path, help="where the batch's files are (default: beside it)")
    cases.add_argument("--failures", action="store_true", help="print the runs that did not pass, and the counts")


def run(options: argparse.Namespace) -> int:
    """Run the model, or the cases; 1 where results are wrong, or a case fails or is refused."""
    if not options.knobs and options.batch is None:
        if options.file is None:
            raise ParseError("run takes a MODEL, or --batch=FILE")
        return _run_model(options, load_graph(options.file))
    given = [k for k in ("input", "shape", "output", "compare", "isa", "threads") if getattr(options, k)]
    if given:
        raise ParseError(f"--{given[0]} does not go with --batch and knobs such as --mb")
    if (options.file is None) == (options.batch is None) or options.batch and options.knobs:
        raise ParseError("run takes a file with knobs, or --batch=FILE without")
    if options.file is not None and options.file.suffix != ".json":
        raise ParseError(f"{options.knobs[0]} is for oneDNN Graph files (.json), not for {options.file}")
    return _run_cases(options)


def _run_model(options: argparse.Namespace, graph: Graph) -> int:
    """Run the model. An output passes that is near the reference's, or equals the formula of the fused graph.

    Outputs of a quantized network may be right and far from the reference's: where f32 sums in another order round a
    tie the other way, the difference of one step goes through all layers that follow.
    """
    from graphq.onednn.benchdnn import compare

    paths, files = pairs("--input", options.input), pairs("--output", options.output)
    check_names("output", files, graph.output_names)
    arrays = input_arrays(graph, options)
    begin = time.perf_counter()
    model = compiled(options.file, graph, options.isa, options.threads)
    results = named_outputs(graph.output_names, model(arrays))
    first = time.perf_counter() - begin
    run_until_settled(lambda: model(arrays))
    times = _times(lambda: model(arrays))
    formula = cache(lambda: named_outputs(graph.output_names, model.formula(arrays)))
    lines, outputs, code = [], [], 0
    wanted = named_outputs(graph.output_names, reference(graph, arrays)) if options.compare else {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        x = results[name]
        sizes = _range(x)
        found: dict[str, Any] = {"name": name, "type": str(_type(x)), **sizes}
        text = f"output {name}: {_type(x)}"
        if sizes:
            text += ", {min:.6g} to {max:.6g}, mean {mean:.6g}".format(**sizes)
        if name in files:
            with open(files[name], "wb") as file:
                np.save(file, x)
        if options.compare:
            apart = compare(name, x, wanted[name], value)
            exact = apart.passed or np.array_equal(x, formula()[name], equal_nan=value.dtype.kind == "float")
            found |= {"difference": apart.text, "passed": exact}
            text += f"; against the reference: {apart.text}"
            if not apart.passed:
                text += ", but as the formula of its partitions says" if exact else ", and not what its formula says"
            code |= not exact
        lines.append(text)
        outputs.append(found)
    inputs = [{"name": n, "type": str(_type(x)), "source": paths.get(n, "random")} for n, x in arrays.items()]
    head = [repr(model), *(f"input {i['name']}: {i['type']}, {'from ' * (i['name'] in paths)}{i['source']}"
                           for i in inputs),
            f"first result after {first:.2f} s, compilation included; then {1e3 * median(times):.3g} ms a run "
            f"(median of {len(times)})"]
    write(options, "\n".join([*head, *lines]), {
        "graph": graph.name, "isa": model.level.name, "threads": model.threads, "inputs": inputs, "outputs": outputs,
        "first_result_s": first, "median_ms": 1e3 * median(times), "least_ms": 1e3 * min(times), "runs": len(times)})
    return code


def _run_cases(options: argparse.Namespace) -> int:
    from graphq.onednn.benchdnn import run_batch, run_file
    from graphq.onednn.knob_text import parse_knobs

    runs: Iterable[Outcome]
    if options.batch:
        runs = run_batch(options.batch, options.root or options.batch.parent)
    else:
        load_graph(options.file)  # what is wrong with the file itself is no case's matter
        runs = (run_file(options.file, knobs) for knobs in parse_knobs(options.knobs))
    counts = dict.fromkeys(("passed", "failed", "refused"), 0)
    shown = []
    for outcome in runs:
        counts[outcome.status] += 1
        if outcome.status == "passed" and options.failures:
            continue
        if options.json:
            shown.append({"case": outcome.case, "status": outcome.status, "reason": outcome.reason,
                          "partitions": outcome.partitions, "seconds": outcome.seconds,
                          "differences": {d.output: d.text for d in outcome.differences}})
        else:
            print(outcome, flush=True)
    write(options, ", ".join(f"{n} {status}" for status, n in counts.items()), {"cases": shown, **counts})
    return 0 if counts["passed"] == sum(counts.values()) else 1


def _times(run: Callable[[], Any]) -> list[float]:
    """Seconds of runs."""
    times: list[float] = []
    while sum(times) < SECONDS and len(times) < RUNS:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def _type(x: np.ndarray) -> TensorType:
    return TensorType(as_dtype(x.dtype), x.shape)


def _range(x: np.ndarray) -> dict[str, float]:
    wide = x.astype(np.float64)
    return {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())} if x.size else {}
