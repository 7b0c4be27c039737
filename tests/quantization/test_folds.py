"""Which batches are held out."""
import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.quantization.compare import distance
from graphq.quantization.estimate import folds
from graphq.quantization.scheme import Candidate
from graphq.quantization.search import Search


@pytest.mark.parametrize("count, seen, held_out", [
    (1, [(0,)], [(0, 2)]), (2, [(1,), (0,)], [(0,), (1,)]), (3, [(1, 2), (0, 2), (0, 1)], [(0,), (1,), (2,)]),
    (8, [(2, 3, 4, 5, 6, 7), (0, 1, 4, 5, 6, 7), (0, 1, 2, 3, 6, 7), (0, 1, 2, 3, 4, 5)],
     [(0, 1), (2, 3), (4, 5), (6, 7)])])
def test_folds_hold_batches_out(count, seen, held_out):
    assert [*zip(*folds(count), strict=True)] == [tuple(seen), tuple(held_out)]


@pytest.mark.parametrize("count", range(2, 17))
def test_each_batch_is_held_out_once(count):
    assert [k for _, held_out in folds(count) for k in held_out] == [*range(count)]
    assert all(sorted(seen + held_out) == [*range(count)] for seen, held_out in folds(count))


def test_of_many_batches_few_are_compared():
    seen, held_out = zip(*folds(1000), strict=True)
    assert [*held_out] == [(k, k + 83, k + 166, k + 249) for k in (0, 250, 500, 750)]
    assert [*map(len, seen)] == [750] * 4 and seen[1][249:251] == (249, 500)


def test_the_estimate_covers_batches_in_the_middle():
    """Each of eight batches is measured with the ranges of the file, and if it is held out."""
    graph, _ = perceptron()
    x = np.random.default_rng(0).standard_normal((8, 6, 16)).astype(np.float32)
    batches = [{"x": x[k] * np.float32(0.01 if k == 4 else 1)} for k in range(8)]
    work = Search(graph, batches)
    found = work.estimate(work.possible(work.uniform(Candidate("min_max"))))
    model, f32 = (gq.compile(g) for g in (work.made(work.uniform(Candidate("min_max"))), graph))
    assert found.seen == pytest.approx(distance(f32(batches[4]), model(batches[4])), rel=0.01)
    assert len(found.losses) == 8 and found.losses[4] == pytest.approx(found.seen, rel=0.01)
