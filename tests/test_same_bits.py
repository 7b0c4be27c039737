"""Digests of outputs, which are equal on every machine, at every level and with every number of threads.

Levels take turns: tests of kernels compare all levels of a machine with the formula. Whoever moves a digest raises
`NUMBERS` in graphq/model/fingerprint.py, and lists the change first in CHANGELOG.md.
"""
from itertools import cycle

import numpy as np
import pytest
from bits import digest, feed
from level_graphs import compressed, looked_up, numbers, padded, rows
from levels import LEVELS

import graphq as gq


def dense(x, act, out):
    """A quantized layer of odd sizes, with an activation after it."""
    g = gq.Graph("dense")
    scales = (1 + np.arange(50, dtype=np.float32)) / np.float32(16384)
    w = g.dequantize(g.constant(numbers((131, 50), "s8", 1)), qtype="per_channel", axis=1, scales=scales.tolist())
    y = g.matmul(g.dequantize(g.input("x", shape=(7, 131), dtype=x), scales=[0.02], zps=[3]), w)
    y = getattr(g, act)(y)
    g.output(g.quantize(y, dtype=out, scales=[0.05], zps=[5]) if out else y, name="y")
    return g


def float_product():
    """Sums of floats in the stated order."""
    g = gq.Graph("product")
    w = g.constant(numbers((300, 33), "s8", 2).astype(np.float32) / np.float32(77))
    g.output(g.matmul(g.input("x", shape=(9, 300), dtype="f32"), w), name="y")
    return g


def elementwise(*ops):
    """Lane-wise operations of special numbers, one after the other."""
    g = gq.Graph(" ".join(ops))
    x = g.input("x", shape=(203,), dtype="f32")
    for op in ops:
        g.output(getattr(g, op)(x), name=op)
    return g


def sums():
    """Sums along rows, and along the axis before them."""
    g = gq.Graph("sums")
    x = g.input("x", shape=(5, 21, 13), dtype="f32")
    for op in ("reduce_sum", "reduce_mean", "reduce_l2"):
        for axis in (1, 2):
            g.output(getattr(g, op)(x, axes=[axis], keep_dims=True), name=f"{op}_{axis}")
    return g


CASES = {
    "dense u8": (lambda: dense("u8", "relu", "u8"), "ec40d09e886edf1e"),
    "dense s8, gelu": (lambda: dense("s8", "gelu", "s8"), "51619ddaa3a8b246"),
    "dense u8, tanh": (lambda: dense("u8", "tanh", None), "a922e30139fab67d"),
    "convolution": (lambda: padded(24, 1), "cd18b9ff5802cf81"),
    "depthwise": (lambda: padded(1, 24), "ef002f98a1d355a8"),
    "weights of 4 bits": (lambda: compressed("u8", "u4"), "3e820739504a336c"),
    "f32 by weights of 4 bits": (lambda: compressed("f32", "u4"), "d38ee82a274f3f9b"),
    "softmax": (rows, "22bbd7368bdfc0ef"),
    "look-up": (looked_up, "83b5bda9f172c8e7"),
    "sums": (sums, "62805281a2b9a785"),
    "floats": (float_product, "a04c796c5438c194"),
    "elementwise": (lambda: elementwise("exp", "log", "sigmoid", "round", "sqrt", "tanh", "gelu"), "3e97e583ac76c1e3"),
}


@pytest.mark.parametrize(("case", "level"), [*zip(CASES, cycle(reversed(LEVELS)))], indirect=["level"])
def test_outputs_have_their_digest(case, level):
    make, wanted = CASES[case]
    g = make()
    model = gq.compile(g, isa=level, threads=2)
    assert model.level.name == level
    assert digest(model({str(v.name): feed(v) for v in g.inputs})) == wanted
