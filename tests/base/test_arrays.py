"""Arrays of which equal ones are kept once."""
import gc

import numpy as np

import graphq as gq
from graphq.base import arrays as module
from graphq.base.arrays import Arrays
from graphq.base.sizes import Trace, is_open


def unaligned(x: np.ndarray) -> np.ndarray:
    """A copy that does not start at a multiple of 64 bytes."""
    room = np.zeros(x.nbytes + 128, np.uint8)
    out = room[-room.ctypes.data % 64 + 8:][:x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def test_equal_arrays_are_the_earlier_ones():
    """Of another type, shape or element they are not equal."""
    x = np.arange(6, dtype=np.int32)
    others = [x.reshape(2, 3), x.view(np.uint32), x.view(np.float32), x[::-1], x[::2], x + 1, np.float32([0]),
              np.float32([-0.0]), np.zeros((), np.float32), np.zeros(0, np.float32), np.full(1000, 7, np.int64)]
    shared = Arrays()
    assert shared.empty
    assert all(shared.one_for(y) is y for y in (x, *others)) and not shared.empty
    assert all(shared.one_for(unaligned(y)) is y for y in (x, *others))
    narrow = [np.zeros(4, t.numpy) for t in (gq.dtypes.s4, gq.dtypes.u4, gq.dtypes.f8_e4m3)]
    assert all(shared.one_for(y) is y for y in narrow)


def test_arrays_that_differ_in_an_element_outside_of_the_sample_are_not_equal():
    x = np.zeros(100_000, np.float32)
    y = x.copy()
    y[1] = 1
    shared = Arrays()
    assert shared.one_for(x) is x and shared.one_for(y) is y
    assert shared.one_for(unaligned(x)) is x and shared.one_for(unaligned(y)) is y


def test_aligned_arrays():
    """An array that is not aligned is copied, unless there is an aligned one like it."""
    x = unaligned(np.arange(5))
    shared = Arrays()
    assert shared.one_for(x) is x
    first = shared.one_for(x, aligned=True)
    assert first is not x and first.ctypes.data % 64 == 0 and first.tolist() == x.tolist()
    assert all(shared.one_for(y, aligned=True) is first for y in (x, unaligned(x), first))
    assert shared.one_for(x.copy()) is x
    swapped = shared.one_for(np.arange(6).reshape(2, 3).T, aligned=True)
    assert swapped.flags.c_contiguous and swapped.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert shared.one_for(np.zeros((0, 3)), aligned=True).shape == (0, 3)


def test_arrays_that_nothing_uses_are_forgotten():
    shared = Arrays()
    for k in range(3):
        x = np.full(100, k)
        assert shared.made(np.negative, x).tolist() == [-k] * 100
        del x
    gc.collect()
    assert shared.empty and not shared._made


def test_what_is_made_of_equal_arrays_is_made_once():
    calls = []

    def make(x, factor):
        calls.append(factor)
        return x * factor

    shared = Arrays()
    x, y = np.arange(5), np.arange(5) + 1
    first = shared.made(make, x, 2)
    assert shared.made(make, unaligned(x), 2) is first and calls == [2]
    assert shared.made(make, x, 3).tolist() == [0, 3, 6, 9, 12] and shared.made(make, y, 2)[0] == 2
    assert calls == [2, 3, 2]
    assert shared.made(make, unaligned(y - 1), 2)[4] == 8  # another source with the same elements
    del first
    gc.collect()
    assert shared.made(make, x, 2)[1] == 2 and calls == [2, 3, 2, 2]


def test_open_sizes_do_not_stay_in_arrays_that_plans_share():
    shared, trace, x = Arrays(), Trace(), np.arange(5)
    first = shared.made(np.tile, x, trace.leaf(3, "n"))
    assert list(trace.guards.values()) == [3] and not is_open([key[2] for key in shared._made])
    assert shared.made(np.tile, x, Trace().leaf(3, "m")) is first is shared.made(np.tile, x, 3)


def test_an_array_that_another_thread_adds_meanwhile_is_equal_to_its_own(monkeypatch):
    shared, compare = Arrays(), module.Content
    x = np.arange(9)
    added = []

    def interrupted(array):
        monkeypatch.setattr(module, "Content", compare)
        added.append(shared.one_for(x.copy()))
        return compare(array)

    monkeypatch.setattr(module, "Content", interrupted)
    assert shared.one_for(x).tolist() == added[0].tolist() == list(range(9))
