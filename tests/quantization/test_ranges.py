"""Ranges from histograms: against NumPy on the data themselves."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s8, s16, u8, u16
from graphq.kernels.numbers.observed import histogram
from graphq.ops.quant import dequantize, quantize
from graphq.quantization import Scheme, TensorStatistics
from graphq.quantization.parametrized import limits
from graphq.quantization.ranges import Parameters, chosen_range, from_range, holds, parameters, squared_errors

RNG = np.random.default_rng(5)
DATA = {"normal": RNG.standard_normal(20_000), "positive": np.maximum(RNG.standard_normal(20_000), 0),
        "outliers": np.append(RNG.standard_normal(20_000), [60.0, -30.0]), "shifted": RNG.standard_normal(20_000) + 3,
        "negative": -RNG.exponential(1, 20_000), "two": np.tile([0.0, 1.5], 500)}


def statistics(x):
    t = TensorStatistics()
    counts, (low, high) = histogram(np.asarray(x, np.float32))
    t.add(counts, float(low), float(high))
    return t


def error(x, p):
    """The sum of squared errors on the data."""
    x = np.asarray(x, np.float32)
    q = quantize.reference(x, dtype=p.dtype, **p.attrs)
    return float(np.square(x - dequantize.reference(q, **p.attrs), dtype=np.float64).sum())


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("dtype", [u8, s8])
def test_the_estimated_error_is_that_of_the_data(name, dtype):
    x = DATA[name]
    low, high = x.min(), x.max()
    candidates = [from_range(low * f, high * f, dtype, False) for f in (1, 0.7, 0.3)]
    found = squared_errors(statistics(x).bins(), candidates)
    want = [error(x, p) for p in candidates]
    np.testing.assert_allclose(found, want, rtol=0.05, atol=0.02 * want[-1] + 1e-6)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_is_no_worse_than_any_other_method(name, symmetric):
    t = statistics(DATA[name])
    errors = {m: error(DATA[name], parameters(t, Scheme(method=m, symmetric=symmetric), u8))
              for m in ("mse", "min_max", "percentile")}
    assert errors["mse"] <= 1.02 * min(errors.values()) + 1e-6, errors


@pytest.mark.parametrize("name", ["normal", "outliers", "positive"])
def test_percentiles(name):
    x = DATA[name]
    low, high = chosen_range(statistics(x), Scheme(method="percentile", percentile=99), u8)
    want = np.quantile(np.abs(x), 0.99)
    assert high == pytest.approx(min(want, x.max()), rel=1 / 16)
    assert low == pytest.approx(max(-want, x.min()), rel=1 / 16)


def test_min_max():
    t = statistics([-1, 3])
    t.add(histogram(np.float32([0, 5]))[0], 0.0, 5.0)
    assert chosen_range(t, Scheme(method="min_max"), u8) == (-1, 5)


@pytest.mark.parametrize("dtype, symmetric, scale, zp", [
    (u8, False, 3 / 255, 85), (s8, False, 3 / 255, -43), (s8, True, 2 / 127, 0), (u8, True, 2 / 127, 128),
    (u16, False, 3 / 65535, 21845), (s16, True, 2 / 32767, 0)])
def test_scales_and_zero_points(dtype, symmetric, scale, zp):
    p = from_range(-1, 2, dtype, symmetric)
    assert p.scales == pytest.approx((scale,)) and p.zps == (zp,)


def test_zero_is_represented_exactly():
    for low, high in ((0.3, 2.0), (-5.0, -0.1), (-0.01, 9.0)):
        p = from_range(low, high, u8, False)
        q = quantize.reference(np.zeros(1, np.float32), dtype=u8, **p.attrs)
        assert dequantize.reference(q, **p.attrs) == 0 and (p.limits[0] <= 0 <= p.limits[1])


@pytest.mark.parametrize("value", [0.0, 2.5, -3.0, 1e-30])
@pytest.mark.parametrize("method", ["mse", "min_max", "percentile"])
def test_a_constant_tensor_keeps_its_number(value, method):
    p = parameters(statistics(np.full(100, value)), Scheme(method=method), u8)
    q = quantize.reference(np.full(1, value, np.float32), dtype=u8, **p.attrs)
    assert dequantize.reference(q, **p.attrs)[0] == pytest.approx(value, rel=1e-6, abs=1e-29)


def test_headroom():
    p = parameters(statistics([-1, 2]), Scheme(method="min_max", headroom=1.5), u8)
    assert p.limits == pytest.approx((-1.5, 3), abs=0.01)


@pytest.mark.parametrize("wrong, message", [
    ({"method": "best"}, "method must be one of"), ({"activations": "s32"}, "activations must be one of"),
    ({"percentile": 20}, "percentile must be in"), ({"headroom": 0}, "headroom must be in"),
    ({"block": 0}, "block must be positive"),
    ({"exclude": "name"}, "exclude must be a collection"), ({"weight_bits": 4}, "need mode 'weight_only'"),
    ({"weight_bits": 7, "mode": "weight_only"}, "7-bit weights need integer layers"),
    ({"rounding": "gptq"}, "it needs mode 'weight_only'"), ({"mode": "none"}, "mode must be one of"),
    ({"bias": "s8"}, "bias must be one of"), ({"weight_bits": 3}, "weight_bits must be one of"),
    ({"rounding": "up"}, "rounding must be one of"), ({"percentile": 50}, "percentile must be in"),
    ({"percentile": 100.01}, "percentile must be in"), ({"headroom": 0.09}, "headroom must be in"),
    ({"headroom": 10.1}, "headroom must be in"), ({"wide": "name"}, "wide must be a collection"),
    ({"wide_weights": "name"}, "wide_weights must be a collection"),
    *(({name: ("a",), **other}, "wide and wide_weights need mode 'static' and 8-bit activations")
      for name in ("wide", "wide_weights") for other in ({"mode": "dynamic"}, {"activations": "u16"}))])
def test_wrong_schemes(wrong, message):
    with pytest.raises(gq.GraphError, match=message):
        Scheme(**wrong)


@pytest.mark.parametrize("right", [
    {"percentile": 50.1}, {"percentile": 100}, {"headroom": 0.1}, {"headroom": 10},
    {"mode": "weight_only", "block": 1}, {"mode": "weight_only", "weight_bits": 4, "rounding": "gptq"},
    {"wide": ["a"], "wide_weights": {"b"}},
    {"activations": "s16"}, {"mode": "dynamic", "wide": ()}])
def test_schemes_at_their_limits(right):
    for name, value in right.items():
        kept = s16 if name == "activations" else tuple(value) if isinstance(value, list | set) else value
        assert getattr(Scheme(**right), name) == kept


@pytest.mark.parametrize("low, high, dtype, symmetric, scale, zp", [
    (-127.5, 127.5, u8, False, 1, 128), (-0.5, 254.5, u8, False, 1, 0), (-1.5, 253.5, u8, False, 1, 2),
    (-2.5, 252.5, u8, False, 1, 2), (-254.5, 0.5, s8, False, 1, 126), (-255, 0, u8, False, 1, 255),
    (0, 255, s8, False, 1, -128), (3, 510, u8, False, 2, 0), (-510, -3, u8, False, 2, 255),
    (0, 510, u8, True, 2, 0), (-1, 254, u8, True, 2, 128), (-254, 1, s8, True, 2, 0), (0, 254, s8, True, 2, 0),
    (0, 1e-31, u8, False, 1, 0), (-1e-31, 0, u8, False, 1, 0), (-1e-31, 0, u8, True, 1, 128), (0, 0, s8, False, 1, 0),
    (-32768, 32767, s16, False, 1, 0), (-0.5, 65534.5, u16, False, 1, 0), (-32767, 5, u16, True, 1, 32768)])
def test_zero_points_that_round_and_ends_of_ranges(low, high, dtype, symmetric, scale, zp):
    assert from_range(low, high, dtype, symmetric) == Parameters(dtype, (scale,), (zp,))


def test_the_smallest_scale():
    least = float(np.float32(2.0**-100))
    assert from_range(0, 255 * least, u8, False).scales == (least,)
    assert from_range(0, 254 * least, u8, False).scales == (1.0,)


def test_attributes():
    assert Parameters(u8, (0.5,), (3,)).attrs == {"qtype": "per_tensor", "axis": 1, "scales": [0.5], "zps": [3]}
    assert Parameters(u8, (0.5,), (0,)).attrs["zps"] is None
    assert Parameters(s8, (0.5, 2), (0, 1), 0).attrs == {"qtype": "per_channel", "axis": 0, "scales": [0.5, 2],
                                                         "zps": [0, 1]}
    assert Parameters(s8, (0.5, 2), (0, 0), 3).attrs["axis"] == 3
    assert Parameters(u8, (0.5,), (3,)).limits == (-1.5, 126)


def test_a_range_is_kept_for_what_it_follows_from():
    """The statistics of one tensor serve many schemes, in any order, and more batches."""
    schemes = [Scheme(method=m, symmetric=s, percentile=p) for m in ("mse", "percentile", "min_max")
               for s in (False, True) for p in (90, 99.9)]
    kept = statistics(DATA["outliers"])
    for data in (None, DATA["shifted"]):
        if data is not None:
            kept.add(histogram(data.astype(np.float32))[0], data.min(), data.max())
        for scheme in schemes:
            for dtype in (u8, s8, u16):
                fresh = TensorStatistics(kept.low, kept.high, kept.second, kept.histogram)
                assert parameters(kept, scheme, dtype) == parameters(fresh, scheme, dtype), (scheme, dtype)


@pytest.mark.parametrize("dtype", [u8, s8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_limits_are_of_their_tensor_and_without_headroom(dtype, symmetric):
    scheme = Scheme(symmetric=symmetric, headroom=2, method="min_max", limits={"a": (-1, 3), "b": (0, 5)})
    t = statistics([-7, 9])
    for name, (low, high) in {"a": (-1, 3), "b": (0, 5), "c": (-14, 18), "": (-14, 18)}.items():
        assert parameters(t, scheme, dtype, name) == from_range(low, high, dtype, symmetric)


@pytest.mark.parametrize("dtype", [u8, s8])
def test_all_of_a_percentile_of_a_hundred(dtype):
    for name in ("outliers", "positive", "negative"):
        t = statistics(DATA[name])
        assert chosen_range(t, Scheme(method="percentile", percentile=100), dtype) == (
            max(t.low, -max(-t.low, t.high)), min(t.high, max(-t.low, t.high)))


@pytest.mark.parametrize("dtype, symmetric", [(u8, False), (u8, True), (s8, False), (s8, True)])
@pytest.mark.parametrize("name", ["outliers", "positive", "negative", "shifted"])
def test_mse_is_the_least_of_a_search(name, dtype, symmetric):
    t = statistics(DATA[name])
    low, high = chosen_range(t, Scheme(method="mse", symmetric=symmetric), dtype)
    ends = [(min(t.low, 0) * a, max(t.high, 0) * b) for a in np.linspace(1, 0.28, 25) for b in np.linspace(1, 0.28, 25)]
    errors = squared_errors(t.bins(), [from_range(*e, dtype, symmetric) for e in [(low, high), *ends]])
    assert errors[0] <= 1.02 * errors[1:].min()
    assert t.low <= low <= 0 or low == 0 or symmetric
    assert low >= min(t.low, 0) and high <= max(t.high, 0)


@pytest.mark.parametrize("dtype, zp", [(u8, 0), (u8, 77), (s8, 0), (s8, -128)])
@pytest.mark.parametrize("wide", [False, True])
def test_the_steps_that_stand_for_integers(dtype, zp, wide):
    """`round(x / step)` between the limits is dequantize(quantize(x)), of wide tensors with what is left over."""
    p = Parameters(dtype, (0.25,), (zp,))
    part = {k: float(v) for k, v in limits(p, wide).items()}
    x = np.float32([-1e3, -63.9, -32.2, -32.1, -0.13, -0.125, 0, 0.125, 0.1251, 3.37, 31.8, 44, 63.9, 1e3])
    high = dequantize.reference(quantize.reference(x, dtype=dtype, **p.attrs), **p.attrs)
    if wide:
        rest = Parameters(s8, (0.25 / 256,), (0,))
        left = np.clip(x - high, -128 * 0.25 / 256, 127 * 0.25 / 256)
        high = high + dequantize.reference(quantize.reference(left, dtype=s8, **rest.attrs), **rest.attrs)
    found = part["step"] * np.clip(np.rint(x / part["step"]), part["low"], part["high"])
    np.testing.assert_allclose(found, high, atol=part["step"] if wide else 0, rtol=0)
    ends = (int(dtype.min) - zp) * 0.25, (int(dtype.max) - zp) * 0.25
    want = (ends[0] - 0.125, ends[1] + 0.125 - 0.25 / 256) if wide else ends
    assert (part["low"] * part["step"], part["high"] * part["step"]) == want


@pytest.mark.parametrize("name", ["outliers", "positive", "negative"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_of_symmetric_and_of_one_sided_ranges_tries_the_same_factor_at_both_ends(name, symmetric):
    t = statistics(DATA[name])
    low, high = min(t.low, 0), max(t.high, 0)
    top = max(-low, high)
    tried = [(max(low, -top * f), min(high, top * f)) for f in np.linspace(1, 0.28, 25)]
    if symmetric or low == 0 or high == 0:
        errors = squared_errors(t.bins(), [from_range(*r, s8, symmetric) for r in tried])
        assert chosen_range(t, Scheme(method="mse", symmetric=symmetric), s8) == tried[int(np.argmin(errors))]
    else:
        assert chosen_range(t, Scheme(method="mse"), s8) not in tried


@pytest.mark.parametrize("low, high, held", [
    (-3, -1, True), (1, 3, True), (-3, 0, True), (0, 0, True), (-0.04, 0, False), (0, 0.04, False), (-0.05, 0, True)])
def test_integers_hold_a_tensor_unless_all_of_it_becomes_zero(low, high, held):
    assert holds(TensorStatistics(low, high), Parameters(s8, (0.1,), (0,))) == held
