"""Compare single ONNX operators of language models with ONNX Runtime, where the installed version has them.

    python benchmarks/onnx_operators.py [--operators LinearAttention ...] [--threads 1 2] [--seconds S]

Each line is one size of an operator: prefill of 64 to 512 tokens, or decode of one token. The engines take turns in one
process; the last column is the median time of ONNX Runtime over graphq's. TensorScatter copies its cache, or
with "in place" writes only the new rows, in both engines.
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

import graphq as gq
from graphq.commands.peers import alternate

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(0)


def normal(*dims: int) -> np.ndarray:
    """Normally distributed numbers."""
    return RNG.standard_normal(dims).astype(np.float32)


def model(op: str, inputs: Arrays, outputs: int, constants: Arrays | None = None, opset: int = 27,
          **attrs: Any) -> tuple[ModelProto, Arrays]:
    """A model of one node, whose inputs are the arrays in their order, and after them the constants."""
    constants = constants or {}
    node = helper.make_node(op, [*inputs, *constants], [f"y{k}" for k in range(outputs)], **attrs)
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for name, x in inputs.items()]
    graph = helper.make_graph([node], op, infos, [ValueInfoProto(name=name) for name in node.output],
                              [numpy_helper.from_array(x, name) for name, x in constants.items()])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)]), inputs


def linear_attention(tokens: int, rule: str) -> tuple[ModelProto, Arrays]:
    """16 heads of 128 x 128, as in Qwen3-Next."""
    heads, size = 16, 128
    inputs = {name: normal(1, tokens, heads * size) / size**0.5 for name in "qkv"}
    inputs |= {"state": normal(1, heads, size, size), "decay": -np.abs(normal(1, tokens, heads))}
    if "delta" in rule:
        inputs["beta"] = RNG.random((1, tokens, heads)).astype(np.float32)
    return model("LinearAttention", inputs, 2, q_num_heads=heads, kv_num_heads=heads, update_rule=rule)


def causal_conv(tokens: int) -> tuple[ModelProto, Arrays]:
    """2,048 channels, windows of 4."""
    weights = {"weight": normal(2048, 1, 4), "bias": normal(2048)}
    inputs, constants = {"x": normal(1, 2048, tokens)}, {**weights, "state": normal(1, 2048, 3)}
    file, _ = model("CausalConvWithState", inputs, 2, weights, activation="silu")
    file.graph.node[0].input.append("state")
    file.graph.input.append(helper.make_tensor_value_info("state", 1, (1, 2048, 3)))
    return file, {**inputs, "state": constants["state"]}


def rotary(tokens: int, interleaved: int) -> tuple[ModelProto, Arrays]:
    """32 heads of 128."""
    angles = RNG.uniform(0, 6, (4096, 64)).astype(np.float32)
    inputs = {"x": normal(1, tokens, 32 * 128)}
    file, _ = model("RotaryEmbedding", inputs, 1, {"cos": np.cos(angles), "sin": np.sin(angles)}, 23, num_heads=32,
                    interleaved=interleaved)
    file.graph.node[0].input.append("places")
    file.graph.input.append(helper.make_tensor_value_info("places", 7, (1, tokens)))
    return file, {**inputs, "places": np.arange(tokens, dtype=np.int64)[None] + 100}


def scatter(tokens: int) -> tuple[ModelProto, Arrays]:
    """A cache of 8 heads, 2,048 rows of 128 numbers."""
    inputs = {"cache": normal(1, 8, 2048, 128), "new": normal(1, 8, tokens, 128), "at": np.array([900])}
    return model("TensorScatter", inputs, 1, opset=24)


def swiglu(rows: int) -> tuple[ModelProto, Arrays]:
    """Rows of 8,192 numbers."""
    return model("SwiGLU", {"x": normal(rows, 8192), "z": normal(rows, 8192)}, 1, opset=28)


CASES: dict[str, Callable[[], tuple[ModelProto, Arrays]]] = {
    **{f"LinearAttention {rule}, tokens {n}": partial(linear_attention, n, rule)
       for rule in ("gated_delta", "gated") for n in (1, 64, 512)},
    **{f"CausalConvWithState silu, tokens {n}": partial(causal_conv, n) for n in (1, 8, 64, 512)},
    **{f"RotaryEmbedding interleaved={i}, tokens {n}": partial(rotary, n, i) for i in (0, 1) for n in (1, 64, 512)},
    **{f"TensorScatter{where}, tokens {n}": partial(scatter, n) for where in ("", " in place") for n in (1, 64, 512)},
    **{f"SwiGLU, rows {n}": partial(swiglu, n) for n in (1, 64)}}


def calls(file: ModelProto, inputs: Arrays, threads: int, in_place: bool) -> Iterator[Callable[[], Any]]:
    """A call of graphq, and one of ONNX Runtime if it has the operator; `in_place`, output 0 is in input 0's memory."""
    import onnxruntime

    first = next(iter(inputs))
    ours = gq.compile(gq.load_onnx(file), threads=threads)
    yield ours.bind(inputs, out={"y0": inputs[first]}) if in_place else partial(ours, inputs)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 4
    try:
        session = onnxruntime.InferenceSession(file.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    except Exception:  # of several classes: the installed version lacks the operator, or this operator set
        return
    if not in_place:
        yield partial(session.run, None, inputs)
        return
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y0", values[first])
    yield partial(session.run_with_iobinding, binding)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", default=[""], metavar="NAME", help="names begin with (default: all)")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size (default 2)")
    options = parser.parse_args()
    for name, make in CASES.items():
        if not name.startswith(tuple(options.operators)):
            continue
        file, inputs = make()
        for threads in options.threads:
            times = [statistics.median(t) for t in alternate(
                list(calls(file, inputs, threads, "in place" in name)), options.seconds)]
            peer = f"ONNX Runtime {times[1]:9.4f} ms, ratio {times[1] / times[0]:.2f}" if len(times) > 1 else \
                "ONNX Runtime lacks it"
            print(f"{name:42s} threads {threads}  graphq {times[0]:9.4f} ms, {peer}", flush=True)


if __name__ == "__main__":
    main()
