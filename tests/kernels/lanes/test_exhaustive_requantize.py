"""Constants of two bytes: multiply-adds with them give what the expression gives, in all cases."""
import numpy as np
import pytest

from graphq.kernels.lanes import requantize
from graphq.kernels.lanes.exhaustive_requantize import Byte, find_constants
from graphq.kernels.lanes.expression import const, fused, load, maximum, op
from graphq.kernels.lanes.stores import evaluate

STEPS = 8 * 2.0**-15


def found(scales, zps, out_scale, out_zp, dtype="u8", relu=False, shifts=(256, 0), addend=None):
    """What is found for requantized a sum of two dequantized bytes, and whether it is right of all of them.

    `addend` is an array of one number that the sum takes along.
    """
    types = ("u8", "s8")
    xs = [load(n, t, "vector") for n, t in enumerate(types)]
    y = sum((op("to_f32", x - z) * s for x, z, s in zip(xs, zps, scales, strict=True)), start=const(-0.0))
    number = load(2, "f32", "scalar")
    y = y if addend is None else y + number
    y = maximum(0, y) if relu else y
    q = requantize.quantize_quotient(y, const(out_scale), const(1 / out_scale), const(out_zp), dtype)
    out, *scales = (float(np.float32(s)) for s in (out_scale, *scales))
    bytes_ = [Byte(x, t, s / out, n) for x, t, s, n in zip(xs, types, scales, shifts, strict=True)]
    constant = 0.5 + out_zp - sum(x.factor * z for x, z in zip(bytes_, zps, strict=True))
    constant += 0 if addend is None else float(addend.item()) / out
    lowest = out_zp if relu else requantize.RANGES[dtype][0]
    numbers = {} if addend is None else {number: addend}
    made = find_constants(q, dtype, lowest, bytes_, constant, STEPS, numbers)
    if made is None:
        return None
    cases = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(-128, 128, dtype=np.int8))
    total = np.full(cases[0].shape, made[1], np.float32)
    for x, n, f in zip(cases, shifts, made[0], strict=True):
        total = fused(x.astype(np.float32) + np.float32(n), np.float32(f), total)
    high = np.clip(np.rint(total).astype(np.int64) >> 16, lowest, requantize.RANGES[dtype][1])
    operands = cases if addend is None else [*cases, addend.reshape(1, 1)]
    return (high == evaluate(requantize.quantized(q, dtype), None, operands)).all()


def test_constants_decide_all_cases():
    rng = np.random.default_rng(3)
    results = []
    for n in range(40):
        scales, out = rng.uniform(0.01, 0.1, 2).tolist(), float(rng.uniform(0.03, 0.1))
        dtype = ("u8", "s8")[n % 2]
        lo, hi = requantize.RANGES[dtype]
        zp = lo if n % 4 < 2 else int(rng.integers(lo, hi))
        results.append(found(scales, rng.integers(0, 128, 2).tolist(), out, zp, dtype, relu=n % 3 == 0))
    assert results.count(False) == 0 and results.count(True) > 30


@pytest.mark.parametrize("scales, out", [((0.5, 0.5), 1.0), ((1.0, 1.0), 1.0), ((0.1, 0.1), 0.2), ((1e-9, 0.1), 0.1)])
def test_where_ties_are_many_or_none(scales, out):
    assert found(scales, (3, -7), out, 5) in (None, True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_a_constant_of_any_rank_is_taken_along(shape):
    addend = np.full(shape, 0.55545545, np.float32)
    assert found((0.09399101883172989, 0.041109303823327586), (0, 192), 0.09220854192972183, -32, "s8", addend=addend)


def test_large_factors_are_refused():
    assert found((1.0, 100.0), (0, 0), 0.01, 0) is None


