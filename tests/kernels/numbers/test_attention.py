"""The formulas of attention against its definition, and what caches hold, number by number."""
import numpy as np
import pytest
from attention_formula import attended, rotated

from graphq.kernels.numbers import attention

RNG = np.random.default_rng(4)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("options", [
    {}, {"scale": 0.3}, {"softcap": 0.5}, {"window": 1}, {"window": 3}, {"causal": False}, {"window": -1}])
@pytest.mark.parametrize("bias", [None, (1, 1), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize("sinks", [False, True])
def test_queries_meet_the_keys_that_they_see(options, bias, sinks):
    """Of three batch elements with other lengths, and of two heads a group."""
    q, k, v = floats(3, 2, 4, 6), floats(3, 2, 9, 6), floats(3, 2, 9, 6)
    before = np.array([0, 5, 3])
    operands = (None if bias is None else floats(*bias, 2, 8), floats(4) if sinks else None)
    how = {"scale": 1.0, "softcap": 0.0, "window": 0, "causal": True, **options}
    got = attention.attended(q, k, v, before, before + 2, *operands, **how)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, attended(q, k, v, before, before + 2, *operands, **how), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_values_that_are_not_seen_count_as_zeros(causal):
    q, k, v = floats(2, 3, 1, 4), floats(2, 1, 300, 4), floats(2, 1, 300, 4)
    before, ends = np.array([280, 0]), np.array([283, 3 if causal else 2])
    v[1, :, ends[1]:], v[0, :, 283:] = np.nan, np.inf
    how = {"scale": 1.0, "softcap": 0.0, "window": 0, "causal": causal}
    got = attention.attended(q, k, v, before, ends, None, None, **how)
    np.testing.assert_allclose(got, attended(q, k, v, before, ends, **how), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [1, 3, 4])
def test_pairs_are_rotated(interleaved, half):
    x, angles = floats(2, 3, 5, 8), RNG.uniform(0, 6, (2, 3, 1, half)).astype(np.float32)
    got = attention.rotated(x, np.cos(angles), np.sin(angles), interleaved)
    np.testing.assert_allclose(got, rotated(x, angles.astype(float), interleaved), rtol=1e-4, atol=1e-5)
    assert got.dtype == np.float32 and (got[..., 2 * half:] == x[..., 2 * half:]).all()


def test_heads_lie_side_by_side():
    x = np.arange(2 * 3 * 8).reshape(2, 3, 8)
    assert (attention.by_heads(x, 4)[1, 2, 3] == x[1, 2, 6:]).all()


@pytest.mark.parametrize("kept, least, most", [("s8", -128, 127), ("s4", -8, 7)])
def test_integers_of_caches(kept, least, most):
    """Ties to even, saturation and NaN, with scales of two groups."""
    numbers = np.float32([0.5, 1.5, -0.5, -2.5, least - 1, -np.inf, most + 0.25, np.inf, np.nan, 3, -4, most])
    want = [0, 2, 0, -2, least, least, most, most, 0, 3, -4, most]
    scale = np.float32([[0.5] * 12, [4] * 12])
    x = numbers * scale[None, None]
    made = attention.packed(x, scale, kept)
    if kept == "s4":
        assert made.dtype == np.uint8 and made.shape == (1, 1, 2, 6)
        low, high = made & 15, made >> 4
        assert (np.stack([low, high], axis=-1).reshape(1, 1, 2, 12).astype(int) - 8 == want).all()
    else:
        assert made.dtype == np.int8 and (made == want).all()
    cache = made.transpose(0, 2, 1, 3)
    found = attention.unpacked(cache, scale, kept)
    assert found.dtype == np.float32 and (found == np.float32(want) * scale[:, None]).all()
    assert attention.packed(x, None, "f32") is x and attention.unpacked(x, None, "f32") is x


@pytest.mark.parametrize("capacity", [5, 7])
@pytest.mark.parametrize("kept", [True, False])
def test_a_cache_grows(capacity, kept):
    """The earlier tokens of each batch element, then the new ones, then zeros."""
    past, new = floats(3, 2, 4, 6), floats(3, 1, 2, 6)
    before = np.array([4, 0, 2]) if kept else np.zeros(3, int)
    got = attention.written(past if kept else None, new, before, capacity)
    assert got.shape == (3, 2, capacity, 6) and got.dtype == new.dtype
    for n, start in enumerate(before):
        assert (got[n, :, :start] == past[n, :, :start]).all() and (got[n, :, start] == new[n, 0]).all()
        assert (got[n, :, start + 1:] == 0).all()
