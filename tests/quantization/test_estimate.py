"""How sure an estimate is: by hand, of one batch and of many; smaller and larger copies, and rows held out."""
from dataclasses import replace

import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.quantization import automatic
from graphq.quantization.compare import distance
from graphq.quantization.estimate import Estimate, extended, halves, highest, repeated


@pytest.mark.parametrize("losses, sized, batches, exceeded, enough, words", [
    ((1e-3, 2e-3), None, 16, 1.01, 16, "sure: 16 batches are enough"),
    ((1e-3, 2e-3), 3e-3, 4, 1.2, 16, "exceed the ranges by 20 %; 16 would be enough"),
    ((1e-5,) * 4, 9e-5, 4, 1.0, 4, "sure: 4 batches are enough"),
    ((), 1e-3, 1, 1.25, 5, "not sure of 1 batch: new data may exceed the ranges by 25 %, the batches are few; "
     "5 would be enough"),
    ((1e-3,) * 2, 1e-3, 2, 1.0, 4, "the batches are few; 4 would be enough"),
    ((1e-3,), None, 100, 1.0, 100, "sure: 100"),
    ((1e-3,), None, 20, 3.0, 800, "more than 64 would be enough"), ((1e-3,), None, 100, 3.0, 4000, "not sure of 100")])
def test_how_many_batches_would_do(losses, sized, batches, exceeded, enough, words):
    found = Estimate(losses, sized, batches, exceeded)
    assert found.enough == enough and found.sure == (enough == batches) and words in str(found)
    assert found.json()["enough"] == enough and found.json()["losses"] == list(losses)


def test_halves_of_one_batch_are_named():
    found = Estimate((1e-3, 2e-3), None, 2, 1.0, halved=True)
    assert "on 2 held-out halves of the batch (even and odd rows)\n" in str(found) and found.json()["halved"]
    assert "\nnot sure of 1 batch: the batches are few; 4 would be enough" in str(found)
    graph, batches = perceptron()
    assert automatic(graph, iter(batches[:1])).estimate.halved and not automatic(graph, batches[:2]).estimate.halved


def test_a_large_loss_is_never_sure():
    """Whatever their number: errors of this size grow on data that differ."""
    for found in (Estimate((3e-2, 2e-2), 4.5e-2, 5, 1.0), Estimate((3e-2,), None, 100, 1.0)):
        assert not found.sure and found.json()["sure"] is False and "other data may lose far more" in str(found)
        assert "would be enough" not in str(found) and "enough for" not in str(found)
    assert Estimate((2e-3,), None, 100, 1.0).sure
    few = str(Estimate((3e-2, 2e-2), 4.5e-2, 3, 1.2))
    assert "would be enough" not in few and "copies lose" not in few


def test_it_is_not_surer_than_the_losses():
    """Batches that need their own ranges, and larger copies that lose more: so may a new batch."""
    left_out = Estimate((1e-3,) * 10, None, 10, 1.0, seen=3.9e-4)
    assert left_out.depends and not left_out.sure and left_out.enough == 20
    assert "batches left out of calibration lose far more; 20 would be enough" in str(left_out)
    for losses, seen in (((1e-3,), 6e-4), ((4e-5,), 1e-6), ((1e-4, 3e-4), None)):
        assert Estimate(losses, None, 10, 1.0, seen=seen).sure
    grown = Estimate((1e-3,) * 4, 2.1e-3, 40, 1.0)
    assert not grown.sure and "copies lose more than 0.002" in str(grown)
    assert "2.1e-03 on the worst copy (0.7 or 1.3 times as large)" in str(grown)


@pytest.mark.parametrize("losses, sized, like_these, of_other_sizes", [
    ((1e-3, 3e-3, 2e-3, 1e-3), 4e-3, 1.2e-2, 1.2e-2), ((1e-3,) * 7, 7e-3, 2.5e-3, 7e-3), ((), 1e-3, 1e-2, 1e-2),
    ((1e-6,) * 3, 2e-6, 2.5e-4, 2.5e-4), ((1e-3,) * 40, None, 1e-3, 1e-3)])
def test_the_loss_that_is_expected(losses, sized, like_these, of_other_sizes):
    """The largest of n losses, times 20 / (n + 1)."""
    found = Estimate(losses, sized, 4, 1.0)
    assert (found.expected, found.expected_sized) == pytest.approx((like_these, of_other_sizes))
    words = f"{like_these:.1e} on new inputs like these, {of_other_sizes:.1e} at 0.7 to 1.3 times their size"
    assert f"expect at most {words}\n" in str(found)


@pytest.mark.parametrize("count", [1, 4, 8, 19])
def test_the_expected_loss_holds_in_95_percent_of_cases(count):
    """Also if losses have no mean; more often if they scatter less."""
    rng = np.random.default_rng(count)
    heavy = 1e-3 / rng.uniform(size=(20000, count + 1))
    light = 1e-3 * np.exp(rng.standard_normal((20000, count + 1)))
    share = [np.mean([new <= highest(found) for *found, new in losses]) for losses in (heavy, light)]
    assert 0.94 < share[0] <= share[1] + 0.005


def test_what_batches_lose_with_the_ranges_of_the_file_is_expected():
    """Their loss is known, even if they lose less with the ranges of other batches."""
    found = Estimate((3.3e-5, 2e-5) * 10, 1e-4, 10, 1.0, seen=9.5e-5)
    assert (found.expected, found.expected_sized) == (9.5e-5, 1e-4) and found.sure
    more = Estimate((1e-3,) * 7, None, 10, 1.0, seen=2.1e-3)
    assert more.expected == pytest.approx(2.5e-3) and not more.sure and "the loss is above 0.002" in str(more)


def test_larger_and_smaller_copies():
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    data = extended([{"x": x, "k": np.arange(2)}, {"x": -x, "k": np.arange(2)}], ["x"])
    for k, size in ((0, 1), (1, -1), (2, 0.7), (3, -0.7), (4, 1.3), (5, -1.3)):
        np.testing.assert_allclose(data[k]["x"], x * size, rtol=1e-6)
        assert np.array_equal(data[k]["k"], np.arange(2)) and data[k]["x"].dtype == np.float32


@pytest.mark.parametrize("count", [1, 4, 9])
def test_what_is_said_covers_inputs_of_other_sizes(count):
    graph, batches = perceptron()
    batches = [{"x": np.clip(batches[0]["x"], -1, 1) + np.float32(k / 1000)} for k in range(count)]
    found = automatic(graph, batches)
    model, plain = gq.compile(found.graph), gq.compile(graph)
    for size in (0.7, 1.3):
        x = batches[-1]["x"] * np.float32(size)
        assert distance(plain({"x": x}), model({"x": x})) <= 2 * found.estimate.sized
    assert len(found.estimate.losses) == {1: 2, 4: 4, 9: 9}[count]


def test_copies_of_bytes_are_rounded_and_clipped():
    data = extended([{"x": np.uint8([0, 1, 5, 200]), "s": np.int8([-128, 3])}], ["x", "s"])
    assert data[1]["x"].tolist() == [0, 1, 4, 140] and data[2]["x"].tolist() == [0, 1, 6, 255]
    assert data[1]["s"].tolist() == [-90, 2] and data[2]["s"].tolist() == [-128, 4]
    assert data[1]["x"].dtype == np.uint8 and data[2]["s"].dtype == np.int8


def reading(dtype):
    """A network of two layers whose input has this type: numbers if they are bytes, otherwise indices."""
    g, rng = gq.Graph("reading"), np.random.default_rng(0)
    x = g.input("x", dtype=dtype, shape=(8, 32))
    h = g.multiply(g.cast(x, dtype="f32"), np.float32(1 / 255)) if dtype == "u8" else g.gather(
        rng.standard_normal((190, 1)).astype(np.float32), x)
    h = g.static_reshape(h, shape=[8, 32], special_zero=False)
    h = g.relu(g.matmul(h, rng.standard_normal((32, 64)).astype(np.float32), name="hidden"))
    g.output(g.matmul(h, rng.standard_normal((64, 10)).astype(np.float32)), name="y")
    return g, [{"x": rng.integers(0, 190, (8, 32)).astype(x.dtype.numpy)} for _ in range(8)]


def test_images_of_bytes_are_claimed_at_other_sizes():
    graph, batches = reading("u8")
    found = automatic(graph, batches)
    model, plain = gq.compile(found.graph), gq.compile(graph)
    larger = [{"x": np.round(b["x"] * 1.3).astype(np.uint8)} for b in batches]
    assert max(distance(plain(x), model(x)) for x in larger) <= found.estimate.expected_sized
    assert found.estimate.sized > 2 * max(found.estimate.losses) and "0.7 to 1.3 times their size" in str(found)


def test_nothing_is_claimed_of_indices_of_other_sizes():
    found = automatic(*reading("s64"))
    assert found.estimate.sized is None and found.estimate.fixed == ("x",) and found.estimate.expected > 0
    assert "times" not in str(found.estimate) and "(integers are not scaled: x)" in str(found.estimate)
    assert found.estimate.json()["expected_sized"] is None and found.estimate.json()["fixed"] == ["x"]


def test_few_elements_are_compared_with_their_size_over_all_batches():
    assert distance(np.float32([1]), np.float32([1.5]), [np.float32([0, 8**0.5])]) == pytest.approx(0.25 / 4 / 2)
    assert distance(np.float32([1]), np.float32([9]), [np.ones(3)]) == 2
    assert distance(np.zeros(0), np.zeros(0), [np.ones(3)]) == 0
    assert distance(np.float32([1, np.inf]), np.float32([1, 2]), [np.ones(3)]) == 2
    g, rng = gq.Graph("regression"), np.random.default_rng(0)
    h = g.relu(g.matmul(g.input("x", dtype="f32", shape=(1, 32)), rng.standard_normal((32, 64)).astype(np.float32)))
    g.output(g.matmul(h, rng.standard_normal((64, 1)).astype(np.float32)), name="y")
    batches = [{"x": rng.standard_normal((1, 32)).astype(np.float32)} for _ in range(20)]
    found = automatic(g, batches[:8])
    exact, made = (np.array([float(gq.compile(graph)(x)[0, 0]) for x in batches]) for graph in (g, found.graph))
    errors = (exact - made)**2 / 2 / np.mean(exact**2)
    assert 0 < max(found.estimate.losses) and np.mean(errors[8:] <= found.estimate.expected) >= 0.9
    assert max(errors) / 10 < found.estimate.expected < 0.2


def test_the_loss_of_indices_is_the_share_that_differs():
    assert distance(np.int64([3, 900, 7, 7]), np.int64([3, 1, 7, 7])) == 0.25
    assert distance(np.array([True, False]), np.array([False, False])) == 0.5
    assert distance(np.uint8([10, 200]), np.uint8([11, 201])) < 1e-4
    assert highest((1.0,)) == 2


def test_rows_of_one_batch_are_held_out():
    x = np.arange(10).reshape(5, 2)
    even, odd = halves({"x": x, "y": x[:, 0]})
    assert even["x"][:, 0].tolist() == [0, 4, 8, 0, 4] and odd["y"].tolist() == [2, 6, 2, 6, 2]
    assert len(halves({"x": x, "y": x[:2]})) == len(halves({"x": x[:1]})) == len(halves({"x": np.float32(1)})) == 1


@pytest.mark.parametrize("factor", [0, 1])
def test_batches_that_repeat_others_are_no_evidence(factor):
    graph, batches = perceptron()
    same = [{"x": batches[0]["x"] * np.float32(factor)} for _ in range(5)]
    found = automatic(graph, same).estimate
    assert found.batches == 5 and found.repeated == found.json()["repeated"] == 4 and not found.sure
    assert "not sure of 5 batches" in str(found) and "4 batches repeat others" in str(found)
    assert repeated([{"x": np.zeros((n, 2), np.float32)} for n in (1, 2, 3)]) == 2
    assert repeated([{"x": np.zeros(2, np.float32)}, {"x": np.zeros(2, np.int32)}]) == 0
    assert [x["x"].tolist() for x in halves({"x": np.arange(2)})] == [[0, 0], [1, 1]]
    assert repeated([*batches, {"x": batches[1]["x"].copy()}, {"x": batches[1]["x"].reshape(-1)}]) == 1
    assert Estimate((1e-3,), None, 40, 1.0, repeated=36).sure and not Estimate((1e-3,), None, 40, 1.0, repeated=37).sure


def test_twelve_batches_are_enough_for_inputs_of_their_size():
    graph, _ = perceptron()
    rng = np.random.default_rng(0)
    batches = [{"x": np.clip(rng.standard_normal((400, 16)), -2, 2).astype(np.float32)} for _ in range(12)]
    found = automatic(graph, batches)
    assert found.estimate.batches == 12 and len(found.estimate.losses) == 12
    assert max(found.estimate.losses) < found.estimate.sized and found.estimate.json()["sized"] == found.estimate.sized
    assert max(found.estimate.losses) < 2 * found.estimate.seen and found.estimate.enough == 12
    assert "not sure of 12 batches: copies lose more than 0.002" in str(found)
    assert replace(found.estimate, sized=0.002).sure
    assert gq.compile(found.graph)(batches[0]).shape == (400, 4)
