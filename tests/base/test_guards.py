"""Guards as text: arithmetic of named sizes, functions by their names, and the first guard that fails."""
import pytest

from graphq.base.guards import text_of, why_not
from graphq.base.programs import Program
from graphq.base.sizes import Trace, later


def _square_of(n, m):
    return n * n


@pytest.fixture
def trace():
    return Trace()


def test_texts(trace):
    n, m = trace.leaf(4, "x[0]"), trace.leaf(6, "y[1]")
    names = ["n", "m"]
    assert text_of(trace, n.slot, names) == "n" and text_of(trace, m.slot, names) == "m"
    assert text_of(trace, (n + 1).slot, names) == "n + 1"
    assert text_of(trace, ((n + 1) * (m - 2)).slot, names) == "(n + 1) * (m - 2)"
    assert text_of(trace, (7 // m % 3).slot, names) == "(7 // m) % 3"
    assert text_of(trace, later(_square_of, m, n).slot, names) == "square_of(n, m)"
    assert text_of(trace, later(_square_of, m, 5).slot, names) == "square_of(m)"
    assert text_of(trace, trace.slot("a" * 60), names) == "'" + "a" * 39
    deep = n
    for _ in range(7):
        deep = deep + m
    assert text_of(trace, deep.slot, names) == "((((add(n, m) + m) + m) + m) + m) + m"


def test_the_first_guard_that_fails(trace):
    n, m = trace.leaf(4, "x[0]"), trace.leaf(6, "y[1]")
    assert n < m and not n == 5
    share = 60 // (n - 2)
    program = Program(trace, [share])
    assert why_not(program, trace, [3, 8], ["n", "m"]) == ""
    assert why_not(program, trace, [9, 8], ["n", "m"]) == "n < m is not True"
    assert why_not(program, trace, [5, 8], ["n", "m"]) == "n == 5 is not False"
    assert why_not(program, trace, [5, 5], ["n", "m"]) == "n < m is not True"
    assert why_not(program, trace, [2, 5], ["n", "m"]) == "60 // (n - 2) cannot be computed"
