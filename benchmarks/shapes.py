"""Measure the time of a new shape for a model with open shapes, and the model's memory after many shapes.

    python benchmarks/shapes.py                                    a perceptron of 16 MB, batches 1 to 64
    python benchmarks/shapes.py MODEL.onnx 1x16 1x31 2x32 ...      open dimensions of the inputs, in order

For each shape it prints the first call and the next call in ms, and ONNX Runtime's first call if it is installed and a
file is given. "new" is the first call minus the next call, as wall time and as CPU time of the calling thread; a busy
machine affects CPU time less. Open dimensions with the same name share a size; others take sizes in order.
"""
from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from peers import ORT, missing

import graphq as gq
from graphq.ir.interpret import Signature
from graphq.model.open_shapes import Places


def resident() -> float:
    """The resident memory of the process in MB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def perceptron() -> gq.Graph:
    """Four int8 layers of 2048 x 2048: 16 MB of weights."""
    rng = np.random.default_rng(0)
    g = gq.Graph("perceptron")
    y = g.input("x", dtype="u8", shape=(None, 2048))
    for _ in range(4):
        w = g.dequantize(g.constant(rng.integers(-127, 128, (2048, 2048), dtype=np.int8)), scales=[1e-3])
        y = g.quantize(g.relu(g.matmul(g.dequantize(y, scales=[0.02]), w)), dtype="u8", scales=[0.05])
    g.output(y, name="y")
    return g


def feed(graph: gq.Graph, sizes: list[int]) -> dict[str, np.ndarray]:
    """Inputs with these sizes of the open dimensions, in order of the dimensions' names."""
    rng = np.random.default_rng(0)
    places = Places(Signature.of(graph))
    names = places.names(graph)
    named = dict(zip(dict.fromkeys(names), sizes, strict=True))
    out = {}
    for v, shape in zip(graph.inputs, places.shapes(tuple([named[x] for x in names])), strict=True):
        out[str(v.name)] = (rng.random(shape) if v.dtype.kind == "float" else
                            rng.integers(0, 2, shape)).astype(v.dtype.numpy)
    return out


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of a call: wall time, and CPU time of this thread."""
    start, cpu = time.perf_counter(), time.thread_time()
    call()
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.thread_time() - cpu)


def peer(path: str | None) -> Callable[[Mapping[str, np.ndarray]], Any] | None:
    """The file in ONNX Runtime; None without a file or without ONNX Runtime."""
    if path is None or missing(ORT):
        return None
    import onnxruntime as ort

    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, dict(x))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("sizes", nargs="*", help="as 1x16, for every call")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    graph = perceptron() if given.model is None else gq.load_onnx(given.model)
    cases = [[int(n) for n in s.split("x")] for s in given.sizes] or [[n] for n in range(1, 65)]
    feeds = [feed(graph, sizes) for sizes in cases]
    other = peer(given.model)
    beside = [f", ONNX Runtime's first {timed(partial(other, x))[0]:7.1f}" if other else "" for x in feeds]
    start = time.perf_counter()
    model = gq.compile(graph, threads=given.threads)
    model(feeds[0])
    print(f"compiled and run once in {time.perf_counter() - start:.2f} s")
    before, new, cpu = resident(), [], []
    for sizes, x, its in zip(cases[1:], feeds[1:], beside[1:], strict=True):
        first, next_ = timed(partial(model, x)), timed(partial(model, x))
        new.append(first[0] - next_[0])
        cpu.append(first[1] - next_[1])
        print(f"{'x'.join(map(str, sizes)):>12}: first {first[0]:7.1f}, next {next_[0]:7.2f} ms{its}")
    print(f"median of new: {statistics.median(new):.1f} ms, {statistics.median(cpu):.1f} ms of CPU; "
          f"memory + {resident() - before:.0f} MB")


if __name__ == "__main__":
    main()
