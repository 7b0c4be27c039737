"""The noise that quantization causes in each layer, and rounding by GPTQ."""
import numpy as np
import pytest
from float_networks import attention, convolutional, perceptron

import graphq as gq
from graphq.quantization import Scheme, calibrate, quantize
from graphq.quantization.blocks import block_scales, gptq
from graphq.quantization.compare import distance
from graphq.quantization.insert import by_statistics
from graphq.quantization.parametrized import Parametrized
from graphq.quantization.products import prepared, products

RNG = np.random.default_rng(11)


def loss(quantized, graph, batches):
    a, b = gq.compile(quantized), gq.compile(graph)
    return max(distance(a(x), b(x)) for x in batches)


def test_the_noise_of_each_layer_on_exact_operands():
    """The twins of all layers read f32 operands, so each ratio is the layer's own."""
    graph, batches = convolutional(spread=1.0)
    g, scheme = prepared(graph), Scheme(method="min_max", per_channel=False)
    found = Parametrized(g, twins=True).ratios(batches, by_statistics(g, calibrate(g, batches), scheme), scheme)
    assert set(found) == {p.name for p in products(g)}
    for name, ratio in found.items():
        others = [n for n in found if n != name]
        rough = quantize(graph, batches, Scheme(method="min_max", per_channel=False, exclude=others))
        exact, alone = (gq.compile(h, outputs=[name]) for h in (g, rough))
        want, got = (np.array([model(b) for b in batches]) for model in (exact, alone))
        assert ratio == pytest.approx(np.square(got - want).mean() / np.square(want).mean(), rel=0.02)


def test_products_of_two_activations_have_noise():
    graph, batches = attention()
    g = prepared(graph)
    chosen = by_statistics(g, calibrate(g, batches), Scheme())
    found = Parametrized(g, twins=True).ratios(batches, chosen, Scheme())
    assert set(found) == {"q", "k", "v", "scores", "mixed"} and all(0 < x < 0.01 for x in found.values())


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
