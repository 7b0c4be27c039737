"""Arenas that the runs of a model share."""
import threading

import numpy as np

import graphq as gq
from graphq.kernels.jit.memory import LINE
from graphq.kernels.threads.count import process_cores
from graphq.plan.arena import PATIENCE, Arenas


def idle(arenas):
    return [a.array.nbytes for a in arenas.idle]


def test_arenas_are_used_again_and_grow():
    arenas = Arenas()
    first = arenas.take(1000)
    arenas.give_back(first)
    assert arenas.take(500) is first
    arenas.give_back(first)
    larger = arenas.take(5000)
    assert larger.array.nbytes >= 5000 and larger.address == larger.array.ctypes.data
    assert larger.address % LINE == 0
    arenas.give_back(larger)
    assert idle(arenas) == [larger.array.nbytes]  # what was too small is gone


def test_runs_at_a_time_have_arenas_of_their_own():
    arenas = Arenas()
    some = [arenas.take(100) for _ in range(20)]
    assert len({a.address for a in some}) == 20
    for a in some:
        arenas.give_back(a)
    assert len(idle(arenas)) <= len(process_cores())


def test_arenas_that_no_run_needs_are_freed():
    arenas = Arenas()
    arenas.most = 4
    some = [arenas.take(100) for _ in range(4)]
    for a in some:
        arenas.give_back(a)
    assert len(idle(arenas)) == 4
    for _ in range(3 * PATIENCE):
        arenas.give_back(arenas.take(100))
    assert len(idle(arenas)) == 1


def test_callers_at_a_time_leave_no_more_arenas_than_cores():
    """And all shapes have the same ones."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 64))
    g.output(g.softmax(g.softmax(x, axis=-1), axis=-1), name="y")
    model = gq.compile(g, threads=1)
    want = {n: model(np.ones((n, 64), np.float32)) for n in (3, 50, 400)}
    start, wrong = threading.Barrier(12), []

    def call(n):
        start.wait()
        for _ in range(20):
            if not np.array_equal(model(np.ones((n, 64), np.float32)), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 50, 400) * 4]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and 1 <= len(idle(model.plans._arenas)) <= len(process_cores())


def test_all_idle_arenas_are_taken_while_one_is_given_back():
    """Other threads may run whenever this one calls a function, `len` included."""
    class Taken(list):
        def __len__(self):
            count = super().__len__()
            self.clear()
            return count

    arenas = Arenas()
    arenas.most = 4
    arenas.give_back(arenas.take(100))
    arenas.idle = Taken(arenas.idle)
    arenas.give_back(Arenas().take(100))
    assert idle(arenas) == []
