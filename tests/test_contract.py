"""The numbers contract of the integer matmul: the same bits at all levels, thread counts and splits, no overflow."""
import numpy as np
import pytest
from differential import formulas_of

import graphq as gq

LIMIT = 65_793
"""The most products of 255 by -128 whose sum is an s32."""
RANGES = {"u8": (0, 255), "s8": (-128, 127)}


def matmul(m, k, n, weights, *, x="u8", zx=0, batch=(), quantized=False):
    """x @ weights with scales of 1; `weights` may be an array or an element type."""
    g = gq.Graph("product")
    a = g.dequantize(g.input("x", shape=(*batch, m, k), dtype=x), scales=[1.0], zps=[zx])
    w = g.input("w", shape=(k, n), dtype=weights) if isinstance(weights, str) else g.constant(weights)
    y = g.matmul(a, g.dequantize(w, qtype="per_channel", axis=1, scales=[1.0] * n))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[37.0], zps=[3]) if quantized else y, name="y")
    return g


@pytest.mark.parametrize("x", ["u8", "s8"])
def test_extreme_inputs_of_large_k(level, x):
    """Rows of least, of greatest and of mixed values by columns likewise, and zero points at both ends."""
    k, (low, high) = 65_536, RANGES[x]
    rng = np.random.default_rng(0)
    data = np.stack([np.full(k, low), np.full(k, high), rng.choice([low, high], k)]).astype(f"{'u' * (x == 'u8')}int8")
    w = np.stack([np.full(k, -128), np.full(k, 127), rng.choice([-128, 127], k)], axis=1).astype(np.int8)
    for zx in (low, high):
        exact = (data.astype(np.int64) - zx) @ w.astype(np.int64)
        assert np.abs(exact).max() == 255 * 128 * k
        model = gq.compile(matmul(3, k, 3, w, x=x, zx=zx), isa=level, strict=True)
        assert np.array_equal(model(x=data), exact.astype(np.int32).astype(np.float32))


@pytest.mark.parametrize("weights", ["constant", "operand"])
def test_sums_reach_the_end_of_s32_and_not_beyond(level, weights):
    def graph(k):
        return matmul(1, k, 1, np.full((k, 1), -128, np.int8) if weights == "constant" else "s8")

    x, w = np.full((1, LIMIT), 255, np.uint8), np.full((LIMIT, 1), -128, np.int8)
    model = gq.compile(graph(LIMIT), isa=level, strict=True)
    y = model(x=x) if weights == "constant" else model(x=x, w=w)
    assert y[0, 0] == np.float32(-255 * 128 * LIMIT) and 255 * 128 * LIMIT < 2**31 <= 255 * 128 * (LIMIT + 1)
    model = gq.compile(graph(LIMIT + 1), isa=level)
    x, w = np.full((1, LIMIT + 1), 255, np.uint8), np.full((LIMIT + 1, 1), -128, np.int8)
    y = model(x=x) if weights == "constant" else model(x=x, w=w)
    assert f"k = {LIMIT + 1} can reach {255 * 128 * (LIMIT + 1)}, beyond s32" in model.explain()
    assert abs(y[0, 0] / (-255 * 128 * (LIMIT + 1)) - 1) < 1e-6


def test_ties_go_to_even(level):
    """Every other sum lies halfway between two steps."""
    w, x = np.zeros((70, 20), np.int8), np.zeros((64, 70), np.uint8)
    w[3], x[:, 3] = 16, np.random.default_rng(1).integers(0, 256, 64)
    g = gq.Graph("ties")
    y = g.matmul(g.dequantize(g.input("x", shape=x.shape, dtype="u8"), scales=[0.5]),
                 g.dequantize(g.constant(w), scales=[2.0]))
    g.output(g.quantize(y, dtype="u8", scales=[32.0], zps=[7]), name="y")
    y = gq.compile(g, isa=level)(x=x)
    assert np.array_equal(y, gq.reference(g, x=x))
    assert np.array_equal(y[:, 0], np.clip(np.rint(x[:, 3] * 0.5) + 7, 0, 255))


def random_case(x="u8", batch=(6,)):
    """A graph, its weights the same for every batch, and data."""
    rng = np.random.default_rng(2)
    low, high = RANGES[x]
    g = matmul(37, 130, 83, rng.integers(-128, 128, (130, 83), dtype=np.int8), x=x, zx=5, batch=batch, quantized=True)
    return g, rng.integers(low, high + 1, (*batch, 37, 130)).astype(gq.dtypes.as_dtype(x).numpy)


@pytest.mark.parametrize("x", ["u8", "s8"])
def test_the_same_bits_at_every_level_however_it_is_chosen(level, x, monkeypatch):
    g, data = random_case(x)
    expected = gq.compile(g, isa="scalar", threads=1).formula(x=data)
    assert np.array_equal(gq.compile(g, isa=level)(x=data), expected)
    monkeypatch.setenv("GRAPHQ_ISA", level)
    model = gq.compile(g)
    assert model.level.name == level and f"ISA level {level}" in model.explain()
    assert np.array_equal(model(x=data), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_of_a_batch_and_of_its_parts(level, threads):
    g, data = random_case()
    whole = gq.compile(g, isa=level, threads=threads)(x=data)
    for parts in (2, 3, 6):
        size = 6 // parts
        part = gq.compile(random_case(batch=(size,))[0], isa=level, threads=threads)
        for k in range(parts):
            assert np.array_equal(part(x=data[k * size:(k + 1) * size]), whole[k * size:(k + 1) * size])


@pytest.mark.parametrize("added", ["the sum", "the dequantized source", "another reader of the source"])
def test_an_added_output_keeps_the_integers_of_others(added):
    """The inputs have outputs near a tie, which a convolution in f32 rounds to other integers."""
    g, rng = gq.Graph("network"), np.random.default_rng(2)
    d = g.dequantize(g.input("x", dtype="u8", shape=(1, 32, 40, 40)), scales=[0.02], zps=[117])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (32, 32, 3, 3)).astype(np.int8)), scales=[0.013])
    y = g.convolution(d, w, g.constant(rng.normal(size=32).astype(np.float32)), strides=(1, 1), pads_begin=(1, 1),
                      pads_end=(1, 1), data_format="NCX", weights_format="OIX")
    g.output(g.quantize(y, scales=[0.11], zps=[128], dtype="u8"), name="q")
    x = np.random.default_rng(102).integers(0, 256, (1, 32, 40, 40)).astype(np.uint8)
    alone = formulas_of(g, {"x": x})[0]["q"]
    values = {"the sum": y, "the dequantized source": d, "another reader of the source": g.multiply(d, d)}
    g.output(values[added], name="added")
    assert np.array_equal(formulas_of(g, {"x": x})[0]["q"], alone)
