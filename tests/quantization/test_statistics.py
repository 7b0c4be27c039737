"""Statistics: what calibration counts is what NumPy finds, whatever the batches are."""
import numpy as np
import pytest
from float_networks import attention, convolutional, perceptron

import graphq as gq
from graphq.kernels.numbers.observed import histogram
from graphq.quantization import Scheme, Statistics, TensorStatistics, calibrate, quantize
from graphq.quantization.products import prepared


def values(graph, name, batches):
    """The tensor over all batches."""
    model = gq.compile(prepared(graph), outputs=[name])
    return np.concatenate([np.ravel(model(b)) for b in batches])


@pytest.mark.parametrize("network", [convolutional, perceptron, attention])
def test_statistics_are_those_of_the_tensors(network):
    graph, batches = network()
    found = calibrate(graph, iter(batches))
    assert found.batches == len(batches)
    for name, t in found.items():
        x = np.concatenate([b["x"].ravel() for b in batches]) if name == "x" else values(graph, name, batches)
        assert (t.low, t.high, t.size) == (x.min(), x.max(), x.size)
        np.testing.assert_array_equal(t.counts, histogram(x.astype(np.float32))[0])


class Reader:
    """As onnxruntime.quantization takes it."""

    def __init__(self, batches):
        self.batches = list(batches)

    def get_next(self):
        return self.batches.pop(0) if self.batches else None


@pytest.mark.parametrize("rows", [lambda x: [{"x": x}], lambda x: [{"x": x[:3]}, {"x": x[3:]}],
                                  lambda x: Reader([{"x": x}])])
def test_rows_are_cut_into_the_models_batches(rows):
    graph, batches = convolutional()
    assert graph.inputs[0].shape[0] == 1
    want, found = calibrate(graph, batches), calibrate(graph, rows(np.concatenate([b["x"] for b in batches])))
    assert found.batches == want.batches
    for name, t in found.items():
        assert (t.low, t.high) == (want[name].low, want[name].high)
        np.testing.assert_array_equal(t.counts, want[name].counts)


def test_the_last_row_fills_the_last_batch(g):
    x = g.input("x", shape=(4, 2), dtype="f32")
    g.output(g.multiply(g.matmul(x, np.ones((2, 2), np.float32)), g.input("k", shape=(), dtype="f32")), name="y")
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert calibrate(g, [{"x": data, "k": np.float32(1)}])["x"].size == 16
    assert quantize(g, [{"x": data, "k": np.float32(1)}]).outputs[0].shape == (4, 2)


def test_the_factors_of_products_are_observed():
    graph, batches = attention()
    names = list(calibrate(graph, batches))
    assert names[:3] == ["normalized", "q", "k"] and len(names) == 5


def test_extremes_alone():
    graph, batches = convolutional()
    whole, extremes = calibrate(graph, batches), calibrate(graph, batches, histograms=False)
    for name, t in whole.items():
        assert (t.low, t.high, t.second) == (extremes[name].low, extremes[name].high, extremes[name].second)
    scheme = Scheme(method="min_max")
    assert gq.to_text(quantize(graph, whole, scheme)) == gq.to_text(quantize(graph, extremes, scheme))
    with pytest.raises(gq.GraphError, match="method mse needs histograms"):
        quantize(graph, extremes, Scheme())


def test_other_tensors_by_name():
    graph, batches = perceptron()
    found = calibrate(graph, batches, tensors=["logits"])
    assert list(found) == ["logits"] and found["logits"].size == 3 * 6 * 4


def test_the_second_largest_magnitude():
    g = gq.Graph()
    g.output(g.matmul(g.input("x", dtype="f32", shape=(1, 2)), np.ones((2, 1), np.float32)), name="y")
    found = calibrate(g, [{"x": np.float32([[0, high]])} for high in (10, 20, 10)])["x"]
    assert found.second == 10 and found.high == 20


@pytest.mark.parametrize("batches, message", [
    ([], "at least one batch, got an empty iterable"),
    ({"x": np.zeros((1, 16), np.float32)}, "iterable of dicts .* got dict: put it into a list"),
    (3, "iterable of dicts .* got int"),
    ([np.zeros((1, 16), np.float32)], "batch 1 must be a dict"),
    ([{"y": np.zeros((1, 16), np.float32)}], "takes inputs"),
    ([{"x": np.zeros((1, 15), np.float32)}], "must be f32"),
    ([{"x": np.zeros((1, 16), np.float32)}, {"x": np.full((1, 16), np.nan, np.float32)}], "batch 2: .* 'x' holds nan"),
    ([{"x": np.full((1, 16), -np.inf, np.float32)}], "batch 1: tensor 'x' holds -inf"),
    ([{"x": np.zeros((0, 16), np.float32)}], "tensor 'x' had no elements in 1 batches"),
])
def test_wrong_data(batches, message):
    with pytest.raises(gq.InputError, match=message):
        calibrate(perceptron()[0], batches)


def test_wrong_names():
    graph, batches = perceptron()
    with pytest.raises(gq.GraphError, match="no value named 'nothing'"):
        calibrate(graph, batches, tensors=["nothing"])
    with pytest.raises(gq.GraphError, match="expected a Graph"):
        calibrate(3, batches)


BATCHES = [np.float32([[3, -1, 0], [2, -5, 0]]), np.float32([[9, 0, 1], [-1, 2, -7]]),
           np.float32([[-4, 1, 2], [5, 1, 1]]), np.float32([[0, 0, 0.5], [1, -0.5, 0]])]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_numbers_do_not_depend_on_the_order_of_batches(order):
    """The largest element, and the second largest, may be in any of them, the third too."""
    t = TensorStatistics()
    for k in order:
        counts, (low, high) = histogram(BATCHES[k])
        t.add(counts, float(low), float(high))
    whole = np.concatenate(BATCHES).astype(np.float64)
    assert (t.low, t.high, t.second, t.size) == (-7, 9, 5, 24)
    lower, upper, n = t.bins()
    assert n.sum() == 24 and (lower[1:] >= upper[:-1]).all() and lower[0] == -7 and upper[-1] == 9
    inside = [((lower[k] <= whole) & (whole <= upper[k])).sum() for k in range(len(n))]
    assert (np.array(inside) >= n).all() and (n > 0).all()


def test_what_a_new_batch_is_expected_to_exceed():
    def one(low, high, second):
        return TensorStatistics(low, high, second)

    tensors = {"a": one(-4, 2, 2), "b": one(-1, 3, 3), "c": one(0, 6, 4), "d": one(-9, 9, 3), "e": one(-5, 8, 5),
               "none": one(-1, 1, 0)}
    assert Statistics(tensors, 3).unseen == pytest.approx(np.quantile([2, 1, 1.5, 3, 1.6], 0.75))
    assert Statistics({"none": tensors["none"]}, 1).unseen == 1.3
