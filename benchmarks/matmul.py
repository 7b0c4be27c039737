"""Int8 matmul against ONNX Runtime: u8 x s8 per channel, f32 bias, ReLU, requantised to u8.

    python benchmarks/matmul.py [--threads 1 2] [--isa LEVEL] [--case NAME ...] [--json FILE]

Both run in this process and take turns, so that a ratio holds although the machine's speed drifts. A ratio above 1 says
that graphq is faster. ONNX Runtime needs `pip install graphq[bench]`; without it only graphq's times are given. Results
are compared too: both may round differently, so at most one step apart.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import graphq as gq

CASES = {  # m, k, n
    "mm_1024": (1024, 1024, 1024),
    "mm_bert_ffn": (384, 768, 3072),
    "mm_bert_out": (384, 3072, 768),
    "mm_64x1024x4096": (64, 1024, 4096),
    "mm_32x768x768": (32, 768, 768),
    "mm_odd": (197, 479, 333),
    "mm_gemv": (1, 1024, 1024),
}
X_SCALE, X_ZP, Y_SCALE, Y_ZP = 0.02, 120, 0.05, 0
ROUNDS = 8
"""Turns that each side gets; the first call of a turn, with the other side's data in the caches, is not counted."""
PAUSE = 0.05
"""Seconds between turns. Idle worker threads of both sides spin for a while: not in the other's turn."""

Call = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Operands:
    """Random operands of a case."""

    x: np.ndarray
    w: np.ndarray
    w_scales: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, m: int, k: int, n: int) -> Operands:
        """The same ones for the same sizes."""
        r = np.random.default_rng(0)
        return cls(r.integers(0, 256, (m, k), dtype=np.uint8), r.integers(-127, 128, (k, n), dtype=np.int8),
                   r.uniform(1e-4, 4e-4, n).astype(np.float32), r.standard_normal(n).astype(np.float32))


def graphq_call(o: Operands, threads: int, isa: str | None) -> Call:
    """The case compiled by graphq."""
    g = gq.Graph("case")
    x = g.dequantize(g.input("x", shape=o.x.shape, dtype="u8"), scales=[X_SCALE], zps=[X_ZP])
    w = g.dequantize(g.constant(o.w, name="w"), qtype="per_channel", axis=1, scales=o.w_scales.tolist())
    y = g.relu(g.bias_add(g.matmul(x, w), o.bias))
    g.output(g.quantize(y, dtype="u8", scales=[Y_SCALE], zps=[Y_ZP]), name="y")
    model = gq.compile(g, threads=threads, isa=isa, strict=True)
    return lambda: model(x=o.x)


def onnxruntime_call(o: Operands, threads: int) -> Call | None:
    """The case as a QDQ model that ONNX Runtime fuses to QGemm; None when it is not installed."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    bias_scales = (X_SCALE * o.w_scales).astype(np.float32)  # the bias as s32, as exporters emit it
    arrays = {"xs": np.float32(X_SCALE), "xz": np.uint8(X_ZP), "ys": np.float32(Y_SCALE), "yz": np.uint8(Y_ZP),
              "w": o.w, "ws": o.w_scales, "wz": np.zeros(o.w_scales.shape, np.int8),
              "b": np.rint(o.bias / bias_scales).astype(np.int32), "bs": bias_scales,
              "bz": np.zeros(o.bias.shape, np.int32)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
             helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
             helper.make_node("Gemm", ["xf", "wf", "bf"], ["a"]),
             helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"])]
    graph = helper.make_graph(nodes, "case", [helper.make_tensor_value_info("x", TensorProto.UINT8, o.x.shape)],
                              [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
                              [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": o.x})[0]


def alternate(calls: list[Call], seconds: float) -> list[list[float]]:
    """Milliseconds of each call; the calls take turns of about `seconds` / (2 * ROUNDS) each."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, out in zip(calls, times, strict=True):
            time.sleep(PAUSE)
            call()
            spent = 0.0
            while spent < seconds / (2 * ROUNDS):
                start = time.perf_counter()
                call()
                taken = time.perf_counter() - start
                out.append(1e3 * taken)
                spent += taken
    return times


def measure(name: str, threads: int, isa: str | None, seconds: float) -> dict[str, Any]:
    """One row: medians and minima in ms, TOPS of graphq's minimum, and the ratios."""
    m, k, n = CASES[name]
    o = Operands.of(m, k, n)
    ours, theirs = graphq_call(o, threads, isa), onnxruntime_call(o, threads)
    times = alternate([ours] if theirs is None else [ours, theirs], seconds)
    row: dict[str, Any] = {"case": name, "m": m, "k": k, "n": n, "threads": threads,
                           "median_ms": statistics.median(times[0]), "minimum_ms": min(times[0]),
                           "tops": 2e-9 * m * k * n / min(times[0])}
    if theirs is not None:
        row |= {"ort_median_ms": statistics.median(times[1]), "ort_minimum_ms": min(times[1]),
                "largest_difference": int(np.abs(ours().astype(int) - theirs()).max())}
        row |= {"ratio_of_medians": row["ort_median_ms"] / row["median_ms"],
                "ratio_of_minima": row["ort_minimum_ms"] / row["minimum_ms"]}
    return row


def print_row(row: dict[str, Any]) -> None:
    """One line of the table."""
    line = f"{row['case']:16s} {row['threads']:3d} {row['median_ms']:9.4f} {row['minimum_ms']:9.4f} {row['tops']:6.2f}"
    if "ort_median_ms" in row:
        line += f" {row['ort_median_ms']:9.4f} {row['ort_minimum_ms']:9.4f}" \
                f" {row['ratio_of_medians']:7.2f} {row['ratio_of_minima']:7.2f} {row['largest_difference']:5d}"
    print(line, flush=True)


def geometric_mean(values: list[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    """Measure and print; 1 when results differ from ONNX Runtime's by more than one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", help="an ISA level of graphq (default: the best)")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case and thread count (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    options = parser.parse_args()

    print(f"{'case':16s} thr  graphq ms (min)  TOPS    ORT ms (min)       ratio (min)  diff")
    rows = []
    for threads in options.threads:
        ratios: dict[str, list[float]] = {"ratio_of_medians": [], "ratio_of_minima": []}
        for name in options.case:
            row = measure(name, threads, options.isa, options.seconds)
            rows.append(row)
            print_row(row)
            for key, values in ratios.items():
                values += [row[key]] if key in row else []
        if ratios["ratio_of_medians"]:
            medians, minima = map(geometric_mean, ratios.values())
            print(f"{threads} threads: geometric mean of ONNX Runtime's time over graphq's: {medians:.2f} of medians, "
                  f"{minima:.2f} of minima\n")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if not any("ort_median_ms" in r for r in rows):
        print("ONNX Runtime was not measured: it needs 'onnx' and 'onnxruntime' (pip install graphq[bench])")
    return int(any(r.get("largest_difference", 0) > 1 for r in rows))


if __name__ == "__main__":
    sys.exit(main())
