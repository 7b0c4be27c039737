"""How products are quantized by what is known of some batches: ranges, headroom, smoothing, 16 bits."""
import numpy as np
import pytest
from float_networks import perceptron

from graphq.dtypes import u8
from graphq.quantization.known import Known, key_of, shift_biases
from graphq.quantization.parametrized import bias_of
from graphq.quantization.products import prepared, products
from graphq.quantization.ranges import from_range
from graphq.quantization.scheme import Candidate, Scheme
from graphq.quantization.statistics import Channels, Statistics, TensorStatistics

PRODUCTS = list(products(prepared(perceptron()[0])))
SOURCES = [str(p.factors[0].name) for p in PRODUCTS]
FACTORS = {SOURCES[0]: np.float32([0.5, 4.0])}


def known(second=2.0):
    """Ranges of channels are [-0.25, 0.5] and [-1, 3]; after smoothing that of the tensor is [-0.5, 1].

    The largest element but for one batch is `second`.
    """
    low, high = np.array([-0.25, -1.0]), np.array([0.5, 3.0])
    channels = Channels(1, low, high, high, high)
    tensors = {name: TensorStatistics(-1.0, 3.0, second, channels=channels) for name in SOURCES}
    return Known(Statistics(tensors, 2), FACTORS)


@pytest.mark.parametrize("margin, second, headroom", [(0.0, 2.0, 1.0), (1.0, 2.0, 1.5), (0.5, 2.0, 1.5**0.5),
                                                      (1.0, 1.0, 2.0), (1.0, 0.0, 1.25)])
def test_a_margin_widens_ranges_by_what_a_new_batch_is_expected_to_exceed(margin, second, headroom):
    """By a factor of 2 at most."""
    q = known(second).quantized(PRODUCTS[0], {SOURCES[0]: Candidate("min_max", margin=margin)}, Scheme())
    assert q.activations == {0: from_range(-headroom, 3 * headroom, u8, False)}
    assert q.factors is None and not q.wide and not q.wide_weights


def test_sixteen_bits_have_two_for_what_was_not_seen_and_no_smoothing():
    name, choices = PRODUCTS[0].name, {SOURCES[0]: Candidate("mse", smooth=True, margin=1.0)}
    q = known().quantized(PRODUCTS[0], choices, Scheme(wide=[name]))
    assert q.activations == {0: from_range(-4, 12, u8, False)} and q.wide and q.factors is None
    q = known().quantized(PRODUCTS[0], {SOURCES[0]: Candidate("min_max")}, Scheme(wide_weights=[name]))
    assert q.activations == {0: from_range(-1, 3, u8, False)} and q.wide_weights and not q.wide


def test_smoothed_tensors_have_ranges_of_their_own():
    choices = dict.fromkeys(SOURCES, Candidate("min_max", smooth=True))
    first, second = (known().quantized(p, choices, Scheme()) for p in PRODUCTS[:2])
    assert first.factors is FACTORS[SOURCES[0]] and first.activations == {0: from_range(-0.5, 1, u8, False)}
    assert second.factors is None and second.activations == {0: from_range(-1, 3, u8, False)}  # not smoothed


def test_each_choice_and_scheme_is_known_by_itself():
    """One object answers for many settings, in any order."""
    first, second = PRODUCTS[:2]
    asked = [(product, {name: candidate for name in SOURCES}, scheme)
             for candidate in (Candidate("min_max"), Candidate("min_max", margin=1.0), Candidate("min_max", True))
             for scheme in (Scheme(), Scheme(wide=[first.name]), Scheme(wide_weights=[first.name]),
                            Scheme(wide=[first.name], wide_weights=[first.name]), Scheme(wide=[second.name]))
             for product in (first, second)]
    kept = known()
    for product, choices, scheme in asked + asked[::-1]:
        found, fresh = kept.quantized(product, choices, scheme), known().quantized(product, choices, scheme)
        assert found.activations == fresh.activations and (found.factors is None) == (fresh.factors is None)
        assert (found.wide, found.wide_weights) == (fresh.wide, fresh.wide_weights)
    keys = [key_of(first, dict.fromkeys(SOURCES, Candidate("mse")), scheme) for scheme in (
        Scheme(), Scheme(weight_bits=7), Scheme(wide=[first.name]), Scheme(wide_weights=[first.name]))]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("shift, corrected", [(0.5, True), (0.0, False), (1e38, True), (3.4e38, False)])
def test_biases_that_are_corrected(shift, corrected):
    """By what changes them; a sum beyond f32 would be infinite."""
    graph = prepared(perceptron()[0])
    names = [p.name for p in products(graph) if bias_of(p) is not None]
    old = {p.name: bias_of(p) + 1e38 * (shift > 1) for p in products(graph) if p.name in names}
    if shift > 1:
        assert shift_biases(graph, {n: np.full(old[n].shape, 1e38) for n in names}) == len(names)
    shifts = {n: np.append(np.zeros(old[n].size - 1), shift) for n in names}
    assert shift_biases(graph, shifts) == corrected * len(names)
    assert shift_biases(graph, {n: np.full(old[n].size + 1, 0.5) for n in names} | {"none": np.ones(1)}) == 0
    for p in products(graph):
        if p.name in names:
            np.testing.assert_allclose(bias_of(p)[-1], old[p.name][-1] + shift * corrected, rtol=1e-6)
            np.testing.assert_allclose(bias_of(p)[:-1], old[p.name][:-1], rtol=1e-6)
