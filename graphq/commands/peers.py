"""Run other engines (ONNX Runtime, OpenVINO) for comparison, and time calls of several engines in turns."""
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from graphq.base.progress import progress
from graphq.errors import GraphqError, how_to_install
from graphq.ir import Graph, named_outputs, reference

ORT, EXACT = "ONNX Runtime", "ONNX Runtime exact"
OPENVINO, BF16, F32 = "OpenVINO", "OpenVINO bf16", "OpenVINO f32"
PEERS = {"ort": ORT, "ort_exact": EXACT, "openvino": OPENVINO, "openvino_bf16": BF16, "openvino_f32": F32}
"""The engines to compare with, by their names on the command line.

ONNX Runtime runs with its defaults, or with session.x64quantprecision=1. With its defaults, products of u8 and s8
saturate if the CPU has no VNNI; with that option they do not. OpenVINO runs with its defaults, or in bf16 or f32.
"""
PACKAGES = {ORT: "onnxruntime", EXACT: "onnxruntime", **dict.fromkeys((OPENVINO, BF16, F32), "openvino")}
OPENVINO_CACHE = "OPENVINO_CACHE"
"""The environment variable with the folder of OpenVINO's cache of compiled models. Without it there is no cache."""

Run: TypeAlias = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def missing(name: str) -> str | None:
    """Why an engine cannot run: the package to install. None if the package is installed."""
    package = PACKAGES[name]
    return None if find_spec(package) else f"it needs {package} ({how_to_install('bench')})"


def model_file(name: str, path: str, feeds: Mapping[str, np.ndarray], threads: int, *, literal: bool = False) -> Run:
    """Make a function that runs an ONNX file on inputs like `feeds`, and returns the outputs in order.

    OpenVINO compiles the model again for each new shape of the inputs. With `literal`, ONNX Runtime runs each operation
    of the file without optimizations. Raises GraphqError if the engine is not installed or rejects the file.
    """
    if reason := missing(name):
        raise GraphqError(f"{name}: {reason}")
    try:
        run = by_openvino(name, path, threads) if PACKAGES[name] == "openvino" else \
            by_onnxruntime(path, threads, literal=literal, exact=name == EXACT)
        run(feeds)
    except Exception as error:  # the packages do not document which classes they raise
        raise GraphqError(f"{name} refuses {path}: {error}") from error
    return run


def as_written(path: str, graph: Graph, arrays: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], str]:
    """Compute the graph's outputs as it is written; the second result names the engine.

    ONNX Runtime computes each operation of the file without optimizations. If it is not installed or refuses the file,
    graphq's NumPy references compute the outputs.
    """
    try:
        return model_file(ORT, path, arrays, 1, literal=True)(arrays), f"{ORT} without optimizations"
    except GraphqError:
        return list(named_outputs(graph.output_names, reference(graph, arrays)).values()), "the NumPy references"


def by_onnxruntime(path: str, threads: int, *, literal: bool, exact: bool) -> Run:
    """ONNX Runtime on a file: `literal` without optimizations, `exact` without sums that saturate."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if literal:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda f: list(session.run(None, dict(f)))


def by_openvino(name: str, path: str, threads: int) -> Run:
    """OpenVINO on a file, at the precision that `name` says."""
    import openvino

    hints: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if folder := os.environ.get(OPENVINO_CACHE):
        hints["CACHE_DIR"] = folder
    if name != OPENVINO:
        hints["INFERENCE_PRECISION_HINT"] = "bf16" if name == BF16 else "f32"

    @cache
    def compiled(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
        model = openvino.Core().read_model(path)
        model.reshape({n: list(dims) for n, dims in shapes})
        return openvino.Core().compile_model(model, "CPU", hints).create_infer_request()

    def run(f: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        request = compiled(tuple((n, x.shape) for n, x in f.items()))
        results = request.infer(dict(f), share_inputs=True)
        return [results[o.get_any_name()] for o in request.model_outputs]

    return run


ROUNDS = 8
"""The number of turns of each call. The first run of a turn is not counted, because it must fill the caches."""
PAUSE = 0.05
"""The seconds between turns, long enough that idle worker threads of the previous engine stop spinning."""


def alternate(calls: Sequence[Callable[[], object]], seconds: float,
              clock: Callable[[], float] = time.perf_counter) -> list[list[float]]:
    """Time several calls in turns, for `seconds` in total. Returns the milliseconds of each run of each call.

    `clock` measures the runs: `time.process_time` leaves out the time that other processes take.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in progress(range(ROUNDS), "rounds"):
        for call, out in zip(calls, times, strict=True):
            time.sleep(PAUSE)
            call()
            end = time.perf_counter() + seconds / (len(calls) * ROUNDS)
            while True:
                begin = clock()
                call()
                out.append(1e3 * (clock() - begin))
                if time.perf_counter() >= end:
                    break
    return times


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two arrays as vectors: 0 if one array is all zeros, 1 if both arrays are."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else float(np.array_equal(x, y))


def difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference of two arrays: absolute for integers, else relative to the largest number of `y`."""
    wide = [a.astype(np.float64) for a in (x, y)]
    most = float(np.abs(wide[0] - wide[1]).max(initial=0))
    return most if np.issubdtype(x.dtype, np.integer) else most / max(float(np.abs(wide[1]).max(initial=0)), 1e-30)
