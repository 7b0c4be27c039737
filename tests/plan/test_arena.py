"""Arenas that the runs of a model share."""
import threading

import numpy as np

import graphq as gq
from graphq.base.platform import process_cores
from graphq.kernels.jit.memory import LINE
from graphq.plan.plan import find_lives, plan_arena
from graphq.plan.runtime import PATIENCE, Arenas


def clashing(lives):
    """The clashes of buffers that the first and the last step of their lives touch."""
    found, clashes = find_lives([[b for b, life in lives.items() if k in life] for k in range(8)])
    assert found == lives
    return clashes


def test_lifetimes_and_what_clashes():
    """A step's operands and results live at once; buffers that the next step begins with do not meet the last's."""
    lives, clashes = find_lives([[0, 1], [1, 2], [2, 3], [0, 3], [4]])
    assert lives == {0: (0, 3), 1: (0, 1), 2: (1, 2), 3: (2, 3), 4: (4, 4)}
    assert clashes == {0: (1, 2, 3), 1: (0, 2), 2: (0, 1, 3), 3: (0, 2), 4: ()}


def test_buffers_share_memory_unless_they_clash():
    clashes = clashing({0: (0, 3), 1: (0, 1), 2: (1, 2), 3: (2, 3), 4: (4, 4)})
    sizes = {0: 100, 1: 1000, 2: 10, 3: 1000, 4: 1}
    offsets, nbytes = plan_arena(sizes, clashes)
    assert (offsets, nbytes) == ({1: 0, 3: 0, 0: 1024, 2: 1152, 4: 0}, 1216)
    assert plan_arena({}, {}) == ({}, 0)


def test_no_two_buffers_that_clash_overlap():
    rng = np.random.default_rng(0)
    for _ in range(300):
        lives = {b: tuple(sorted(rng.integers(0, 8, 2).tolist())) for b in range(9)}
        sizes = {b: int(rng.integers(1, 500)) for b in lives}
        clashes = clashing(lives)
        offsets, nbytes = plan_arena(sizes, clashes)
        assert all(at % LINE == 0 and at + sizes[b] <= nbytes for b, at in offsets.items())
        for a, others in clashes.items():
            assert a not in others
            for b in others:
                assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a], (lives, sizes)


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
