"""Arrays whose sizes are numbers of the graph: what they take counts first."""
import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.errors import CompileError
from graphq.ops.interpolate import scaled
from graphq.ops.open_arrays import numbers_between


@pytest.mark.parametrize("dtype, wanted", [(np.int64, [3, 5, 7]), (np.float32, [3, 5, 7]), (np.int16, [3, 5, 7])])
def test_numbers_between(dtype, wanted):
    got = numbers_between(*np.array([3, 8, 2], dtype))
    assert got.dtype == dtype and got.tolist() == wanted
    assert numbers_between(*np.array([8, 3, -2], dtype)).tolist() == [8, 6, 4]
    for empty in ([8, 3, 2], [8, 8, 2]):
        assert not numbers_between(*np.array(empty, dtype)).size


@pytest.mark.parametrize("given, wanted", [
    ([-2**63, 2**63 - 1, 2**63 - 1], [-2**63, -1, 2**63 - 2]), ([0, 2**53 + 1, 2**53], [0, 2**53])])
def test_integers_are_counted_exactly(given, wanted):
    assert numbers_between(*np.array(given, np.int64)).tolist() == wanted


def test_what_numbers_take_counts():
    given = np.array([0, 50, 1], np.int16)
    taken = 50 * 2 + 3 * 50 * 8  # the constant, and what lives for a moment
    with budget(taken):
        numbers_between(*given)
    with budget(taken - 1), pytest.raises(CompileError, match="a range of 50 numbers"):
        numbers_between(*given)
    with budget(99), pytest.raises(CompileError, match=r"a constant int16\[50\]"):
        numbers_between(*given)


def test_scaled_sizes_are_those_of_f32():
    assert [scaled(*x) for x in ((5, 2.0), (5, 0.5), (10, 0.1), (3, 1.4), (1, 0.5))] == [10, 2, 1, 4, 0]
