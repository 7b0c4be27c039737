"""The levels to compile for: which are tried, in which order, and what is said of those that do not work."""
import warnings

import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels import levels
from graphq.kernels.levels import choices, plan_self_test, resolve, self_test, works
from graphq.kernels.numbers.float_sums import float_sums, tile_sums
from graphq.kernels.target import isa


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("GRAPHQ_ISA", raising=False)
    monkeypatch.setattr(levels, "_checked", {})
    monkeypatch.setattr(levels, "plan_self_test", lambda level, cache=True: [])


def names(levels):
    return [x.name for x in levels]


def fails(monkeypatch, *bad):
    tried = []

    def test(level, cache=True):
        tried.append((level.name, cache))
        return "it is broken" if level.name in bad else None

    monkeypatch.setattr(levels, "self_test", test)
    return tried




def test_the_best_comes_first():
    found, native = [], names(isa.native())
    with pytest.raises(KernelError, match="not even the scalar level passes its self-test"):
        for level in choices():
            found.append(level.name)
    assert found == native[::-1] and found[-1] == "scalar"


def test_a_level_that_is_asked_for_is_the_only_one(monkeypatch):
    found = []
    with pytest.raises(KernelError, match="ISA level 'scalar' fails its self-test on this machine"):
        for level in choices("scalar"):
            found.append(level.name)
    assert found == ["scalar"]
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")
    assert next(choices()).name == "scalar" and next(choices(isa.native()[-1].name)) is isa.native()[-1]
    monkeypatch.setenv("GRAPHQ_ISA", "")
    assert next(choices()) is isa.native()[-1]


def test_levels_that_there_are_not(monkeypatch):
    with pytest.raises(KernelError, match="mmx"):
        next(choices("mmx"))
    monkeypatch.setattr(levels, "available", lambda: isa.LEVELS[:2])
    with pytest.raises(KernelError, match="this machine has no ISA level 'amx'; it has scalar, avx2"):
        next(choices("amx"))


def test_a_level_that_does_not_work_is_left_out_with_a_warning(monkeypatch):
    native = names(isa.native())
    tried = fails(monkeypatch, *native[1:])
    with pytest.warns(RuntimeWarning) as said:
        assert resolve(cache=False).name == "scalar"
    assert [str(w.message) for w in said] == [f"ISA level {n} is not used: it is broken" for n in native[:0:-1]]
    assert tried == [(n, False) for n in native[::-1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve().name == "scalar" and len(tried) == len(native)  # each is tried once


def test_errors_of_a_self_test_are_those_of_the_level(monkeypatch):
    def broken(level, cache):
        raise OSError("no disk")

    monkeypatch.setattr(levels, "self_test", broken)
    with pytest.warns(RuntimeWarning, match="ISA level scalar is not used: OSError: no disk"):
        assert not works(isa.LEVELS[0])


def test_self_tests_are_of_all_types_with_tails(monkeypatch):
    for level in isa.available():
        steps = plan_self_test(level)
        assert 1 <= len(steps) <= 4 and all(s.blocks for s in steps)
        monkeypatch.setattr(levels, "plan_self_test", plan_self_test)
        assert self_test(level) is None


def test_another_order_of_pairs_and_subnormal_sums_would_be_noticed():
    a, w, expected = list(levels.self_test_products(isa.level_named("avx512_bf16")))[-1]
    assert np.array_equal(tile_sums(a, w), expected) and (float_sums(a, w) != expected).all()


def test_a_wrong_product_is_noticed(monkeypatch):
    monkeypatch.setattr(levels, "plan_self_test", plan_self_test)
    packed = levels.pack_sorted

    def wrong(w, k):
        w = w.copy()
        w[0, -1, -1] ^= 1
        return packed(w, k)

    monkeypatch.setattr(levels, "pack_sorted", wrong)
    assert self_test(isa.LEVELS[0]).endswith(" computes a wrong product")
    assert np.prod(levels.SELF_TEST) == 35 * 37 * 70
