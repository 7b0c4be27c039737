"""Data and weights of any finite magnitude: as exact as those near 1, or in f32 with a sentence that says so."""
import numpy as np
import pytest

import graphq as gq
from graphq.quantization import Scheme, automatic, quantize
from graphq.quantization.blocks import block_scales
from graphq.quantization.compare import distance
from graphq.quantization.insert import integers
from graphq.quantization.ranges import scales_of
from graphq.quantization.scheme import Candidate
from graphq.quantization.search import Search, widest

RNG = np.random.default_rng(0)
W, V = (RNG.normal(0, 0.3, shape) for shape in ((32, 16), (16, 8)))
MAX = float(np.finfo(np.float32).max)


def network(first=1.0, second=1.0):
    """Two dense layers, whose weights are multiplied by numbers or arrays."""
    g = gq.Graph("magnitudes")
    x = g.input("x", dtype="f32", shape=(None, 32))
    y = g.relu(g.matmul(x, (W * first).astype(np.float32), name="first"))
    g.output(g.matmul(y, (V * second).astype(np.float32), name="second"), name="y")
    return g


def data(size=1.0):
    return [{"x": (np.random.default_rng(k).standard_normal((6, 32)) * size).astype(np.float32)} for k in range(3)]


def lost(made, graph, batches):
    a, b = gq.compile(made), gq.compile(graph)
    return max(distance(b(x), a(x)) for x in batches)


SIZES = [(1e20, 1e-20, 1), (2e37, 1e-37, 1e-3), (1e-34, 1e34, 1), (1e-34, 1, 1), (1e-40, 1e37, 1), (1e-44, 1, 1),
         (1, 1, 1e30), (1e-3, 1, 1e37), (1, 1, 1e-30), (1, 1, 1e-42), (1e-20, 1, 1e20), (1e18, 1, 1e18)]


@pytest.mark.parametrize("first, second, size", SIZES)
@pytest.mark.parametrize("scheme, most", [
    (Scheme(method="min_max"), 3e-4), (Scheme(method="percentile", per_channel=False), 3e-4), (Scheme(), 3e-4),
    (Scheme(mode="weight_only"), 1e-3), (Scheme(mode="weight_only", weight_bits=4, block=8), 0.02),
    (Scheme(mode="weight_only", weight_bits=4, block=8, rounding="gptq"), 0.015)],
    ids=["min-max", "per tensor", "mse", "8 bits", "4 bits", "gptq"])
def test_every_scheme_at_every_magnitude(first, second, size, scheme, most):
    graph, batches = network(first, second), data(size)
    made = quantize(graph, batches, scheme)
    assert lost(made, graph, batches) < most


@pytest.mark.parametrize("first, second, size", [(1e20, 1e-20, 1), (1, 1, 1e30), (1e-34, 1e34, 1), (1, 1, 1e-42)])
def test_the_search_at_every_magnitude(first, second, size):
    graph, batches = network(first, second), data(size)
    found = automatic(graph, batches, Scheme(method="automatic", weight_bits=8))  # the same on every CPU
    assert lost(found.graph, graph, batches) < 2e-4 and np.isfinite(list(found.losses.values())).all()
    assert ("'first' stays in f32, because scales in f32 cannot hold 'x' up to" in str(found)) == (size == 1e-42)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("first, second, size", SIZES[:5] + [(1, 1, 1e-30)])
def test_ranges_that_are_found_at_run_time(rows, first, second, size):
    graph = network(first, second)
    assert lost(quantize(graph, scheme=Scheme(mode="dynamic", rows=rows)), graph, data(size)) < 1e-3


def test_losses_do_not_depend_on_powers_of_two():
    """All is scaled exactly, so that the search finds the same setting, and the same losses."""
    plain = automatic(network(), data())
    for k in (-40, 60):
        found = automatic(network(2.0**k, 2.0**-k), data())
        assert found.setting == plain.setting and [*found.losses.values()] == [*plain.losses.values()]


def test_what_stays_in_f32_or_becomes_zeros_is_said():
    tiny = np.where(np.arange(16) == 3, 1e-40, 1)
    made = quantize(network(tiny), data(), Scheme())
    assert made.meta["quantization"]["out_of_range"] == {
        "first": "1 of 16 channels have weights below 1e-35 and become zeros"}
    made = quantize(network(1e-40), data(), Scheme())
    said = made.meta["quantization"]["out_of_range"]
    assert list(said) == ["first", "second"] and "its weights up to 1" in said["first"]
    made = quantize(network(1e-40), scheme=Scheme(mode="dynamic"))
    assert "stays in f32, because its weights are at most" in made.meta["quantization"]["out_of_range"]["first"]
    assert quantize(network(), data(), Scheme()).meta["quantization"]["out_of_range"] == {}


def test_limits_that_the_user_states_are_not_questioned():
    made = quantize(network(), data(1e-33), Scheme(limits={"x": (-1, 1)}))
    assert "first" not in made.meta["quantization"]["out_of_range"]


@pytest.mark.parametrize("top", [0, 1e-45, 3e-44, 1.7e-43, 1e-40, 1e-37, 1e-30, 1, 1e38, MAX])
@pytest.mark.parametrize("most", [7, 64, 127])
def test_scales_neither_clip_nor_overflow(top, most):
    """Their largest multiple is at least the number, to a rounding, and finite."""
    top = np.array([top], np.float32)
    scale = scales_of(top, most)
    with np.errstate(all="raise", under="ignore"):
        assert scale > 0 and np.float32(scale * np.float32(most)) >= top * np.float32(1 - 1e-6)
    assert scale == 1 if top == 0 else float(scale[0]) <= max(2 * float(top[0]) / most, 1.5e-45)


def test_blocks_of_any_magnitude_have_the_same_integers():
    """Scales of blocks are those near 1 times a power of two; subnormal weights are multiples of one number."""
    w = W.astype(np.float32)
    for k in (-90, 90, 126):
        np.testing.assert_array_equal(block_scales(w * np.float32(2.0**k), 8, 7), block_scales(w, 8, 7) * 2.0**k)
    small = np.clip(np.rint(W * 7), -7, 7).astype(np.float32) * np.float32(1e-45)
    assert np.abs(np.rint(small / block_scales(small, 8, 7).repeat(8, axis=0))).max() == 7


def test_channels_of_mixed_magnitudes():
    sizes = 10.0**np.linspace(-34, 37, 16)
    w = (W / np.abs(W).max(axis=0) * sizes).astype(np.float32)
    q, p = integers(w, 1, 127)
    assert (np.abs(q.astype(int)).max(axis=0) == 127).all()
    np.testing.assert_allclose(q * np.float32(p.scales), w, atol=sizes.max(), rtol=1)
    assert np.abs(q * np.float64(p.scales) - w).max(axis=0).tolist() <= (np.float64(p.scales) * 0.51).tolist()


def test_a_noise_that_is_no_number_is_the_worst():
    noise = {Candidate("min_max"): np.inf, Candidate("mse"): 0.5}
    assert widest(noise) == Candidate("mse") and widest(dict.fromkeys(noise, np.inf)) == Candidate("min_max")


def test_products_in_f32_are_exact_beside_quantized_ones():
    """Numbers that no step divides: what is not quantized goes through the search's model as it is."""
    sizes = np.where(np.arange(16) % 2, 1e-25, 1e25)
    work = Search(network(sizes, 1 / sizes[:, None]), data())
    for batch, out in zip(data(), work.outputs.runs(data(), {}, work.scheme), strict=True):
        np.testing.assert_array_equal(out["y"], gq.compile(network(sizes, 1 / sizes[:, None]))(batch))
