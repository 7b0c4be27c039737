"""Quantizes: their formula, their bytes, and fast ones: as exact as the others, but near ties, and none is missed."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import lower_partition
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import acc, fused, load, op
from graphq.kernels.lanes.fast_form import ONE, Spread, _derived, _fast_error, _half, _roundings, in_f64


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_quantize_is_its_formula(dtype, at):
    lo, hi = {"u8": (0, 255), "s8": (-128, 127)}[dtype]
    zp, inv = np.float32(lo + np.floor(at * (hi - lo))), np.float32(1 / np.float32(0.37))
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-200, 200, 5000), np.arange(-300, 300) / 2 * 0.37,
                        [np.nan, np.inf, -np.inf, 3e38, -3e38, 2**31, -(2**31), 1e-45, -0.0]]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = np.clip(np.rint(x * inv) + zp, lo, hi)
    expected[np.isnan(x)] = zp
    loads = load(0, "f32", "vector"), load(1, "f32", "scalar"), load(2, "f32", "scalar")
    got = evaluate(Epilogue(quantizing.quantize(*loads, dtype), dtype), None, [x, inv, zp])
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


@pytest.mark.parametrize("dtype, value", [("u8", 200), ("s8", -100), ("u16", 50_000), ("s16", -30_000)])
def test_integers_of_eight_bits_are_told_from_all_others(dtype, value):
    """Also from other numbers of which bits are taken, or that are shifted."""
    x = load(0, "s32", "vector")
    made = quantizing.quantized(x, dtype)
    assert evaluate(made, None, [np.int32([value])]).tolist() == [value]
    assert quantizing.unquantized(made) == ((x, dtype) if dtype in ("u8", "s8") else None)
    shifts = [op("sar", op("shl", x, a), b) for a, b in ((24, 23), (23, 24), (23, 23))]
    masks = [op("and", x, 0x7F), op("or", x, 0xFF), op("sar", op("and", x, 24), 24), op("shr", op("shl", x, 24), 24)]
    assert not any(map(quantizing.unquantized, (x, *shifts, *masks)))


def layer(rng, dtype, zp, x_zp, *, relu=False, residual=False, tail="", twice="", scale=0.07):
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
        y = g.tanh(y) if tail == "tanh" else g.gelu(y, mode=tail)
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
    "two bytes": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="plain", relu=True, scale=0.0651773),
    "constants cancel": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="cancels"),
    "bytes nearly cancel": dict(dtype="u8", zp=3, x_zp=3, residual=True, twice="nearly cancels"),
    "one byte": dict(dtype="s8", zp=-3, x_zp=30, twice="scaled"),
    "not a sum": dict(dtype="u8", zp=120, x_zp=3, tail="tanh"),
    "gelu": dict(dtype="u8", zp=17, x_zp=3, tail="gelu_erf"),
    "gelu by tanh": dict(dtype="s8", zp=-100, x_zp=3, tail="gelu_tanh"),
}


ROWS = 1000
"""Rows that are evaluated at a time: what all steps of an expression give for them stays in a cache."""


@pytest.mark.parametrize("case", CASES)
def test_fast_quantizes_are_exact_outside_of_bands(case):
    rng = np.random.default_rng(7)
    made, constants = layer(rng, **CASES[case])
    epilogue, look, shape = made.epilogue, made.epilogue.second_look, (16_000, 32)
    total = np.concatenate([rng.integers(-3000, 3000, (8_000, 32)), rng.integers(-10**6, 10**6, (8_000, 32))])
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
        in_band[rows] = value(op("lt", op("and", epilogue.fast.distance, 0xFFFF), epilogue.fast.band), rows)
        near[rows] = value(look.needed, rows)
        same = (value(epilogue.expr, rows) & 0xFF) == (value(epilogue.form("fast"), rows) & 0xFF)
        assert (same | in_band[rows]).all() and (in_band[rows] | ~near[rows]).all()
    assert near.any()
    if "cancel" not in case:  # there bands are as wide as roundings are
        assert in_band.mean() < 0.004 * (2 if CASES[case].get("twice") else 1)


def test_layers_of_one_structure_share_what_is_derived():
    """And the kernel: layers differ only in their numbers."""
    stores, derived = [], []
    for seed in (7, 8):
        stores.append(layer(np.random.default_rng(seed), **CASES["residual, relu"])[0].epilogue)
        derived.append(_derived.cache_info().misses)
    assert stores[0] == stores[1] and derived[0] == derived[1]


LO = {"u8": 0, "s8": -128}


@pytest.mark.parametrize("dtype", LO)
@pytest.mark.parametrize("factor, constant, other", [
    (0.9, -200, 0), (0.9, 0, 0), (0.9, 200, 0), (-0.9, 200, 0), (0.3, -60, 0), (0.5, -100, 0.4), (0.5, 60, 0.4),
    (-0.5, 60, -0.4), (0.02, 0, 0.9)])
def test_bounds_of_multiply_adds_are_not_exceeded_and_nearly_reached(dtype, factor, constant, other):
    """Of 3,000 columns with factors and constants alike: a byte that was quantized, and one that is loaded, or none."""
    rng, n = np.random.default_rng(0), 3000
    x, y = quantizing.quantized(load(0, "s32", "vector"), dtype), load(1, "s8", "vector")
    f, g = (z * (1 + rng.random(n) / 64) for z in (factor, other))
    constants = constant + 8 * rng.random(n)
    factors, integers = {x: f}, {}
    if other:
        factors[y], integers[y] = g, Spread.between(np.full(1, -128.0), np.full(1, 127.0))
    bound = _fast_error(factors, constants + 0.5, integers, 256.0)
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
    loads = [load(k, "f32", kind) for k, kind in enumerate(("column", "column", "scalar", "scalar"))]
    numbers = dict(zip(loads, (scale, biases, np.atleast_1d(inverse), np.float32([zp])), strict=True))
    y = op("to_f32", acc("s32")) * loads[0] + loads[1]
    (r,) = _roundings((quantizing.quantize(y, *loads[2:], dtype),), frozenset(numbers))
    bound = _half(r, (np.zeros(1), 0.0), numbers, stored)
    total = rng.integers(-2**20, 2**20, (300, n)).astype(np.int32)
    stated = (np.float32(total) * scale + biases) * inverse
    shift, one = (0.0, ONE) if stored else (256.0 - lo, 1.0)
    factor, offset = in_f64((*r.u.factors.values(), r.u.constant), numbers)
    fast = fused(np.float32(total), np.float32(one * factor), np.float32(one * (offset + zp + 0.5 + shift)))
    fast = (np.rint(fast) if stored else fast).astype(float) / one - zp - 0.5 - shift
    at = stated.astype(float) + zp
    apart = np.where((at > lo) & (at < lo + 254.75), np.abs(fast - stated), 0).max(0)
    assert np.isfinite(bound).all() and (apart <= bound).all() and (apart / bound).max() > 0.5
