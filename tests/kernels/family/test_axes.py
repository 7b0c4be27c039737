"""Scales of axes in epilogues: every axis of operands of every rank, against the reference.

All dimensions are 3, so that parameters along a wrong axis are numbers and no error.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.model.build_plan import evaluate_formulas
from graphq.passes.pipeline import run_passes

N = 3
SCALES = [0.03125, 0.125, 0.5]


def feeds(g):
    rng = np.random.default_rng(8)
    return {v.name: rng.integers(0, 256, v.type.dims).astype(np.uint8) for v in g.inputs}


def formulas(g):
    """The outputs of the formulas after all passes, in which something fused."""
    h = g.copy()
    run_passes(h)
    assert h.nodes_of({"partition"})
    return evaluate_formulas(h, feeds(g))[0]


def axes(rank):
    return range(-rank, rank)


def along(axis):
    return {"qtype": "per_channel", "axis": axis, "scales": SCALES}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("lower", [1, 2, 3])
def test_elementwise(rank, lower):
    """add(dequantize(x), dequantize(z)) of any ranks and axes, quantized along any axis, is exact."""
    for a in axes(rank):
        for b in axes(min(lower, rank)):
            for c in (0, -1, rank // 2):
                g = gq.Graph()
                x = g.dequantize(g.input("x", shape=[N] * rank, dtype="u8"), **along(a))
                z = g.dequantize(g.input("z", shape=[N] * min(lower, rank), dtype="u8"), **along(b))
                g.output(g.quantize(g.relu(g.add(x, z)), dtype="u8", **along(c)), name="y")
                assert np.array_equal(formulas(g), gq.reference(g, feeds(g))), (a, b, c)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_dequantize_that_is_quantized_back(rank):
    """It is taken back only along the same axis, however equal the numbers are."""
    for a in axes(rank):
        for c in axes(rank):
            g = gq.Graph()
            x = g.input("x", shape=[N] * rank, dtype="u8")
            y = g.quantize(g.dequantize(x, **along(a)), dtype="u8", **along(c))
            g.output(g.quantize(g.abs(g.dequantize(y, scales=[0.25])), dtype="u8", scales=[0.5]), name="y")
            assert np.array_equal(formulas(g), gq.reference(g, feeds(g))), (a, c)


def anchors(g, kind, rank):
    rng = np.random.default_rng(5)
    if kind == "matmul":
        x = g.dequantize(g.input("x", shape=[N] * rank, dtype="u8"), scales=[0.5])
        w = g.dequantize(g.constant(rng.integers(-9, 9, (N, N)).astype(np.int8)), scales=[0.25])
        return g.matmul(x, w)
    x = g.dequantize(g.input("x", shape=[N] * rank, dtype="u8"), scales=[0.5])
    w = g.dequantize(g.constant(rng.integers(-9, 9, (N, N, *[1] * (rank - 2))).astype(np.int8)), scales=[0.25])
    one = [1] * (rank - 2)
    return g.convolution(x, w, strides=one, pads_begin=[0] * (rank - 2), pads_end=[0] * (rank - 2), dilations=one,
                         data_format=kind, weights_format="OIX")


@pytest.mark.parametrize("kind,rank", [("matmul", 2), ("matmul", 3), ("NXC", 3), ("NCX", 3), ("NXC", 4), ("NCX", 4)])
def test_after_an_anchor(kind, rank):
    """Powers of two as scales: all sums are exact in f32 as well, so that formulas are the reference."""
    for lower in range(1, rank + 1):
        for b in axes(lower):
            for c in (0, 1, -1):
                g = gq.Graph()
                y = anchors(g, kind, rank)
                z = g.dequantize(g.input("z", shape=[N] * lower, dtype="u8"), **along(b))
                g.output(g.quantize(g.add(y, z), dtype="s8", **along(c)), name="y")
                assert np.array_equal(formulas(g), gq.reference(g, feeds(g))), (lower, b, c)


@pytest.mark.parametrize("kind,rank", [("matmul", 3), ("NXC", 4), ("NCX", 4)])
@pytest.mark.parametrize("op", ["bias_add", "prelu", "add"])
def test_operands_of_channels_after_an_anchor(kind, rank, op):
    """One dimension along the channels or the last axis, as data_format says, also of squares."""
    for layout in ("NXC", "NCX"):
        g = gq.Graph()
        y = anchors(g, kind, rank)
        y = g.subtract(y, g.constant(np.float32(40)))
        z = g.constant(np.float32([0.5, 2, 8]))
        y = g.add(y, z) if op == "add" else getattr(g, op)(y, z, data_format=layout)
        g.output(g.quantize(y, dtype="s8", scales=[2.0]), name="y")
        assert np.array_equal(formulas(g), gq.reference(g, feeds(g))), layout


@pytest.mark.parametrize("multiplier", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_source_with_scales_of_channels(multiplier, kernel):
    """A depthwise convolution may have them, by any kernel or none: each output reads one channel."""
    rng = np.random.default_rng(6)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=[1, 5, 5, N], dtype="u8"), qtype="per_channel", axis=3, scales=SCALES,
                     zps=[3, 130, 250])
    w = rng.integers(-9, 9, (N * multiplier, 1, kernel, kernel)).astype(np.int8)
    w = g.dequantize(g.constant(w), scales=[0.25])
    y = g.convolution(x, w, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], groups=N,
                      data_format="NXC", weights_format="OIX")
    g.output(g.quantize(y, dtype="s8", scales=[4.0]), name="y")
    h = g.copy()
    run_passes(h)
    assert np.array_equal(evaluate_formulas(h, feeds(g))[0], gq.reference(g, feeds(g)))
    if multiplier in (2, 3) and kernel == 3:  # one that the depthwise kernel takes, and one that it does not
        model = gq.compile(g, threads=1)
        assert np.array_equal(model(feeds(g)), gq.reference(g, feeds(g)))
        assert ("quantized per channel along axis 3" in model.explain()) == (multiplier == 3)
