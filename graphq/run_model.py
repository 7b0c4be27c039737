"""The command `graphq run MODEL.onnx`: run a model on given or random inputs, and print times and outputs."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np

from graphq.compile import compile
from graphq.dtypes import as_dtype
from graphq.errors import GraphError, InputError
from graphq.ir import Graph, Value
from graphq.ir.interpret import check_array, reference
from graphq.ir.tensor_type import TensorType
from graphq.onednn.benchdnn import accepted_inputs

SECONDS, RUNS = 1.0, 20
"""A model is run again until so much time has gone by, or so often."""


def run_model(graph: Graph, *, inputs: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]],
              outputs: Mapping[str, str], isa: str | None = None, threads: int | None = None,
              compare: bool = False) -> Iterator[str]:
    """Compile and run `graph`; lines that say what was run, on what, how fast, and what came out.

    `inputs` and `outputs` name .npy files to read and write by the names of inputs and outputs. Other inputs are
    random: floats in [-1, 1], quantized integers of all their range, wider integers and booleans 0 or 1, so that they
    are right as indices and masks. They have the dimensions in `shapes`; what these leave open is 1. `compare`: with
    the reference, too. Raises InputError for a name that is none and for a file that holds no such array.
    """
    _check_names("input", [*inputs, *shapes], [str(v.name) for v in graph.inputs])
    _check_names("output", outputs, graph.output_names)
    arrays = _arrays(graph, {name: _read(name, path) for name, path in inputs.items()}, shapes)
    begin = time.perf_counter()
    model = compile(graph, isa=isa, threads=threads)
    results = _named(graph, model(arrays))
    first = time.perf_counter() - begin
    yield repr(model)
    for name, x in arrays.items():
        yield f"input {name}: {_type(x)}, {f'from {inputs[name]}' if name in inputs else 'random'}"
    yield f"first result after {first:.2f} s, compilation included; {_timed(lambda: model(arrays))}"
    for name, x in results.items():
        yield f"output {name}: {_type(x)}{_range(x)}"
        if name in outputs:
            with open(outputs[name], "wb") as file:
                np.save(file, x)
    if compare:
        wanted = _named(graph, reference(graph, arrays))
        for name, x in results.items():
            yield f"output {name} {_difference(x, wanted[name])} the reference's"


def _check_names(word: str, given: Iterable[str], names: list[str]) -> None:
    for name in given:
        if name not in names:
            raise InputError(f"the model has no {word} '{name}'; it has {', '.join(names)}")


def _read(name: str, path: str) -> np.ndarray:
    with open(path, "rb") as file:
        try:
            array = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as e:
            raise InputError(f"input '{name}': {path}: {e}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"input '{name}': {path} holds several arrays; give an .npy file")
    return array


def _arrays(graph: Graph, given: Mapping[str, np.ndarray],
            shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The given arrays, and random ones for the other inputs, in the inputs' order."""
    check = {str(v.name): check_array(str(v.name), v.type, given[str(v.name)]) for v in graph.inputs if v.name in given}
    dims = {str(v.name): _dims(v, shapes.get(str(v.name))) for v in graph.inputs if v.name not in given}
    types = {str(v.name): TensorType(v.dtype, check[v.name].shape if v.name in check else dims[str(v.name)])
             for v in graph.inputs}
    try:
        arrays = accepted_inputs(graph.specialise(types), seed=0)
    except GraphError as e:
        chosen = ", ".join(f"{n}={'x'.join(map(str, d))}" for n, d in dims.items())
        raise GraphError(f"{e} (for inputs of shape {chosen}; --shape gives others)") from None
    rng = np.random.default_rng(0)
    for v in graph.inputs:
        if v.dtype.kind == "int" and v.dtype.bits >= 32:
            name = str(v.name)
            arrays[name] = rng.integers(0, 2, arrays[name].shape).astype(v.dtype.numpy)
    return {**arrays, **check}


def _dims(value: Value, given: tuple[int, ...] | None) -> tuple[int, ...]:
    if given is None and value.shape is None:
        raise InputError(f"input '{value.name}': its rank is open: give its shape by --shape")
    dims = given or tuple(1 if d is None else d for d in value.shape or ())
    check_array(str(value.name), value.type, np.broadcast_to(np.zeros((), value.dtype.numpy), dims))
    return dims


def _named(graph: Graph, results: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return results if isinstance(results, dict) else {graph.output_names[0]: results}


def _timed(run: Callable[[], Any]) -> str:
    times: list[float] = []
    while sum(times) < SECONDS and len(times) < RUNS:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return f"then {1e3 * median(times):.3g} ms a run (median of {len(times)})"


def _type(x: np.ndarray) -> TensorType:
    return TensorType(as_dtype(x.dtype), x.shape)


def _range(x: np.ndarray) -> str:
    wide = x.astype(np.float64)
    return f", {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}" if x.size else ""


def _difference(x: np.ndarray, wanted: np.ndarray) -> str:
    a, b = x.astype(np.float64), wanted.astype(np.float64)
    different = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if a.shape != b.shape or not different.any():
        return "equals" if a.shape == b.shape else "has another shape than"
    with np.errstate(all="ignore"):
        most = np.abs(a - b)[different].max()
    return f"differs in {np.count_nonzero(different)} of {a.size} elements, by {most:.3g} at most, from"
