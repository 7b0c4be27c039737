"""Matmuls with 4-bit weights: the numbers at every ISA level and thread count."""
import ml_dtypes
import numpy as np
import pytest

import graphq as gq
from graphq.testing import random_inputs

RANGES = {"u4": (0, 16), "s4": (-8, 8), "s8": (-128, 128), "u8": (0, 256), "s32": (-60, 60)}
NUMPY = {"u4": np.dtype(ml_dtypes.uint4), "s4": np.dtype(ml_dtypes.int4), "s32": np.dtype(np.int32)}


def dense(m=5, k=128, n=37, group=32, *, w="u4", x="u8", zx=7, zw=None, qtype="per_group", along_n=1, out="u8",
          batch=(), residual=False, transpose_b=False, seed=0):
    """dequantize, dynamic_dequantize -> matmul -> relu -> [+ residual] -> [quantize]; the parameters beside it."""
    rng = np.random.default_rng(seed)
    g = gq.Graph("dense")
    swap = (lambda a: np.ascontiguousarray(a.T)) if transpose_b else (lambda a: a)
    weights = rng.integers(*RANGES[w], (k, n)).astype(NUMPY[w])
    shape = {"per_group": (k // group, n // along_n), "per_channel": (n,), "per_tensor": (1,)}[qtype]
    scales = rng.uniform(1e-3, 2e-2, shape).astype(np.float32)
    zps = None if zw is None else rng.integers(*RANGES[zw], shape).astype(NUMPY[zw])
    options = {"per_group": dict(group_shape=[along_n, group] if transpose_b else [group, along_n]),
               "per_channel": dict(axis=0 if transpose_b else 1), "per_tensor": {}}[qtype]
    parameters = [g.constant(swap(p) if p.ndim == 2 else p) for p in (scales, zps) if p is not None]
    wf = g.dynamic_dequantize(g.constant(swap(weights)), *parameters, qtype=qtype, **options)
    bias = rng.standard_normal(n).astype(np.float32)
    y = g.matmul(g.dequantize(g.input("x", shape=(*batch, m, k), dtype=x), scales=[0.02], zps=[zx]), wf, bias,
                 transpose_b=transpose_b)
    y = g.relu(y)
    if residual:
        y = g.add(g.dequantize(g.input("z", shape=(m, n), dtype="u8"), scales=[0.01], zps=[3]), y)
    g.output(g.quantize(y, dtype=out, scales=[0.05], zps=[3]) if out != "f32" else y, name="y")
    return g, (weights, scales, zps, bias)


VARIANTS = {
    "u4 with zero points": dict(zw="u4"), "s4": dict(w="s4"), "s4 with s32 zero points": dict(w="s4", zw="s32"),
    "s8 source": dict(x="s8", zx=-5, zw="u4"), "groups of both axes": dict(n=36, along_n=9, zw="s4"),
    "groups that are no multiple of 8": dict(k=75, group=15, zw="u4"), "groups of 1": dict(k=3, group=1, x="s8"),
    "transpose b": dict(transpose_b=True, zw="u4"), "per channel": dict(qtype="per_channel", k=131, zw="u4"),
    "per channel, transposed": dict(qtype="per_channel", transpose_b=True),
    "per tensor": dict(qtype="per_tensor", w="s4"), "one row": dict(m=1, n=200), "f32 out": dict(out="f32", zw="u4"),
    "batch and residual": dict(batch=(3,), residual=True, zw="u4", m=7),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_its_formula_and_the_reference(level, variant):
    g, _ = dense(**VARIANTS[variant])
    inputs = random_inputs(g)
    reference = gq.reference(g, inputs)
    for threads in (1, 3):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        assert [n.op.name for n in model.graph.nodes if n.op.name != "constant"] == ["partition"]
        y = model(inputs)
        assert np.array_equal(y, model.formula(inputs))
    steps = np.abs(y.astype(np.float64) - reference)
    if y.dtype == np.float32:
        assert steps.max() <= 1e-5 * np.abs(reference).max()
    else:
        assert steps.max() <= 1 and (steps > 0).mean() <= 1e-4 + 1 / steps.size


@pytest.mark.parametrize("fill", ["random", "low", "high"])
@pytest.mark.parametrize("x", ["u8", "s8"])
def test_the_formula_is_the_written_one(level, x, fill):
    k, group = 96, 24
    g, (w, scales, zps, bias) = dense(m=4, k=k, group=group, x=x, zx=3, zw="u4", out="f32")
    low, high = RANGES[x]
    rng = np.random.default_rng(7)
    data = {"random": lambda: rng.integers(low, high, (4, k)), "low": lambda: np.full((4, k), low),
            "high": lambda: np.full((4, k), high - 1)}[fill]().astype(gq.dtypes.as_dtype(x).numpy)
    y = np.zeros((4, 37), np.float32)
    for j in range(k // group):
        rows = slice(j * group, (j + 1) * group)
        exact = (data[:, rows].astype(int) - 3) @ (w[rows].astype(int) - zps[j].astype(int))
        m = (np.float64(np.float32(0.02)) * scales[j].astype(np.float64)).astype(np.float32)
        y = y + exact.astype(np.float32) * m
    assert np.array_equal(gq.compile(g, isa=level, threads=1)(x=data), np.maximum(y + bias, np.float32(0)))


def test_large_sizes_split_over_threads():
    g, _ = dense(m=3, k=1024, n=1000, group=128, zw="u4")
    inputs = random_inputs(g)
    outs = [gq.compile(g, threads=threads)(inputs) for threads in (1, 2, 3)]
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])
    assert np.array_equal(outs[0], gq.compile(g, threads=1).formula(inputs))


def test_weights_marked_constant_are_packed_at_the_first_call():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(2, 16), dtype="u8"), scales=[0.1])
    w = g.input("w", shape=(16, 5), dtype="u4", property="constant")
    s = g.input("s", shape=(2, 5), dtype="f32", property="constant")
    g.output(g.matmul(x, g.dynamic_dequantize(w, s, qtype="per_group", group_shape=[8, 1])))
    model = gq.compile(g)
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))
    assert "1 partition (1 integer)" in model.explain()
