"""Open sizes: what is computed from them is computed again for other sizes, what is decided by them is a guard."""
import math
import operator
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from graphq.base.programs import Program, record, restored, text_of
from graphq.base.sizes import (
    Later,
    Size,
    Trace,
    assumed,
    is_open,
    largest,
    later,
    number,
    numbers,
    parts,
    plain,
    smallest,
    surely_equal,
)


def at(trace, results, *sizes):
    """The results at these sizes; None where a guard fails."""
    values = Program(trace, parts(results)).at(sizes)
    return None if values is None else values.of(results)


def test_arithmetic_follows_the_sizes():
    t = Trace()
    n, m = t.leaf(12, "n"), t.leaf(5, "m")
    results = [n + 1, 1 + n, n - m, 3 - n, n * m, 2 * n, n // 5, -(-n // 5), n % 5, 100 % n, -n, abs(m - n),
               divmod(n, m), n ** 2, n * 1.5, n / 4, smallest(n, m, 7), largest(n, m, 7), number(max, [n, 3 * m])]
    assert all(isinstance(x, Size) for x in parts(results)) and not t.guards
    for a, b in ((12, 5), (3, 8), (1, 1), (1000, 7)):
        assert at(t, results, a, b) == [
            a + 1, 1 + a, a - b, 3 - a, a * b, 2 * a, a // 5, -(-a // 5), a % 5, 100 % a, -a, abs(b - a),
            divmod(a, b), a ** 2, a * 1.5, a / 4, min(a, b, 7), max(a, b, 7), max(a, 3 * b)]


def test_what_does_not_depend_on_a_size_is_a_plain_number():
    n = Trace().leaf(12, "n")
    assert (n * 0, 0 * n) == (0, 0) and type(n * 0) is int
    assert all(x is n for x in (n * 1, 1 * n, n + 0, 0 + n, n - 0, n // 1))
    assert smallest(3, 5) == 3 and largest(3, 5) == 5 and type(number(min, 3, 5)) is int


@pytest.mark.parametrize(("decide", "holds", "fails"), [
    (lambda n: n == 12, [12], [11]), (lambda n: n != 12, [12], [11]), (lambda n: n < 13, [0, 12], [13]),
    (lambda n: n > 12, [0, 12], [13]), (lambda n: n >= 12, [12, 99], [11]), (lambda n: n <= 12, [12], [13]),
    (bool, [1, 7], [0]), (int, [12], [13]), (float, [12], [11]), (lambda n: range(n), [12], [13]),
    (lambda n: np.arange(n), [12], [13]), (lambda n: np.zeros((2, n)), [12], [13]),
    (lambda n: np.asarray([1, n]), [12], [13]), (lambda n: [0] * n, [12], [13]), (lambda n: n in (1, 2), [3, 9], [2]),
    (lambda n: (n, 4).count(4), [3, 12], [4]), (lambda n: np.int64(3) * n, [12], [13]),
    (lambda n: len({n, 12}), [12], [13]), (lambda n: plain((n, "x")), [12], [13]),
])
def test_decisions_are_guards(decide, holds, fails):
    t = Trace()
    n = t.leaf(12, "n")
    decide(n)
    assert t.guards
    assert all(at(t, [n + 1], size) == [size + 1] for size in holds)
    assert all(at(t, [n + 1], size) is None for size in fails)


def test_two_sizes_that_are_equal_by_chance_must_stay_so():
    t = Trace()
    a, b = t.leaf(8, "a"), t.leaf(8, "b")
    assert a == b and a * 2 == 2 * b
    assert at(t, [a + b], 5, 5) == [10] and at(t, [a + b], 5, 6) is None
    guards = dict(t.guards)
    assert a != Trace().leaf(8, "a") and t.guards == guards


def test_a_size_is_equal_to_itself_whatever_it_is():
    t = Trace()
    n = t.leaf(8, "n")
    same = [(n, n), (n * 2, n * 2)]
    assert all(f(a, b) for f in (operator.eq, operator.le, operator.ge) for a, b in same)
    assert not any(f(a, b) for f in (operator.ne, operator.lt, operator.gt) for a, b in same) and not t.guards
    assert None not in (n, n) and n != "n"


def test_types_are_compared_without_a_guard():
    t = Trace()
    n = t.leaf(8, "n")
    assert surely_equal((n, (n * 2, 3), None), (n, (n * 2, 3), None)) and not t.guards
    for x, y in ((n, 8), (n, n - n + 8), (n, Trace().leaf(8, "n")), ((n,), (n, 1)), (1, 2), (None, (n,))):
        assert not surely_equal(x, y) and not surely_equal(y, x) and not t.guards


def test_objects_are_made_again_later():
    t = Trace()
    n = t.leaf(4, "n")
    table = later(partial(np.arange, dtype=np.int64), n)
    twice = later(np.multiply, table, 2)
    pairs = later(dict, [(n, "rows"), (n + 1, {"of": n})])
    assert isinstance(table, Later) and table.assumed.tolist() == [0, 1, 2, 3] and not t.guards
    total = number(np.sum, twice)
    found = at(t, [table, twice, pairs, total], 3)
    assert [x.tolist() for x in found[:2]] == [[0, 1, 2], [0, 2, 4]]
    assert found[2:] == [{3: "rows", 4: {"of": 3}}, 6]
    assert later(np.arange, 3).tolist() == [0, 1, 2]


def test_the_same_calls_are_made_once():
    t = Trace()
    n = t.leaf(4, "n")
    assert (n * 3).slot == (n * 3).slot and later(np.arange, n).slot == later(np.arange, n).slot
    assert len(t.calls) == 2


class Pair(NamedTuple):
    """A named tuple among what holds sizes."""

    left: object
    right: object


def test_sizes_are_found_inside_of_other_objects():
    t = Trace()
    n = t.leaf(4, "n")
    held = Pair([n, {"k": (n + 1, "x")}], 2)
    assert is_open(held) and not is_open([1, {"k": (2,)}])
    found = at(t, held, 7)
    assert found.left == [7, {"k": (8, "x")}] and found.right == 2 and isinstance(found, Pair)


def test_nothing_after_a_guard_that_fails_is_computed():
    t = Trace()
    n = t.leaf(4, "n")
    made = []
    table = later(made.append, n)
    assert n < 5
    made.clear()
    assert at(t, [table], 9) is None and made == []
    assert at(t, [table], 3) == [None] and made == [3]


def test_a_division_by_a_size_of_0_does_not_hold():
    t = Trace()
    n = t.leaf(4, "n")
    assert at(t, [12 // n], 3) == [4] and at(t, [12 // n], 0) is None


def test_nor_do_sizes_that_a_function_refuses():
    t = Trace()
    n = t.leaf(4, "n")
    first = number(operator.getitem, (1, 2, 3, 4, 5), n)
    assert at(t, [first], 2) == [3] and at(t, [first], 9) is None


def test_zeros_of_both_signs_are_two_numbers():
    t = Trace()
    n = t.leaf(4, "n")
    zeros = [later(np.full, n, z) for z in (0.0, -0.0, 0)]
    assert [np.signbit(x).tolist() for x in at(t, zeros, 1)] == [[False], [True], [False]]


def test_arrays_of_two_dtypes_with_the_same_bytes_are_two_arrays():
    t = Trace()
    n = t.leaf(4, "n")
    found = at(t, [later(np.multiply, x, n) for x in (np.zeros(2, np.int32), np.zeros(2, np.float32))], 3)
    assert [x.dtype for x in found] == [np.int32, np.float32] and len(t.calls) == 2


def test_texts_and_assumed_values_decide_nothing():
    t = Trace()
    n = t.leaf(4, "x.0", "batch")
    assert (str(n), f"{n} {n * 2:,}", repr([n])) == ("batch", "batch 8", "[batch]")
    assert assumed(n) == 4 and assumed(5) == 5 and t.assumed == {"x.0": 4} and not t.guards


def test_a_sealed_trace_answers_and_keeps_no_guards():
    t = Trace()
    n = t.leaf(4, "n")
    t.sealed = True
    assert n == 4 and int(n) == 4 and bool(n) and not t.guards


@pytest.mark.parametrize("compute", [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.pow,
    operator.and_, operator.or_, divmod, operator.lt, operator.ge, smallest, largest,
    lambda a, b: later(np.full, (a, b), 0), lambda a, b: number(max, [a, [b]]), lambda a, b: numbers(2, divmod, a, b),
    lambda a, b: later(np.zeros, a) + later(np.zeros, b), lambda a, b: later(np.zeros, a) * b,
])
@pytest.mark.parametrize("seals", [False, True])
def test_sizes_of_two_traces_do_not_mix(compute, seals):
    """Slots are numbers of one trace: in another one they stand for other values. Equal they never are."""
    one, other = Trace(), Trace()
    a, b = one.leaf(5, "a"), (other.leaf(7, "x"), other.leaf(5, "b"))[1]
    other.sealed = seals
    for pair in ((a, b), (b, a)):
        with pytest.raises(TypeError):
            compute(*pair)
    assert a != b and not one.guards and not other.guards


def test_random_computations():
    """The theorem that plans rest on: what a program gives is what the same code gives on plain numbers."""
    rng = np.random.default_rng(0)
    functions = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, smallest, largest]

    def run(steps, sizes):
        numbers, decisions = list(sizes), []
        for f, a, b in steps:
            x, y = numbers[a % len(numbers)], numbers[b % len(numbers)]
            decisions.append(bool(x < y))
            numbers.append(f(x, y) if f not in (operator.floordiv, operator.mod) else f(x, largest(1, y)))
        return numbers, decisions

    held = 0
    for _ in range(300):
        steps = [(functions[rng.integers(len(functions))], int(rng.integers(99)), int(rng.integers(99)))
                 for _ in range(8)]
        t = Trace()
        example = [int(x) for x in rng.integers(0, 20, 3)]
        numbers, decisions = run(steps, [t.leaf(n, f"n{k}") for k, n in enumerate(example)])
        for _ in range(8):
            sizes = [int(x) for x in rng.integers(0, 20, 3)]
            want, decided = run(steps, sizes)
            found = at(t, numbers, *sizes)
            assert (found is not None) == (decided == decisions)
            if found is not None:
                assert found == want
                held += 1
    assert held > 100


def test_roundings():
    t = Trace()
    n = t.leaf(4, "n")
    found = [round(n / 3), math.floor(n / 3), math.ceil(n / 3)]
    assert not t.guards and at(t, found, 5) == [2, 1, 2] and at(t, found, 4) == [1, 1, 2]


def test_functions_get_named_tuples_by_their_names():
    class Window(NamedTuple):
        size: int
        step: int

    t = Trace()
    found = later(lambda w: w.size // w.step, Window(t.leaf(12, "n"), 3))
    assert at(t, [found], 15) == [5]


def test_arrays_that_follow_from_sizes_compute_as_arrays_do():
    t = Trace()
    n = t.leaf(4, "n")
    x = later(np.arange, n)
    one = np.ones(1)
    results = [x + 1, 1 - x, x * 2.0, 3.0 / (x + 1), one * x, one - x, np.maximum(x, 2), np.where(x < 2, x, one),
               (x >= 1).any(), (x >= 0).all(), (x * 0.5).astype(np.int32), np.atleast_1d(x)]
    assert all(isinstance(y, Later) for y in results) and not t.guards
    for size in (4, 1, 7):
        a = np.arange(size)
        want = [a + 1, 1 - a, a * 2.0, 3.0 / (a + 1), one * a, one - a, np.maximum(a, 2), np.where(a < 2, a, one),
                (a >= 1).any(), (a >= 0).all(), (a * 0.5).astype(np.int32), np.atleast_1d(a)]
        for found, wanted in zip(at(t, results, size), want, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert np.asarray(found).dtype == np.asarray(wanted).dtype


def test_what_arrays_decide_is_a_guard():
    t = Trace()
    x = later(np.arange, t.leaf(4, "n"))
    assert bool((x > 2).any()) and at(t, [x], 3) is None and at(t, [x], 5) is not None
    assert x.size == 4 and at(t, [x], 5) is None
    with pytest.raises(TypeError):
        np.sum(x, axis=0)


def test_what_fails_is_said_in_terms_of_the_sizes():
    t = Trace()
    n, m = t.leaf(12, "n"), t.leaf(5, "m")
    assert (n + 4) // 2 > m
    assert number(math.gcd, n, m) == 1
    program = Program(t, [])
    assert program.failed([12, 5]) is None
    assert text_of(t, program.failed([2, 5]), ["height", "m"]) == "((height + 4) // 2) > m"
    assert text_of(t, program.failed([20, 5]), ["height", "m"]) == "gcd(height, m) == 1"
    first, second = numbers(2, divmod, n, 5)
    assert at(t, [first, second], 16, 3) == [3, 1] and numbers(2, divmod, 7, 2) == (3, 1)


OPERATORS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.pow,
             operator.and_, operator.or_, operator.lshift, operator.rshift, divmod)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


@pytest.mark.parametrize("function", OPERATORS)
@pytest.mark.parametrize("other", [0, 1, 2, 3, -1, np.int64(2)])
def test_each_operator_is_that_of_ints_on_both_sides(function, other):
    t = Trace()
    n, m = t.leaf(6, "n"), t.leaf(4, "m")
    calls = [lambda a, b: function(a, b), lambda a, b: function(a, other), lambda a, b: function(b, a)]
    calls += [lambda a, b: function(other, a)] if type(other) is int else []
    for call in calls:
        try:
            want = [call(a, b) for a, b in ((6, 4), (5, 3), (1, 1), (13, 2))]
            found = call(n, m)
        except (ArithmeticError, ValueError, TypeError):  # a shift by -1, a shift of a Size on the right
            continue
        assert [at(t, [found], a, b) for a, b in ((6, 4), (5, 3), (1, 1), (13, 2))] == [[x] for x in want]
    assert not t.guards


def traces():
    """Traces with guards, named tuples, dicts and objects, what is asked of them, and sizes at which to ask."""
    for compare in COMPARISONS:
        for value in (3, 4, 5):
            t = Trace()
            n, m = t.leaf(4, "n", "rows"), t.leaf(7, "m")
            compare(n, value)
            compare(m - n, 3)
            yield t, [n * m, later(np.arange, n), Pair(n + 1, {"k": (m, 2.5, -0.0, None, "x", True)})]


def test_a_trace_from_a_record_answers_and_refuses_as_its_own():
    held = refused = 0
    for trace, results in traces():
        again = restored(record(trace, parts(results)))
        assert again.sealed and again.assumed == trace.assumed and again.guards == trace.guards
        for sizes in ((4, 7), (3, 6), (5, 8), (4, 8), (3, 7), (6, 7), (2, 9)):
            programs = [Program(t, parts(results)).at(sizes) for t in (trace, again)]
            assert (programs[0] is None) == (programs[1] is None)
            if programs[0] is None:
                refused += 1
                continue
            held += 1
            own, read = (p.of(results) for p in programs)
            assert own[0] == read[0] == sizes[0] * sizes[1]
            assert own[1].tolist() == read[1].tolist() == [*range(sizes[0])]
            assert own[2] == read[2] == Pair(sizes[0] + 1, {"k": (sizes[1], 2.5, -0.0, None, "x", True)})
            assert repr(own[2]) == repr(read[2])  # -0.0
    assert held > 20 and refused > 20


def test_a_record_without_results_has_its_guards_still():
    t = Trace()
    n = t.leaf(4, "n")
    assert n + 1 > 4
    found = record(t, [])
    assert len(found.calls) == 2 and Program(restored(found), []).at([3]) is None
    assert Program(restored(found), []).at([9]) is not None


@pytest.mark.parametrize("other", ["n", None, (4,), [4]])
def test_comparisons_with_what_is_no_number_decide_nothing(other):
    t = Trace()
    n = t.leaf(4, "n")
    assert n != other and not n == other and not t.guards
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError):
            compare(n, other)
    for compute in (operator.sub, operator.floordiv, operator.mod):
        if not isinstance(other, str):
            with pytest.raises(TypeError):
                compute(n, other)
    assert not t.guards and not t.calls


def test_equal_arguments_are_computed_once():
    """Plain values, tuples, lists, dicts and small arrays are equal by their contents; larger arrays by identity."""
    def one(x, n):
        return n

    for x, y, same in (((1, "a"), (1, "a"), True), ([1, (2,)], [1, (2,)], True), ((1,), (1.0,), False),
                       ((1,), (True,), False), ((0.0,), (-0.0,), False), ((1,), [1], False),
                       ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"a": 2}, False),
                       (np.arange(3), np.arange(3), True), (np.arange(3), np.arange(3.0), False),
                       (np.zeros((2, 1)), np.zeros((1, 2)), False), (np.zeros(100), np.zeros(100), False)):
        trace = Trace()
        n = trace.leaf(7, "n")
        assert (number(one, x, n).slot == number(one, y, n).slot) is same, (x, y)


def test_a_number_is_not_known_before_its_call_is_recorded():
    """Another thread may compute with the same sizes while a call is being recorded."""
    trace = Trace()
    n = trace.leaf(5, "n")
    found = []

    class Calls(list):
        def append(self, call):
            trace.calls = self[:]  # no further interruption
            found.append((n + 1) * 2)
            self[:] = trace.calls
            trace.calls = self
            super().append(call)

    trace.calls = Calls()
    _ = n + 1
    assert Program(trace, found).at([7]).of(found) == [16]
