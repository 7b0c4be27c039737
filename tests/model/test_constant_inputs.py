"""Inputs marked constant keep the arrays of the first call, also where first calls come at the same time."""
import signal
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.errors import InputError
from graphq.model import open_plans as module

CALLERS = 4


def model_of(*passes):
    """y = x * k, where k is marked constant: who runs another caller's plan gets that caller's k."""
    g = gq.Graph()
    x = g.input("x", shape=(None,), dtype="f32")
    g.output(g.multiply(x, g.input("k", shape=(1,), dtype="f32", property="constant")), name="y")
    return gq.compile(g, passes=passes)


def feeds(k, size=8):
    return {"x": np.ones(size, np.float32), "k": np.array([k], np.float32)}


def call(model, arrays, **options):
    """The value of all outputs, or None for the error of another constant."""
    try:
        y, = set(model(arrays, **options).tolist())
    except InputError as e:
        assert "'k' is marked constant" in str(e)
        return None
    return y


def call_together(*calls):
    """What functions give that are called at the same time, each in a thread of its own."""
    results = [()] * len(calls)

    def run(n):
        results[n] = calls[n]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def test_who_waits_for_the_plan_of_other_constants_is_refused(monkeypatch):
    """The first caller plans when all others wait at its lock."""
    arrived, plans = threading.Semaphore(0), []

    class Announced(module.Lock):
        """A lock that says who comes to take it."""

        @property
        def hold(self):
            arrived.release()
            return self._hold

        @hold.setter
        def hold(self, lock):
            self._hold = lock

    def plan_late(graph):
        plans.append(graph)
        for _ in range(CALLERS):
            assert arrived.acquire(timeout=60)
        return 0

    monkeypatch.setattr(module, "Lock", Announced)
    model = model_of(plan_late)
    results = call_together(*(lambda k=k: call(model, feeds(k)) for k in range(CALLERS)))
    assert sorted(k for k in results if k is not None) == [k for k in range(CALLERS) if results[k] is not None]
    assert sum(k is not None for k in results) == len(plans) == 1


@pytest.mark.parametrize("fetched", [False, True])
def test_one_of_the_plans_that_are_made_at_a_time_gives_the_constants(fetched):
    """Of calls with other shapes, and of models for values to fetch, which have the same constants."""
    together = threading.Barrier(CALLERS)

    def plan_together(graph):
        together.wait(timeout=60)
        return 0

    model = model_of(plan_together)
    options = [{"fetch": "y"} if fetched and k % 2 else {} for k in range(CALLERS)]
    results = call_together(*(lambda k=k: call(model, feeds(k, 8 + k), **options[k]) for k in range(CALLERS)))
    assert sum(k is not None for k in results) == 1
    kept, = (k for k in range(CALLERS) if results[k] is not None)
    assert results[kept] == kept == call(model, feeds(kept, 8 + kept), **options[kept])


def test_a_plan_is_not_seen_before_its_constants_are_kept():
    model, others = model_of(), []

    class Watched(dict):
        """Another caller comes as soon as there is a plan."""

        def __setitem__(self, key, made):
            super().__setitem__(key, made)
            others.extend(call_together(lambda: call(model, feeds(2))))

    model.plans.by_shapes = Watched()
    assert call(model, feeds(1)) == 1 and others == [None]


def test_a_signals_handler_makes_the_first_call():
    """While the main thread plans for other constants, under the same lock."""
    seen = []

    def plan(graph):
        if not seen:
            signal.raise_signal(signal.SIGUSR1)
        return 0

    def handle(number, frame):
        seen.append(number)
        seen.append(call(model, feeds(2)))

    model = model_of(plan)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert call(model, feeds(1)) is None and seen == [signal.SIGUSR1, 2]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert call(model, feeds(2)) == 2


def test_constants_of_other_shapes_are_others():
    g = gq.Graph()
    x, k = g.input("x", shape=(2, 3), dtype="f32"), g.input("k", shape=None, dtype="f32", property="constant")
    g.output(g.multiply(x, k), name="y")
    model, k = gq.compile(g), np.float32([1, 2, 1, 2, 1, 2])
    x = np.ones((2, 3), np.float32)
    assert model(x=x, k=k.reshape(2, 3)).tolist() == [[1, 2, 1], [2, 1, 2]]
    for other in (k.reshape(1, 2, 3), k.reshape(2, 1, 3), k[:3]):
        with pytest.raises(InputError, match="'k' is marked constant"):
            model(x=x, k=other)


def test_constants_are_equal_by_their_bits():
    model = model_of()
    assert np.signbit(model(feeds(-0.0))).all() and call(model, feeds(0.0)) is None
    model, nan = model_of(), feeds(np.nan)
    assert np.isnan(model(nan)).all() and np.isnan(model(feeds(np.nan))).all()


def test_constants_are_copies_of_the_callers_arrays():
    model, arrays = model_of(), feeds(1)
    assert call(model, arrays) == 1
    arrays["k"][:] = 2
    assert call(model, arrays) is None and call(model, feeds(1)) == 1
