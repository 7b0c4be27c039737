"""Run a model on random or given inputs; report its speed and outputs, and with --compare their errors."""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from graphq.commands.arrays import add_inputs, check_names, input_arrays, pairs
from graphq.commands.deviation import compare
from graphq.commands.shared import add_model, add_target, compiled, write
from graphq.dtypes import as_dtype
from graphq.ir.interpret import named_outputs, reference
from graphq.ir.tensor_type import TensorType
from graphq.kernels.threads.team import run_until_settled
from graphq.model.files import load_graph

SECONDS, RUNS = 1.0, 20
"""A model is timed until its runs have taken SECONDS together, but for at most RUNS runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, and the options for arrays and the target."""
    add_model(parser)
    add_inputs(parser)
    parser.add_argument("--output", action="append", default=[], metavar="NAME=FILE.npy",
                        help="write an output's array")
    parser.add_argument("--compare", action="store_true",
                        help="also run the reference in NumPy; exit with 1 where results are wrong")
    add_target(parser)


def run(options: argparse.Namespace) -> int:
    """Run the model; returns 1 if results are wrong.

    An output passes if it is near the reference's, or equal to the formula of the fused graph. Outputs of a quantized
    network may be right and still far from the reference's: if f32 sums in another order round a tie the other way, the
    difference of one step spreads through all layers that follow.
    """
    graph = load_graph(options.file)
    paths, files = pairs("--input", options.input), pairs("--output", options.output)
    check_names("output", files, graph.output_names)
    arrays = input_arrays(graph, options)
    begin = time.perf_counter()
    model = compiled(options.file, graph, options.isa, options.threads, options.precision)
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


def _times(run: Callable[[], Any]) -> list[float]:
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
