"""Bounds of f32 sums: sums in every order keep to them, and they follow the weights."""
import numpy as np
import pytest

from graphq.kernels.numbers.sum_orders import ORDERS, DequantizedSum
from graphq.kernels.ties.sum_errors import UNIT, sum_error

COLUMNS = 24


def made(order, k, rng, scale=0.0137, start=False):
    scales = rng.uniform(1e-3, 2e-3, COLUMNS).astype(np.float32)
    starts = rng.normal(size=COLUMNS).astype(np.float32) if start else np.zeros(1, np.float32)
    taps = 3 if order == "taps" else 1
    return DequantizedSum(order, 128, np.float32(scale), 0, scales, np.zeros(1, np.int32), starts, taps)


def weights(kind, k, rng):
    w = rng.integers(1, 128, (k, COLUMNS)).astype(np.int16)
    sign = {"random": rng.choice([-1, 1], (k, 1)), "halves": np.where(np.arange(k) < k // 2, 1, -1)[:, None],
            "alternating": np.where(np.arange(k) % 2, 1, -1)[:, None], "positive": 1}[kind]
    return w * sign


def distances(literal, x, w):
    """How far the literal sums of x [rows, k] and w lie from the exact ones, in f64, [rows, columns]."""
    rows, columns = len(x), w.shape[1]
    i, j = (n.ravel() for n in np.indices((rows, columns)))
    sums = literal.sums(x[i], w.T[j], j).reshape(rows, columns)
    exact = x.astype(float) @ w * float(literal.x_scale) * literal.w_scale.astype(float) + literal.start.astype(float)
    return np.abs(sums - exact)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", [1, 3, 9, 48, 300])
@pytest.mark.parametrize("kind", ["random", "halves", "alternating", "positive"])
def test_sums_keep_to_their_bounds(order, k, kind):
    rng = np.random.default_rng(k)
    k = 3 * k if order == "taps" else k
    w = weights(kind, k, rng)
    literal = made(order, k, rng, start=order != "taps")
    extremes = np.where(w.T > 0, 255, 0)  # what each column's partial sums are largest for
    x = np.concatenate([rng.integers(0, 256, (40, k)), rng.integers(200, 256, (40, k)), extremes,
                        255 - extremes]).astype(np.uint8)
    proved, estimated, *_ = sum_error(literal, 0, 255, w.T)
    found = distances(literal, x, w)
    assert proved.shape == estimated.shape == (COLUMNS,) and (estimated <= proved).all()
    assert (found <= proved).all()
    independent = found[:80]  # as `estimated` takes activations to be: the others are chosen by the weights
    assert (independent > estimated).mean() < 0.01
    known_less = sum_error(literal, 0, 255, (k, 127))
    assert (found <= known_less.proved).all()


def test_bounds_follow_the_range_of_activations_and_the_order_of_weights():
    rng = np.random.default_rng(0)
    literal = made("chains", 1024, rng)
    halves, alternating = (sum_error(literal, 0, 255, weights(x, 1024, rng).T) for x in ("halves", "alternating"))
    assert (halves.estimated > 5 * alternating.estimated).all()
    w = weights("random", 1024, rng)
    narrow, wide = sum_error(literal, 0, 64, w.T), sum_error(literal, 0, 255, w.T)
    assert (wide.proved > 3.9 * narrow.proved).all() and (wide.estimated > 3.5 * narrow.estimated).all()


def test_columns_of_several_matrices_have_the_largest_bound():
    rng = np.random.default_rng(0)
    literal, w = made("chains", 40, rng), weights("random", 40, rng)
    alone = sum_error(literal, -3, 100, w.T)
    for place in range(3):
        matrices = [w.T // 2] * 3
        matrices[place] = w.T
        among = sum_error(literal, -3, 100, np.concatenate(matrices), batch=3)
        assert np.array_equal(alone.proved, among.proved) and np.array_equal(alone.estimated, among.estimated)
        assert (alone.largest, alone.integers) == (among.largest, among.integers)


@pytest.mark.parametrize("order", ORDERS)
def test_sums_of_nothing(order):
    bounds = sum_error(made(order, 0, np.random.default_rng(0)), 0, 255, np.zeros((COLUMNS, 0), np.int16))
    assert (bounds.proved == 0).all()
    literal = made(order, 24, np.random.default_rng(0))._replace(w_scale=np.zeros(0, np.float32))
    none = sum_error(literal, 0, 255, np.zeros((0, 24), np.int8))
    assert none.proved.shape == none.estimated.shape == (0,) and none.largest == 0


@pytest.mark.parametrize("order,roundings", [("chains", 4), ("quads", 5), ("taps", 5)])
def test_the_proved_bound_of_one_product_by_hand(order, roundings):
    """Of the factors (and the product, where it is not fused), of the chain's sum, and of its additions to totals."""
    literal = DequantizedSum(order, 128, np.float32(0.25), 0, np.float32([0.5]), np.zeros(1, np.int32),
                      np.zeros(1, np.float32))
    proved, *_ = sum_error(literal, -10, 200, np.array([[-7]], np.int16))
    np.testing.assert_allclose(proved, UNIT * 0.25 * 0.5 * 7 * 200 * roundings, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 9, 16, 27, 100, 128])
def test_the_proved_bound_of_a_chain_is_little_more_than_its_partial_sums(k):
    """Of activations of 255 and weights of 1: roundings of each partial sum, of the total, and of all factors."""
    literal = DequantizedSum("chains", 128, np.float32(0.25), 0, np.float32([0.5]), np.zeros(1, np.int32),
                             np.zeros(1, np.float32))
    proved, *_ = sum_error(literal, 0, 255, np.ones((1, k), np.int16))
    by_hand = UNIT * 0.25 * 0.5 * 255 * (k * (k + 1) / 2 + k + 2 * k)
    assert by_hand <= proved <= by_hand * (1.001 if k <= 16 else 1.1)


def test_the_estimate_has_what_roundings_of_weights_add_up_to():
    """Where all weights are the same number, so that all are rounded the same way."""
    scale = np.float32(0.1)
    literal = DequantizedSum("chains", 128, np.float32(0.25), 0, scale.reshape(1), np.zeros(1, np.int32),
                      np.zeros(1, np.float32))
    w = np.full((1000, 1), 7, np.int16)
    moved = 1000 * abs(float(np.float32(7) * scale) - 7 * float(scale))
    proved, estimated, *_ = sum_error(literal, 0, 255, w.T)
    assert moved > 0 and (255 * 0.25 * moved < estimated).all() and (estimated < proved).all()


@pytest.mark.parametrize("order, ratios", [("chains", (1, 1.3)), ("octets", (1.2, 2.1)), ("taps", (1, 2.5))])
@pytest.mark.parametrize("k", [48, 300, 1024])
def test_the_estimate_for_unknown_weights_is_near_that_of_weights_drawn_evenly(order, ratios, k):
    rng = np.random.default_rng(k)
    k = 3 * k if order == "taps" else k
    literal, w = made(order, k, rng), rng.integers(-127, 128, (k, COLUMNS))
    drawn, unknown = sum_error(literal, 0, 255, w.T.astype(np.int16)), sum_error(literal, 0, 255, (k, 127))
    assert ratios[0] <= np.median(unknown.estimated / drawn.estimated) <= ratios[1]
    x = rng.integers(0, 256, (40, k)).astype(np.uint8)
    assert (distances(literal, x, w) > unknown.estimated).mean() < 0.01


@pytest.mark.parametrize("batch", [1, 2])
def test_no_sum_exceeds_what_its_weights_allow(batch):
    """The bound is reached by activations that follow the signs of the weights, and is no other number's."""
    rng = np.random.default_rng(0)
    literal, w = made("chains", 24, rng, scale=0.5), rng.integers(-127, 128, (COLUMNS * batch, 24))
    most = sum_error(literal, -100, 155, w, batch).largest
    products = np.where(w > 0, 155, -100) * w
    reached = (products.sum(axis=1) * np.tile(literal.w_scale, batch) * 0.5).max()
    assert sum_error(literal, -100, 155, w, batch).integers == 155 * np.abs(w).sum(axis=1).max()
    assert reached <= most <= 2 * reached and most < sum_error(literal, -100, 155, (24, 127)).largest
