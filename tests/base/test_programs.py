"""Programs: numbers of a trace at other sizes, guards first; and the record of a trace, from which it is made again.

Guards as text: arithmetic of named sizes, functions by their names, and the first guard that fails.
"""
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from graphq.base.programs import Numbers, Program, needed_slots, record, restored, text_of, why_not
from graphq.base.sizes import Trace, later


def doubled(n):
    return [n, 2 * n]


@pytest.fixture
def trace():
    return Trace()


def test_numbers_at_other_sizes(trace):
    n, m = trace.leaf(4, "x[0]", "n"), trace.leaf(6, "y[1]", "m")
    area, rest = n * m + 1, m - n
    pair = later(doubled, area)
    values = Program(trace, [area, rest, pair]).at([10, 3])
    assert [values.of(x) for x in (area, rest, pair)] == [31, -7, [31, 62]]
    assert values.of((area, [rest, 5], {"k": pair, "s": "text"}, 7)) == (31, [-7, 5], {"k": [31, 62], "s": "text"}, 7)
    numbers = Numbers([area, 5, pair])
    assert numbers.at(values) == [31, 5, [31, 62]]
    assert numbers.at(Program(trace, [area, pair]).at([2, 3])) == [7, 5, [7, 14]]
    with pytest.raises(KeyError):
        values.of(n)  # no result


def test_only_what_is_needed_is_computed(trace):
    n, m = trace.leaf(4, "n"), trace.leaf(6, "m")
    trace.call(str, m)
    wanted = n + 2
    program = Program(trace, [wanted])
    assert program.at([7, -1]).of(wanted) == 9
    assert [c[0] for c in program._calls] == [wanted.slot]


def test_a_record_has_all_sizes(trace):
    """Also one from which nothing is computed: a file names the sizes that a plan was made for."""
    n, _ = trace.leaf(4, "n"), trace.leaf(6, "m")
    kept = record(trace, [n + 2])
    assert [kept.values[k] for k in kept.leaves] == [4, 6] == [*kept.assumed.values()]
    assert Program(restored(kept), [n + 2]).at([7, -1]).of(n + 2) == 9


def test_guards_come_first(trace):
    n = trace.leaf(4, "n")
    calls = []
    costly = later(partial(_count, calls), n)
    assert calls == [4] and n > 3 and n % 2 == 0
    program = Program(trace, [costly])
    assert program.at([6]) is not None and calls == [4, 6]
    assert program.at([5]) is None and program.at([2]) is None and calls == [4, 6]
    assert program.failed([6]) is None
    slots = [c.slot for c in trace.calls if c.slot in trace.guards]
    assert program.failed([2]) == slots[0] and program.failed([5]) == slots[-1]


def _count(calls, n):
    calls.append(int(n))
    return n


def test_what_cannot_be_computed_fails(trace):
    n = trace.leaf(4, "n")
    share = 12 // n
    program = Program(trace, [share])
    assert program.at([5]).of(share) == 2 and program.at([0]) is None and program.failed([0]) == share.slot


def test_sizes_must_be_as_many_as_leaves(trace):
    n = trace.leaf(4, "n")
    with pytest.raises(ValueError):
        Program(trace, [n + 1]).at([1, 2])


def test_needed_slots(trace):
    n, m = trace.leaf(4, "n"), trace.leaf(6, "m")
    a = n + 1
    b = a * m
    c = m - 2
    assert needed_slots(trace, {c.slot}) == {c.slot, m.slot, trace.slot(2)}
    assert needed_slots(trace, {b.slot}) == {b.slot, a.slot, n.slot, m.slot, trace.slot(1)}
    assert needed_slots(trace, set()) == set()


def test_a_record_has_what_a_program_needs(trace):
    n, m = trace.leaf(4, "n"), trace.leaf(6, "m", "width")
    unused = m + 100
    kept = later(np.resize, table := np.arange(64) + 2.5, n)  # of an array that no size decides
    assert m * 2 < 20
    data = record(trace, [kept, n * 3])
    assert data.leaves == (n.slot, m.slot) and data.assumed == {"n": 4, "m": 6}
    assert data.guards == {k: True for k in trace.guards} and len(data.guards) == 1
    slots = [slot for slot, *_ in data.calls]
    assert unused.slot not in slots and unused.slot not in data.values
    assert slots == [c.slot for c in trace.calls if c.slot in slots] and kept.slot in slots
    assert kept.slot not in data.values and data.values[n.slot] == 4  # an array is made again
    assert any(x is table for x in data.values.values())
    again = restored(data)
    assert again.sealed and again.leaves == [n.slot, m.slot] and again.assumed == {"n": 4, "m": 6}
    assert again.guards == dict(data.guards) and len(again.values) == 1 + max(*data.values, *slots)
    program = Program(again, [kept])
    assert np.array_equal(program.at([3, 9]).of(kept), [2.5, 3.5, 4.5]) and program.at([3, 10]) is None
    assert [c.slot for c in again.calls] == slots


def test_a_record_has_the_values_of_the_example(trace):
    """Numbers and texts, of which a reader makes its own example; what is computed anew, as an array, is left out."""
    n = trace.leaf(4, "n")
    double, text, array, nothing = n * 2, later(str, n), later(np.arange, n), later(lambda k: None, n)
    data = record(trace, [double, text, array, nothing])
    assert data.values.items() >= {n.slot: 4, double.slot: 8, text.slot: "4"}.items()
    assert array.slot not in data.values and nothing.slot not in data.values
    assert restored(data).values[double.slot] == 8


def test_the_record_of_an_empty_trace():
    data = record(Trace(), [])
    assert data == ({}, (), (), {}, {}, ()) and restored(data).values == []


def _square_of(n, m):
    return n * n


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


def test_values_take_the_place_of_sizes_at_any_depth():
    """Tuples with names, lists and mappings stay what they are, and so does all that is not open."""
    trace = Trace()
    n = trace.leaf(3, "n")
    doubled, text = n * 2, later(str, n)
    program = Program(trace, [n, doubled, text])
    Pair = namedtuple("Pair", "first second")
    given = Pair([n, "n"], {"x": (doubled, 7), text.slot: Pair(None, text)})
    found = program.at([5]).of(given)
    assert found == Pair([5, "n"], {"x": (10, 7), text.slot: Pair(None, "5")})
    assert type(found) is Pair and type(found.first) is list and type(found.second[text.slot]) is Pair
