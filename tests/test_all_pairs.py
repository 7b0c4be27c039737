"""Cases cover each pair of values of two parameters, and few values meet twice."""
from itertools import combinations

import pytest
from all_pairs import all_pairs


@pytest.mark.parametrize("axes, most", [
    (["ab", range(3)], 6), (["ab", "cd", "ef"], 4), ([range(30), "abc", range(3)], 90),
    ([range(7), "ab", "abc", range(4)], 30)])
def test_each_pair_is_in_a_case(axes, most):
    cases, axes = all_pairs(*axes), [list(axis) for axis in axes]
    assert len(cases) <= most
    for i, j in combinations(range(len(axes)), 2):
        assert {(case[i], case[j]) for case in cases} == {(x, y) for x in axes[i] for y in axes[j]}
