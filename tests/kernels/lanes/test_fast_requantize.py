"""Fast quantizes give what the exact ones do, but near ties, and miss none of those."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import lower_partition
from graphq.kernels.lanes import requantize
from graphq.kernels.lanes.exhaustive_requantize import ONE
from graphq.kernels.lanes.expression import acc, fused, load, op
from graphq.kernels.lanes.fast_requantize import Affine, Rounding, Spread, _fast_error, affine, error_bound
from graphq.kernels.lanes.stores import evaluate


def layer(rng, dtype, zp, x_zp, *, relu=False, residual=False, tail=False, twice="",
          scale=0.07):
    """A matmul of 64 k to 32 columns of scales from 1e-4 to 1e-2, with a bias."""
    n = 32
    g = gq.Graph()
    a = g.dequantize(g.input("x", shape=(5, 64), dtype="u8"), scales=[0.02], zps=[x_zp])
    w = g.constant(rng.integers(-128, 128, (64, n)).astype(np.int8))
    b = g.dequantize(w, qtype="per_channel", axis=1, scales=np.geomspace(1e-4, 1e-2, n).tolist())
    y = g.matmul(a, b, g.constant(rng.normal(size=n, scale=3).astype(np.float32)))
    if twice:
        q = dict(scales=[0.071], zps=[zp])
        y = g.dequantize(g.quantize(y, dtype=dtype, **q), **q)
        y = g.multiply(y, g.constant(np.float32(0.9))) if twice == "scaled" else y
        for c in (3e4, -3e4) if twice == "cancels" else ():
            y = g.add(y, g.constant(np.float32(c)))
        y = g.subtract(y, g.multiply(y, g.constant(np.float32(0.999)))) if twice == "nearly cancels" else y
    if residual:
        y = g.add(y, g.dequantize(g.input("r", shape=(5, n), dtype="s8"), scales=[0.03], zps=[-5]))
    if tail:
        y = g.tanh(y)
    y = g.relu(y) if relu else y
    g.output(g.quantize(y, dtype=dtype, scales=[0.0101 if tail else scale], zps=[zp]), name="y")
    gq.passes.run_passes(g)
    (node,) = [x for x in g.nodes if x.op.name == "partition"]
    return lower_partition(node), [None if v is None else v.data for v in node.inputs]


CASES = {
    "u8": dict(dtype="u8", zp=0, x_zp=0), "compensated": dict(dtype="u8", zp=3, x_zp=119),
    "s8": dict(dtype="s8", zp=-7, x_zp=0), "relu": dict(dtype="u8", zp=40, x_zp=8, relu=True),
    "s8, relu": dict(dtype="s8", zp=40, x_zp=8, relu=True), "residual": dict(dtype="u8", zp=128, x_zp=3, residual=True),
    "residual, relu": dict(dtype="s8", zp=-128, x_zp=3, residual=True, relu=True),
    "requantized": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="plain"),
    "requantized s8": dict(dtype="s8", zp=-3, x_zp=30, residual=True, twice="scaled", relu=True),
    "ties decided": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="plain", relu=True, scale=0.0651773),
    "constants cancel": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="cancels"),
    "bytes nearly cancel": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="nearly cancels"),
    "one byte": dict(dtype="s8", zp=-3, x_zp=30, twice="scaled"),
    "not a sum": dict(dtype="u8", zp=120, x_zp=3, tail=True),
}


ROWS = 1000
"""Rows that are evaluated at a time: what all steps of an expression give for them stays in a cache."""


@pytest.mark.parametrize("case", CASES)
def test_fast_quantizes_are_exact_outside_of_bands(case):
    rng = np.random.default_rng(7)
    made, constants = layer(rng, **CASES[case])
    store, look, shape = made.store, made.store.second_look, (200_000, 32)
    total = np.concatenate([rng.integers(-3000, 3000, (100_000, 32)), rng.integers(-10**6, 10**6, (100_000, 32))])
    operands = []
    for s in made.sources:
        data = constants[s.index] if s.origin == "input" else s.data
        if s.origin == "input" and data is None:
            data = rng.integers(-128, 128, shape).astype(np.int8)
        elif data is None:  # what the zero point of x adds
            data = rng.integers(-9999, 9999, 32).astype(np.int32)
        operands.append(data)

    def value(x, rows):
        part = [np.broadcast_to(y, shape)[rows] for y in operands]
        return np.broadcast_to(evaluate(x, total[rows].astype(np.int32), part), (ROWS, 32))

    in_band, near = np.zeros(shape, bool), np.zeros(shape, bool)
    for rows in (slice(k, k + ROWS) for k in range(0, len(total), ROWS)):
        in_band[rows] = value(op("lt", op("and", look.distance, 0xFFFF), look.band), rows)
        near[rows] = value(look.needed, rows)
        same = (value(store.expr, rows) & 0xFF) == (value(store.fast, rows) & 0xFF)
        assert (same | in_band[rows]).all() and (in_band[rows] | ~near[rows]).all()
    assert near.any()
    if "cancel" not in case:  # there bands are as wide as roundings are
        assert in_band.mean() < 0.004 * (2 if CASES[case].get("twice") else 1)


def test_ties_of_two_bytes_are_decided():
    made, _ = layer(np.random.default_rng(7), **CASES["ties decided"])
    assert made.store.second_look.distance.op == "shl"  # that of the first quantize alone


LO = {"u8": 0, "s8": -128}


@pytest.mark.parametrize("dtype", LO)
@pytest.mark.parametrize("factor, constant, other", [
    (0.9, -200, 0), (0.9, 0, 0), (0.9, 200, 0), (-0.9, 200, 0), (0.3, -60, 0), (0.5, -100, 0.4), (0.5, 60, 0.4),
    (-0.5, 60, -0.4), (0.02, 0, 0.9)])
def test_bounds_of_multiply_adds_are_not_exceeded_and_nearly_reached(dtype, factor, constant, other):
    """Of 3,000 columns with factors and constants alike: a byte that was quantized, and one that is loaded, or none."""
    rng, n = np.random.default_rng(0), 3000
    x, y = requantize.quantized(load(0, "s32", "vector"), dtype), load(1, "s8", "vector")
    f, g = (z * (1 + rng.random(n) / 64) for z in (factor, other))
    constants = constant + 8 * rng.random(n)
    factors, integers = {x: f}, {}
    if other:
        factors[y], integers[y] = g, Spread.between(np.full(1, -128.0), np.full(1, 127.0))
    bound = _fast_error(Affine(factors, constants), integers, np.full(1, 0.5), 256.0)
    xs, ys = np.arange(256.0)[:, None] + LO[dtype], rng.integers(-128, 128, (256, 1)).astype(np.float64)
    exact = constants + 0.5 + xs * f + ys * g
    total = np.broadcast_to(np.float32(constants + 0.5 + (LO[dtype] - 256) * f), exact.shape)
    total = fused(np.float32(xs - LO[dtype] + 256), np.float32(f), total)
    total = fused(np.float32(ys), np.float32(g), total)
    error = np.where(np.abs(exact) <= 256, np.abs(total - exact), 0).max(0)
    assert (error <= bound).all() and (error / bound).max() > 0.5


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dtype, zp", [("u8", 0), ("u8", 128), ("s8", -5)])
@pytest.mark.parametrize("bias", [0, 40, -300])
def test_the_fast_form_is_as_near_to_the_stated_one_as_its_bound_and_not_much_nearer(dtype, zp, bias, stored):
    """Of sums of up to 2**20, times a scale, plus a bias in steps: where the integer is not saturated."""
    rng, n, lo = np.random.default_rng(0), 3000, LO[dtype]
    step, scale = np.float32(0.0317), rng.uniform(1e-5, 2e-5, n).astype(np.float32)
    biases = (step * (bias + rng.random(n))).astype(np.float32)
    inverse = np.float32(1) / step
    loads = [load(k, "f32", "column") for k in range(2)]
    y, numbers = op("to_f32", acc("s32")) * loads[0] + loads[1], dict(zip(loads, (scale, biases), strict=True))
    r = Rounding(y, y, dtype, 1 / np.full(1, inverse, float), np.full(1, float(zp)))
    sum_ = affine(y, numbers)
    bound = error_bound(sum_, y, r, numbers, stored)
    total = rng.integers(-2**20, 2**20, (300, n)).astype(np.int32)
    stated = (np.float32(total) * scale + biases) * inverse
    shift, one = (0.0, ONE) if stored else (256.0 - lo, 1.0)
    u = sum_.times(1 / r.scales)
    (factor,) = u.factors.values()
    fast = fused(np.float32(total), np.float32(one * factor), np.float32(one * (u.constant + zp + 0.5 + shift)))
    fast = (np.rint(fast) if stored else fast).astype(float) / one - zp - 0.5 - shift
    at = stated.astype(float) + zp
    apart = np.where((at > lo) & (at < lo + 254.75), np.abs(fast - stated), 0).max(0)
    assert np.isfinite(bound).all() and (apart <= bound).all() and (apart / bound).max() > 0.5
