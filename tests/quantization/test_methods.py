"""Methods that recover accuracy, as passes: numbers stay but for roundings, and noise falls where it can."""
import numpy as np
import pytest
from float_networks import POINT, SAME, attention, convolutional, perceptron

import graphq as gq
from graphq.ir.verify import verify
from graphq.quantization import Scheme, calibrate, quantize, tuned
from graphq.quantization.blocks import block_scales, gptq
from graphq.quantization.compare import compare, distance
from graphq.quantization.insert import by_statistics, insert_static
from graphq.quantization.known import shift_biases
from graphq.quantization.parametrized import Parametrized
from graphq.quantization.products import prepared
from graphq.quantization.scheme import Candidate
from graphq.quantization.search import Search
from graphq.quantization.smooth import _Load, divide, expected_ranges, noise, smoothing
from graphq.quantization.statistics import Channels, Statistics
from graphq.testing import check_same_numbers

RNG = np.random.default_rng(11)


def loss(quantized, graph, batches):
    a, b = gq.compile(quantized), gq.compile(graph)
    return max(distance(a(x), b(x)) for x in batches)


def quantized(g, batches, scheme=None):
    """A prepared graph quantized as it is."""
    scheme = scheme or Scheme(method="min_max")
    out = g.copy()
    insert_static(out, calibrate(g, batches), scheme)
    return out


def smooth(graph, statistics):
    """Divide the channels of tensors if that pays; returns the number of these tensors."""
    factors = smoothing(graph, statistics)
    divide(graph, factors)
    return len(factors)


def uneven(channels=8, activation="relu", weights=(1.0, 1.0)):
    """Two convolutions, the channels between them of very different ranges."""
    g = gq.Graph("uneven")
    spread = np.logspace(-1.5, 1.5, channels, dtype=np.float32)
    x = g.input("x", dtype="f32", shape=(1, 4, 6, 6))
    w = RNG.normal(0, 0.3, (channels, 4, 3, 3)) * spread[:, None, None, None]
    y = g.convolution(x, np.float32(w), np.float32(RNG.normal(0, 0.1, channels)) * spread, **SAME, name="first")
    y = getattr(g, activation)(y)
    w = RNG.normal(0, 0.3, (5, channels, 1, 1)) / spread[None, :, None, None]
    g.output(g.convolution(y, np.float32(w), **POINT, name="second"), name="y")
    return g, [{"x": RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("activation", ["relu", "hard_swish"])
@pytest.mark.parametrize("alphas", [tuned.ALPHAS, (0.5,), (1.0,)])
def test_smoothing_keeps_the_numbers_and_lowers_the_loss(activation, alphas, monkeypatch):
    monkeypatch.setattr(tuned, "ALPHAS", alphas)
    graph, batches = uneven(activation=activation)
    g = prepared(graph)
    before = loss(quantized(g, batches), graph, batches)
    assert smooth(g, calibrate(g, batches, channels=True)) == 1
    verify(g)
    check_same_numbers(graph, g, rtol=1e-4, atol=1e-5)
    assert loss(quantized(g, batches), graph, batches) < before / 4
    multiplications = len(g.nodes_of(("multiply",)))
    assert multiplications == (0 if activation == "relu" else 1)  # folded into the first weights


@pytest.mark.parametrize("network", [convolutional, perceptron, attention])
def test_smoothing_of_other_networks_keeps_the_numbers(network, monkeypatch):
    monkeypatch.setattr(tuned, "ALPHAS", (0.7,))
    graph, batches = network(spread=2.0) if network is convolutional else network()
    g = prepared(graph)
    smooth(g, calibrate(g, batches, channels=True))
    verify(g)
    check_same_numbers(graph, g, rtol=1e-3, atol=1e-4, sizes={"x": batches[0]["x"].shape})


def test_smoothing_changes_nothing_where_it_does_not_help(monkeypatch):
    """Channels of one range, in activations and in weights."""
    g = gq.Graph()
    g.output(g.matmul(g.input("x", dtype="f32", shape=(64, 16)), np.ones((16, 8), np.float32), name="y"))
    batches = [{"x": RNG.uniform(-1, 1, (64, 16)).astype(np.float32)} for _ in range(2)]
    for alphas in (tuned.ALPHAS, (0.5,)):
        monkeypatch.setattr(tuned, "ALPHAS", alphas)
        h = prepared(g)
        before = gq.to_text(h)
        assert smooth(h, calibrate(h, batches, channels=True)) == 0
        assert gq.to_text(h) == before


def test_smoothing_without_numbers_of_channels_changes_nothing():
    graph, batches = uneven()
    g = prepared(graph)
    assert smooth(g, calibrate(g, batches)) == smooth(g, Statistics({}, 1)) == 0


def test_smoothing_leaves_other_users_of_a_tensor_alone():
    graph, batches = uneven()
    y = graph.nodes_of(("relu",))[0].output
    graph.output(graph.reduce_mean(y, axes=[1]), name="mean")
    g = prepared(graph)
    assert smooth(g, calibrate(g, batches, channels=True)) == 1
    check_same_numbers(graph, g, rtol=1e-4, atol=1e-5)


def test_channels_of_groups(monkeypatch):
    """Two groups: each input channel meets the weights of its group alone."""
    monkeypatch.setattr(tuned, "ALPHAS", (1.0,))
    g = gq.Graph()
    spread = np.logspace(-1, 1, 6, dtype=np.float32).reshape(1, 6, 1, 1)
    x = g.multiply(g.input("x", dtype="f32", shape=(1, 6, 4, 4)), spread)
    g.output(g.convolution(x, RNG.standard_normal((4, 3, 3, 3)).astype(np.float32), **SAME, groups=2), name="y")
    batches = [{"x": RNG.standard_normal((1, 6, 4, 4)).astype(np.float32)} for _ in range(3)]
    h = prepared(g)
    assert smooth(h, calibrate(h, batches, channels=True)) == 1
    check_same_numbers(g, h, rtol=1e-4, atol=1e-4)


def test_a_product_whose_result_is_divided_is_not_compared_with_f32():
    """Its name in f32 stands for other numbers; what reads it is measured with it."""
    graph, batches = uneven()
    work = Search(graph, batches)
    made = work.made(work.uniform(Candidate("min_max", smooth=True)))
    (found,) = compare(made, graph, batches).tensors
    assert found.name == "second" and found.cosine > 0.99 and found.cost > 0
    assert any(n.outputs[0].name == "first_divided" for n in made.nodes)


def test_bias_correction_takes_the_mean_error_back():
    graph, batches = convolutional(spread=1.0)
    g, scheme = prepared(graph), Scheme(method="min_max", per_channel=False)
    statistics = calibrate(g, batches)
    before = Parametrized(g, twins=True).differences(batches, by_statistics(g, statistics, scheme), scheme)
    corrected = g.copy()
    assert shift_biases(corrected, {name: d.shift for name, d in before.items()}) == 4  # one of them had no bias
    verify(corrected)
    insert_static(corrected, statistics, scheme)
    assert loss(corrected, graph, batches) < loss(quantized(g, batches, scheme), graph, batches)
    d = before["classifier"]
    exact, rough = (gq.compile(h, outputs=["classifier"]) for h in (g, corrected))
    mean = np.mean([exact(b) - rough(b) for b in batches], axis=(0, 1))
    assert np.abs(mean).max() < np.abs(d.shift).max() + 0.01 and d.ratio < 0.1


def test_products_of_two_activations_have_no_bias_to_correct():
    graph, batches = attention()
    g = prepared(graph)
    chosen = by_statistics(g, calibrate(g, batches), Scheme())
    found = Parametrized(g, twins=True).differences(batches, chosen, Scheme())
    assert set(found) == {"q", "k", "v", "scores", "mixed"}
    assert shift_biases(g, {name: d.shift for name, d in found.items()}) == 3


def test_rounding_by_gptq_changes_the_products_less():
    """Inputs of few directions: errors of weights can make up for each other."""
    k, n, rows = 32, 12, 400
    x = RNG.standard_normal((rows, 6)) @ RNG.standard_normal((6, k)) + 0.1 * RNG.standard_normal((rows, k))
    w = RNG.normal(0, 0.2, (k, n)).astype(np.float32)
    scales = block_scales(w, 16, 7)
    wide = scales.repeat(16, axis=0)
    nearest = np.clip(np.rint(w / wide), -7, 7)
    q = gptq(w, scales, 16, 7, x.T @ x)
    assert np.abs(q).max() <= 7 and (q == np.rint(q)).all()
    errors = [np.square(x @ (w - wide * r)).sum() for r in (q, nearest)]
    assert errors[0] < errors[1] / 2


def test_rounding_by_gptq_of_independent_inputs_is_to_nearest():
    w = RNG.normal(0, 0.2, (8, 3)).astype(np.float32)
    scales = block_scales(w, 8, 7)
    np.testing.assert_array_equal(gptq(w, scales, 8, 7, 5 * np.eye(8)), np.clip(np.rint(w / scales), -7, 7))


def test_a_graph_rounded_by_gptq():
    graph, batches = perceptron()
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((3, 16))
    batches = [{"x": (rng.standard_normal((40, 3)) @ mix).astype(np.float32)} for _ in range(3)]
    losses = [loss(quantize(graph, batches, Scheme(mode="weight_only", weight_bits=4, block=16, rounding=r)), graph,
                   batches) for r in ("gptq", "nearest")]
    assert losses[0] < losses[1] / 2


def channels(low, high, second=None, square=None):
    arrays = [np.asarray(x, float) for x in (low, high)]
    zeros = np.zeros(len(low))
    return Channels(0, *arrays, zeros if square is None else np.asarray(square, float),
                    zeros if second is None else np.asarray(second, float))


def test_ranges_that_channels_are_expected_to_reach():
    assert expected_ranges(channels([-1, 0, 0], [0.5, 2, 20])).tolist() == [4, 8, 20]  # of one batch: times UNSEEN
    known = channels([-1, 0, 0], [0.5, 2, 20], second=[0.5, 2, 0])  # ratios 2 and 1
    ratio = np.quantile([2, 1], 0.98)
    np.testing.assert_allclose(expected_ranges(known), [ratio, 2 * ratio, 20])
    assert expected_ranges(channels([], [])).size == 0


@pytest.mark.parametrize("low, sides", [(-0.19, 1), (-0.21, 2), (0, 1), (-1, 2)])
def test_noise_by_hand(low, sides):
    """One group of two outputs and two channels, with one weight for each."""
    weights = np.array([[3.0, -4.0], [1.0, 2.0]])
    load = _Load(np.abs(weights)[None], np.square(weights).sum(axis=0)[None], 1)
    found = channels([low, 0], [1, 0.5], second=[1, 0.5], square=[0.3, 0.2])
    factors = np.array([2.0, 0.5])
    step = sides * max(max(1, -low) / 2, 0.5 / 0.5) / 255
    steps = np.array([max(3 * 2, 4 / 2), max(2, 1)]) / 127
    want = step**2 * (10 * 4 + 20 / 4) + np.square(steps).sum() * (0.3 / 4 + 0.2 * 4)
    assert noise(found, [load], factors) == pytest.approx(want)
    assert noise(found, [load, load], factors) == pytest.approx(2 * want)
