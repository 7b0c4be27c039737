"""Compare calibration with runs of the f32 model and with ONNX Runtime's tool: seconds and peak memory.

    python benchmarks/quantization.py MODEL.onnx DATA [--repeat 8] [--peer]

DATA is as for `graphq quantize --data`; its batches run `--repeat` times. Each task is a separate process. A first
process compiles kernels and fills caches, and is not counted. `--peer` adds the min-max, entropy and percentile
calibration of onnxruntime.quantization.
"""
from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Batch = Mapping[str, Any]


def batches(model: str, data: str, repeat: int) -> Iterator[Batch]:
    """The batches, repeated."""
    import graphq as gq
    from graphq.quantization.data import load_data

    found = list(load_data(data, gq.load_onnx(model)))
    for _ in range(repeat):
        yield from found


def run_f32(model: str, data: str, repeat: int) -> None:
    """Compile the f32 model and run it."""
    import graphq as gq

    compiled = gq.compile(gq.load_onnx(model))
    for batch in batches(model, data, repeat):
        compiled(batch)


def calibrate(model: str, data: str, repeat: int, histograms: bool) -> None:
    """Collect the statistics of all operands of layers."""
    import graphq as gq
    from graphq.quantization import calibrate

    calibrate(gq.load_onnx(model), batches(model, data, repeat), histograms=histograms)


def peer(model: str, data: str, repeat: int, method: str) -> None:
    """Run ONNX Runtime's calibration and quantization."""
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = batches(model, data, repeat)

        def get_next(self) -> Batch | None:
            return next(self.batches, None)

    with tempfile.TemporaryDirectory() as folder:
        q.quantize_static(model, str(Path(folder) / "q.onnx"), Reader(), per_channel=True,
                          activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
                          calibrate_method=getattr(q.CalibrationMethod, method))


def measured(task: Callable[..., None], arguments: Sequence[object]) -> tuple[float, float]:
    """Run a task in this process; returns the seconds, and the process's peak memory in MB."""
    start = time.perf_counter()
    task(*arguments)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--peer", action="store_true")
    o = parser.parse_args()
    tasks: list[tuple[str, Callable[..., None], tuple[object, ...]]] = [
        ("run f32", run_f32, ()), ("min-max", calibrate, (False,)), ("histograms", calibrate, (True,))]
    if o.peer:
        tasks += [(f"onnxruntime {m}", peer, (m,)) for m in ("MinMax", "Entropy", "Percentile")]
    base: tuple[float, float] | None = None
    for name, task, more in tasks:
        once: list[tuple[float, float]] = []
        many: list[tuple[float, float]] = []
        for repeat, out in ((1, []), (1, once), (1 + o.repeat, many)):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                out.append(process.submit(measured, task, (o.model, o.data, repeat, *more)).result())
        seconds, memory = (many[0][0] - once[0][0]) / o.repeat, many[0][1]
        base = base or (seconds, memory)
        print(f"{name:24s} {once[0][0]:6.2f} s for the first round, {seconds:7.3f} s for each further "
              f"({seconds / base[0]:5.2f} x), {memory:6.0f} MB ({memory / base[1]:4.2f} x)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
