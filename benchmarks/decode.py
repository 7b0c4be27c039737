"""Compare decode steps of compressed weights with the memory's bandwidth and with ONNX Runtime's MatMulNBits.

    python benchmarks/decode.py [--matrices 16] [--k 4096] [--n 11008] [--block 32] [--seconds S]
                                [--weights s4 s8 f4_e2m1 f8_e4m3 s2 ...] [--level 4 0] [--threads 1]

One row is multiplied by many matrices in turn. Together they are larger than the last cache, so a decode step waits for
memory. A reading kernel measures the bandwidth in the same process: it adds up as many bytes as the weights of 4 bits
have. `share` is bytes of weights and scales per second over this bandwidth. ONNX Runtime multiplies weights of 4 and 8
bits, at the accuracy levels of `--level`: 4 quantizes the row to s8, 0 keeps f32. The engines take turns.
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import peers

import graphq as gq
from graphq.commands.peers import alternate
from graphq.dtypes import as_dtype


def matrices(options: argparse.Namespace, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights [k, n] of the dtype `name`, and their scales [k / block, n]."""
    rng, dtype = np.random.default_rng(0), as_dtype(name)
    out = []
    for _ in range(options.matrices):
        w = rng.integers(0, 1 << min(dtype.bits, 6), (options.k, options.n), np.uint8)
        w = w.view(dtype.numpy) if dtype.kind == "float" else (w + np.uint8(dtype.min % 256)).astype(dtype.numpy)
        out.append((w, rng.uniform(0.001, 0.01, (options.k // options.block, options.n)).astype(np.float32)))
    return out


def ours(options: argparse.Namespace, name: str, level: int) -> Callable[[], Any]:
    """A call of graphq's products of one row; at level 4 the row is quantized in blocks, as ONNX Runtime does."""
    g = gq.Graph("decode")
    x = g.input("x", shape=(1, options.k), dtype="f32")
    if level == 4:
        parts = g.static_reshape(x, shape=[1, options.k // options.block, options.block])
        scales = g.divide(g.reduce_max(g.abs(parts), axes=[-1], keep_dims=True), np.float32(127))
        q = g.static_reshape(g.quantize(g.divide(parts, scales), dtype="s8", scales=[1.0]), shape=[1, options.k])
        x = g.dynamic_dequantize(q, g.static_reshape(scales, shape=[1, options.k // options.block]), qtype="per_group",
                                 group_shape=[1, options.block])
    for number, (w, s) in enumerate(matrices(options, name)):
        wide = g.dynamic_dequantize(g.constant(w), g.constant(s), qtype="per_group", group_shape=[options.block, 1])
        g.output(g.matmul(x, wide), name=f"y{number}")
    model = gq.compile(g, threads=options.threads, strict=True)
    return partial(model, {"x": np.random.default_rng(1).standard_normal((1, options.k)).astype(np.float32)})


def theirs(options: argparse.Namespace, bits: int, level: int) -> Callable[[], Any]:
    """A call of ONNX Runtime's MatMulNBits with weights of `bits` bits."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, constants, blocks = [], [], options.k // options.block
    rng = np.random.default_rng(0)
    for number in range(options.matrices):
        packed = rng.integers(0, 256, (options.n, blocks, options.block * bits // 8), np.uint8)
        scales = rng.uniform(0.001, 0.01, options.n * blocks).astype(np.float32)
        constants += [numpy_helper.from_array(x, f"{name}{number}") for name, x in (("w", packed), ("s", scales))]
        nodes.append(helper.make_node(
            "MatMulNBits", ["x", f"w{number}", f"s{number}"], [f"y{number}"], domain="com.microsoft", K=options.k,
            N=options.n, bits=bits, block_size=options.block, accuracy_level=level))
    of = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = helper.make_graph(nodes, "decode", [of("x", shape=[1, options.k])],
                              [of(f"y{number}", shape=[1, options.n]) for number in range(options.matrices)], constants)
    file = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(file.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {"x": rng.standard_normal((1, options.k)).astype(np.float32)})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("matrices", 16), ("k", 4096), ("n", 11008), ("block", 32), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each engine (default 5)")
    parser.add_argument("--weights", nargs="+", default=["s4", "s8", "f4_e2m1", "f8_e4m3", "s2"], metavar="DTYPE")
    parser.add_argument("--level", nargs="+", type=int, choices=(0, 4), default=[4, 0])
    options = parser.parse_args()
    count = options.matrices * options.k * options.n
    scales = 4 * count // options.block
    calls: dict[str, Callable[[], Any]] = {}
    sizes: dict[str, int] = {}
    source = np.ones(count // 8, np.float32)  # as many bytes as weights of 4 bits
    g = gq.Graph("read")
    g.output(g.reduce_sum(g.input("x", shape=(options.matrices, source.size // options.matrices), dtype="f32"),
                          axes=[1]))
    reading = gq.compile(g, threads=options.threads, strict=True)
    calls["reading"], sizes["reading"] = partial(reading, {"x": source.reshape(options.matrices, -1)}), source.nbytes
    for name in options.weights:
        bits = 8 if as_dtype(name).bits == 6 else as_dtype(name).bits
        for level in options.level:
            if level == 4 and name.startswith("f8"):
                continue  # integer kernels take no floats of 8 bits
            key = f"graphq {name}, level {level}"
            calls[key], sizes[key] = ours(options, name, level), count * bits // 8 + scales
            if name in ("s4", "s8") and not peers.missing(peers.ORT):
                key = f"{peers.ORT} {name}, level {level}"
                calls[key], sizes[key] = theirs(options, bits, level), count * bits // 8 + scales
    times = [statistics.median(t) for t in alternate(list(calls.values()), options.seconds * len(calls))]
    speeds = {name: sizes[name] / t / 1e6 for name, t in zip(calls, times, strict=True)}
    for (name, speed), t in zip(speeds.items(), times, strict=True):
        print(f"{name:32s} {t:9.2f} ms {speed:7.2f} GB/s  share {speed / speeds['reading']:.2f}")


if __name__ == "__main__":
    main()
