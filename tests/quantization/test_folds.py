"""Which batches are held out."""
import numpy as np
import pytest

from graphq.quantization.trials import few, folds, judged
from graphq.quantization.tuned import FEW, MOST_COMPARED


@pytest.mark.parametrize("count, seen, held_out, copies", [
    (1, [(0,)], [(0, 1)], [()]), (2, [(0,), (1,)], [(1,), (0,)], [(3,), (2,)]),
    (3, [(0, 1), (0, 2), (1, 2)], [(2,), (1,), (0,)], [(5,), (4,), (3,)]),
    (8, [(0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 6, 7)], [(6, 7), (0, 1)], [(14, 15), (8, 9)]),
    (9, [(0, 1, 2, 3, 4, 5, 6), (2, 3, 4, 5, 6, 7, 8)], [(7, 8), (0, 1)], [(), ()])])
def test_folds_hold_batches_out(count, seen, held_out, copies):
    assert [*zip(*folds(count), strict=True)] == [tuple(seen), tuple(held_out), tuple(copies)]


def test_of_many_batches_few_are_compared():
    (a, b) = folds(1000)
    assert a.held_out == tuple(int(k) for k in np.linspace(750, 999, 8)) and len(b.held_out) == 8 and len(a.seen) == 750


def test_folds():
    assert folds(1) == [((0,), (0, 1), ())] and folds(2) == [((0,), (1,), (3,)), ((1,), (0,), (2,))]
    assert folds(5) == [((0, 1, 2, 3), (4,), (9,)), ((1, 2, 3, 4), (0,), (5,))]
    assert few(tuple(range(8))) == tuple(range(8)) and few(tuple(range(10, 110))) == (10, 24, 38, 52, 66, 80, 94, 109)
    assert len(folds(100)[0].held_out) == MOST_COMPARED and np.all(np.diff(folds(100)[0].held_out) > 0)


@pytest.mark.parametrize("count", range(1, 12))
def test_of_few_batches_each_judges_once(count):
    found = judged(count)
    if not 4 <= count <= FEW:
        assert found == folds(count)
        return
    assert sorted(k for fold in found for k in fold.held_out) == [*range(count)]
    for fold in found:
        assert sorted(fold.seen + fold.held_out) == [*range(count)]
        assert fold.copies == tuple(k + count for k in fold.held_out)
