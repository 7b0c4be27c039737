"""Compare matmuls with ONNX Runtime, oneDNN and NumPy's BLAS.

    python benchmarks/matmul.py [--variant NAME ...] [--threads 1 2] [--isa LEVEL] [--case NAME ...] [--json FILE]
                                [--roofline FILE.png]

Variants:

- u8: u8 by s8 per channel, f32 bias, ReLU, requantized to u8
- s8: the same from s8 to s8
- gelu_add: GELU and an added u8 residual, then requantized
- f32, bf16, f16: x @ w, compared with NumPy in f32
- 4bit: u8 by s4 in groups of 128, compared with graphq's 8-bit weights

A case is a name, or m, k and n, such as 5x1024x768. The engines take turns; a ratio above 1 means that graphq is
faster. Integer results may differ by one step, because engines round differently.
"""
from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import peers
import timing
from peers import EIGHT, NUMPY, ONEDNN, ORT, Call, Layer
from timing import Case

import graphq as gq
from graphq.dtypes import Name
from graphq.kernels.target import LevelName

CASES = {  # m, k, n
    "mm_1024": (1024, 1024, 1024),
    "mm_bert_ffn": (384, 768, 3072),
    "mm_bert_out": (384, 3072, 768),
    "mm_64x1024x4096": (64, 1024, 4096),
    "mm_32x768x768": (32, 768, 768),
    "mm_odd": (197, 479, 333),
    "mm_gemv": (1, 1024, 1024),
}
MORE = {"mm_gemv_4096": (1, 4096, 4096)}
SIZED = r"\d+x\d+x\d+"
GROUP = 128  # rows of 4-bit weights per scale; if this does not divide k, all rows share a scale
R_SCALE, R_ZP = 0.04, 128  # of the residual
FLOATS: dict[Name, tuple[Any, float]] = {"f32": (np.float32, 1e-5), "bf16": (ml_dtypes.bfloat16, 2e-2),
                                         "f16": (np.float16, 2e-3)}
"""The NumPy dtype of each float variant, and the allowed difference from an f32 result."""


def sizes(name: str) -> tuple[int, ...]:
    """The sizes m, k and n of a case, given by name or as a text such as 5x1024x768."""
    return (CASES | MORE).get(name) or tuple(map(int, name.split("x")))


def graphq_layer(o: Layer, threads: int, isa: LevelName | None, *, gelu: bool = False, group: int = 0) -> Call:
    """Compile the quantized layer with graphq. If `gelu`, it has GELU and the residual instead of ReLU.

    With `group`, the weights are s4 with a scale for every `group` rows.
    """
    g = gq.Graph("case")
    x = g.dequantize(g.input("x", shape=o.x.shape, dtype=o.dtype), scales=[o.x_scale], zps=[o.x_zp])
    if group:
        w = g.constant(o.w.astype(ml_dtypes.int4), name="w")
        w = g.dynamic_dequantize(w, g.constant(np.tile(o.w_scales, (len(o.w) // group, 1))), qtype="per_group",
                                 group_shape=[group, 1])
    else:
        w = g.dequantize(g.constant(o.w, name="w"), qtype="per_channel", axis=1, scales=o.w_scales.tolist())
    y = g.bias_add(g.matmul(x, w), o.bias)
    if gelu:
        r = g.dequantize(g.input("residual", shape=o.more["residual"].shape, dtype="u8"), scales=[R_SCALE], zps=[R_ZP])
        y = g.add(g.gelu(y), r)
    else:
        y = g.relu(y)
    g.output(g.quantize(y, dtype=o.dtype, scales=[o.y_scale], zps=[o.y_zp]), name="y")
    model = gq.compile(g, threads=threads, isa=isa, strict=True)
    return partial(model, {"x": o.x, **o.more})


def quantized(name: str, threads: int, isa: LevelName | None, *, dtype: Name) -> Case:
    """Build a case: u8 or s8, bias, ReLU, requantized."""
    m, k, n = sizes(name)
    o = Layer.random((m, k), (k, n), 1, dtype)
    onnx: list[peers.Node] = [("Gemm", ["xf", "wf", "bf"], "a", {}), ("Relu", ["a"], "r", {})]
    return Case(graphq_layer(o, threads, isa),
                {ORT: peers.onnxruntime_call(o, onnx, threads), ONEDNN: peers.onednn_linear(o, threads)},
                m * k * n, m * k + k * n + 8 * n + m * n)


def gelu_add(name: str, threads: int, isa: LevelName | None) -> Case:
    """Build a case: u8, bias, GELU, an added u8 residual, u8. oneDNN is left out: the residual has its own scale."""
    m, k, n = sizes(name)
    o = Layer.random((m, k), (k, n), 1)
    o = replace(o, more={"residual": np.random.default_rng(1).integers(0, 256, (m, n), dtype=np.uint8)}, y_zp=10)
    onnx: list[peers.Node] = [
        ("Gemm", ["xf", "wf", "bf"], "a", {}), ("Gelu", ["a"], "b1", {}),
        ("DequantizeLinear", ["residual", "rs", "rz"], "rf", {}), ("Add", ["b1", "rf"], "r", {})]
    constants = {"rs": np.float32(R_SCALE), "rz": np.uint8(R_ZP)}
    return Case(graphq_layer(o, threads, isa, gelu=True),
                {ORT: peers.onnxruntime_call(o, onnx, threads, opset=20, constants=constants), ONEDNN: None},
                m * k * n, m * k + k * n + 8 * n + 2 * m * n)


def four_bit(name: str, threads: int, isa: LevelName | None) -> Case:
    """Build a case as u8, with s4 weights in groups; the peer is graphq with s8 weights and a scale per column."""
    m, k, n = sizes(name)
    o = Layer.random((m, k), (k, n), 1)
    o = replace(o, w=o.w >> 4, w_scales=16 * o.w_scales)
    group = k if k % GROUP else GROUP
    return Case(graphq_layer(o, threads, isa, group=group), {EIGHT: graphq_layer(o, threads, isa)},
                m * k * n, m * k + k * n // 2 + 4 * n * (k // group) + 4 * n + m * n)


def floating(name: str, threads: int, isa: LevelName | None, *, dtype: Name) -> Case:
    """Build a case: x @ w with a float dtype in and out."""
    m, k, n = sizes(name)
    kind, tolerance = FLOATS[dtype]
    r = np.random.default_rng(0)
    x, w = (r.standard_normal(shape, np.float32).astype(kind) for shape in ((m, k), (k, n)))
    g = gq.Graph("case")
    g.output(g.matmul(g.input("x", shape=(m, k), dtype=dtype), g.constant(w, name="w")), name="y")
    model = gq.compile(g, threads=threads, isa=isa)
    return Case(partial(model, {"x": x}),
                {NUMPY: peers.numpy_matmul(x.astype(np.float32), w.astype(np.float32), threads)},
                m * k * n, x.nbytes + w.nbytes + m * n * x.itemsize, tolerance)


VARIANTS: timing.Variants = {
    "u8": partial(quantized, dtype="u8"), "s8": partial(quantized, dtype="s8"), "gelu_add": gelu_add,
    **{dtype: partial(floating, dtype=dtype) for dtype in FLOATS}, "4bit": four_bit}

if __name__ == "__main__":
    sys.exit(timing.run(timing.arguments(__doc__, list(CASES), list(VARIANTS), ["u8", "s8", "gelu_add"],
                                       list(MORE), SIZED), VARIANTS))
