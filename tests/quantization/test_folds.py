"""Which batches are held out."""
import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.quantization.compare import distance
from graphq.quantization.scheme import Candidate
from graphq.quantization.search import Search
from graphq.quantization.trials import few, folds


@pytest.mark.parametrize("count, seen, held_out", [
    (1, [(0,)], [(0, 2)]), (2, [(1,), (0,)], [(0,), (1,)]), (3, [(1, 2), (0, 2), (0, 1)], [(0,), (1,), (2,)]),
    (8, [(0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 6, 7)], [(6, 7), (0, 1)]),
    (9, [(0, 1, 2, 3, 4, 5, 6), (2, 3, 4, 5, 6, 7, 8)], [(7, 8), (0, 1)])])
def test_folds_hold_batches_out(count, seen, held_out):
    assert [*zip(*folds(count), strict=True)] == [tuple(seen), tuple(held_out)]


@pytest.mark.parametrize("count", range(2, 8))
def test_of_few_batches_each_is_held_out_once(count):
    assert [k for fold in folds(count) for k in fold.held_out] == [*range(count)]
    assert all(sorted(fold.seen + fold.held_out) == [*range(count)] for fold in folds(count))


def test_of_many_batches_few_are_compared():
    (a, b) = folds(1000)
    assert a.held_out == tuple(int(k) for k in np.linspace(750, 999, 8)) and len(b.held_out) == 8 and len(a.seen) == 750
    assert few(tuple(range(8))) == tuple(range(8)) and few(tuple(range(10, 110))) == (10, 24, 38, 52, 66, 80, 94, 109)


def test_the_estimate_covers_batches_in_the_middle():
    """Each of eight batches is measured with the ranges of the file, also if it is in no fold's held-out part."""
    graph, _ = perceptron()
    x = np.random.default_rng(0).standard_normal((8, 6, 16)).astype(np.float32)
    batches = [{"x": x[k] * np.float32(0.01 if k == 4 else 1)} for k in range(8)]
    work = Search(graph, batches)
    found = work.estimate(work.possible(work.uniform(Candidate("min_max"))))
    model, f32 = (gq.compile(g) for g in (work.made(work.uniform(Candidate("min_max"))), graph))
    assert found.seen == pytest.approx(distance(f32(batches[4]), model(batches[4])), rel=0.01)
    assert found.seen > 5 * max(found.losses)
