"""Run a model on random or given inputs; print its speed and outputs, and with --compare their errors."""
import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np

from graphq.commands.arrays import INPUTS, check_names, input_arrays, pairs
from graphq.commands.shared import MODEL, TARGET, Arguments, compiled, option, write
from graphq.dtypes import DType
from graphq.ir import Value, array_type, named_outputs, reference
from graphq.kernels.threads.team import run_until_settled
from graphq.model.files import load_graph


@dataclass(frozen=True)
class Deviation:
    """The distance between a compiled graph's output and the reference.

    `text` is the distance in words ("2 steps, in 1.0e-03 of the elements"). `passed` is true if the distance is within
    the limits of `compare`.
    """

    output: str
    text: str
    passed: bool

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


def compare(name: str, got: np.ndarray, wanted: np.ndarray, value: Value) -> Deviation:
    """Compare the array `got` of the output `name` with the reference's array `wanted`; `value` has the dtype.

    Integers pass if at most 1 + size / 10,000 elements differ, each by one step. Other numbers pass if they differ by
    at most 1e-5 of the largest element in f32 and f64, by 2 ulp in bf16 and f16, and by 1 ulp in narrower floats.
    Outputs of another shape, or with NaN or infinities at other places, do not pass.
    """
    dtype = value.dtype
    if got.shape != wanted.shape:
        return Deviation(name, f"shape {list(got.shape)}, not {list(wanted.shape)}", False)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Deviation(name, "equal", True)
    wild = ~same & ~(np.isfinite(a) & np.isfinite(b))
    if wild.any():
        return Deviation(name, f"not finite in {np.count_nonzero(wild)} elements", False)
    apart = np.abs(a - b)[~same]
    share = apart.size / a.size
    if dtype.kind in ("int", "bool"):
        passed = bool(apart.max() <= 1 and share <= 1e-4 + 1 / a.size)
        return Deviation(name, f"{int(apart.max())} steps, in {share:.1e} of the elements", passed)
    largest = float(np.abs(b[np.isfinite(b)]).max())
    if dtype.bits >= 32:
        ratio = float(apart.max()) / max(largest, 1e-30)
        return Deviation(name, f"{ratio:.1e} of the largest", ratio <= 1e-5)
    ulps = float((apart / _ulp(b[~same], dtype)).max())
    passed = ulps <= (1 if dtype.bits <= 8 else 2)
    return Deviation(name, f"{ulps:.1f} ulp, in {share:.1e} of the elements", passed)


def _ulp(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between neighboring numbers of a narrow float type, at each element of `x`."""
    info = ml_dtypes.finfo(dtype.numpy)
    exponent = np.frexp(np.abs(x))[1] - 1
    return np.maximum(np.ldexp(1.0, exponent - info.nmant), float(info.smallest_subnormal))


SECONDS, RUNS = 1.0, 20
"""A model is timed until its runs have taken SECONDS in total, but for at most RUNS runs."""

ARGUMENTS: Arguments = (
    *MODEL, *INPUTS,
    option("--output", action="append", default=[], metavar="NAME=FILE.npy", help="write an output's array"),
    option("--compare", action="store_true", help="also run the reference in NumPy; exit with 1 if results are wrong"),
    *TARGET)


def run(options: argparse.Namespace) -> int:
    """Run the model; returns 1 if results are wrong.

    An output passes if it is near the reference, or equal to the model's NumPy formula. The formula is needed because a
    quantized network can be right and still differ from the reference: if f32 sums in another order round a tie the
    other way, a difference of 1 spreads through all later layers.
    """
    graph = load_graph(options.file)
    paths, files = pairs("--input", options.input), pairs("--output", options.output)
    check_names("output", files, graph.output_names)
    arrays = input_arrays(graph, options)
    begin = time.perf_counter()
    model = compiled(graph, options)
    results = named_outputs(graph.output_names, model(arrays))
    first = time.perf_counter() - begin
    run_until_settled(lambda: model(arrays))
    times = _times(lambda: model(arrays))
    formula = cache(lambda: named_outputs(graph.output_names, model.formula(arrays)))
    lines, outputs, code = [], [], 0
    wanted = named_outputs(graph.output_names, reference(graph, arrays)) if options.compare else {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        x = results[name]
        wide = x.astype(np.float64)
        sizes = {"min": wide.min(), "max": wide.max(), "mean": wide.mean()} if x.size else {}
        found: dict[str, Any] = {"name": name, "type": str(array_type(x)), **sizes}
        text = f"output {name}: {array_type(x)}"
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
                text += ", but equal to its formula" if exact else ", and not equal to its formula"
            code |= not exact
        lines.append(text)
        outputs.append(found)
    inputs = [{"name": n, "type": str(array_type(x)), "source": paths.get(n, "random")} for n, x in arrays.items()]
    head = [repr(model), *(f"input {i['name']}: {i['type']}, {'from ' * (i['name'] in paths)}{i['source']}"
                           for i in inputs),
            f"first result after {first:.2f} s, compilation included; then {1e3 * median(times):.3g} ms per run "
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
