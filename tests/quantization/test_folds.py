"""Which batches are held out."""
import numpy as np
import pytest

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
