"""Locks across forks, and in frames that a signal's handler interrupts."""
import os
import signal
import sys
import threading

import pytest

from graphq.base import locks
from graphq.base.locks import Lock, lazy_property

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of a fork with threads


@pytest.fixture
def waited_for():
    """A lock that a fork waits for."""
    made = Lock(fork_waits=True)
    yield made
    locks.waited_for.remove(made)


def in_child(check):
    """Whether `check()` is true in a fork."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def free(lock):
    """Whether another thread could take the lock."""
    found = []

    def attempt():
        found.append(lock.hold.acquire(blocking=False))
        if found[0]:
            lock.hold.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found[0]


class Holder:
    """A thread that holds a lock within the block, or until `leave` is set."""

    def __init__(self, lock):
        self.lock, self.taken, self.leave, self.left = lock, threading.Event(), threading.Event(), False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with self.lock.hold:
            self.taken.set()
            self.leave.wait()
            self.left = True

    def __enter__(self):
        self.thread.start()
        self.taken.wait()
        return self

    def __exit__(self, *problem):
        self.leave.set()
        self.thread.join()


def test_a_child_gets_a_free_lock_in_place_of_one_that_another_thread_held():
    lock = Lock()
    with Holder(lock):
        assert not free(lock)
        assert in_child(lambda: free(lock) and lock.hold.acquire(blocking=False))
        assert not free(lock)
    assert free(lock)


def test_a_childs_frame_leaves_the_lock_that_it_took():
    lock = Lock()
    child = -1
    try:
        with lock.hold:
            child = os.fork()
        if child == 0:
            os._exit(0 if free(lock) else 1)
    finally:
        if child == 0:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0 and free(lock)


def test_a_fork_waits_for_the_thread_that_holds_the_lock(waited_for):
    with Holder(waited_for) as holder:
        timer = threading.Timer(0.05, holder.leave.set)
        timer.start()
        assert in_child(lambda: holder.left and free(waited_for))
        assert holder.left and free(waited_for)
        timer.join()


def test_the_thread_that_forks_may_hold_the_lock(waited_for):
    """Its frame goes on in both processes, and both hold the lock until it ends."""
    child = -1
    try:
        with waited_for.hold:
            child = os.fork()
            held = not free(waited_for)
        if child == 0:
            os._exit(0 if held and free(waited_for) else 1)
    finally:
        if child == 0:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0 and held and free(waited_for)


def test_children_of_children_have_locks_too(waited_for):
    lock = Lock()
    with Holder(lock):
        assert in_child(lambda: free(lock) and in_child(lambda: free(lock) and free(waited_for)))


def test_locks_that_are_gone_are_not_renewed():
    """Each model makes locks."""
    before = len(locks.renewed)
    made = [Lock() for _ in range(5)]
    assert len(locks.renewed) == before + 5
    del made
    assert len(locks.renewed) == before


@pytest.mark.parametrize("fork_waits", [False, True])
def test_a_signals_handler_may_take_the_lock_that_its_thread_holds(fork_waits):
    lock, taken = Lock(fork_waits=fork_waits), []

    def handle(number, frame):
        with lock.hold:
            taken.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with lock.hold:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while not taken:
                pass
        assert free(lock)
    finally:
        signal.signal(signal.SIGALRM, before)
        if fork_waits:
            locks.waited_for.remove(lock)


def test_threads_that_fork_at_a_time_leave_no_lock_taken(waited_for):
    """Another thread forks as soon as it gets a lock that the first one releases."""
    wrong, before = [], sys.getswitchinterval()

    def fork():
        wrong.extend(k for k in range(20) if not in_child(lambda: True))

    threads = [threading.Thread(target=fork) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for x in threads:
            x.start()
        for x in threads:
            x.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong and not locks.taken and free(waited_for) and free(locks.importing)


def test_a_fork_that_waits_no_longer_says_so(waited_for, monkeypatch, caplog):
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.01)
    holder = Holder(waited_for)
    holder.thread.start()
    holder.taken.wait()
    try:
        assert in_child(lambda: free(waited_for))
    finally:
        holder.leave.set()
        holder.thread.join()
    assert "a fork waited 0.01 s for another thread" in caplog.text and free(waited_for)


def test_a_fork_reads_a_property_that_another_thread_computes():
    """functools.cached_property has one lock for all objects in Python 3.11, and the child waits for it."""
    inside, leave, parent = threading.Event(), threading.Event(), os.getpid()

    class Slow:
        @lazy_property
        def number(self):
            if os.getpid() == parent:
                inside.set()
                leave.wait(30)
            return 1

    thread = threading.Thread(target=lambda: Slow().number)
    thread.start()
    inside.wait()

    def check():
        signal.alarm(10)
        return Slow().number == 1

    try:
        assert in_child(check)
    finally:
        leave.set()
        thread.join()


def test_threads_that_compute_a_property_together_get_one_result():
    both = threading.Barrier(2)

    class Pair:
        @lazy_property
        def made(self):
            both.wait(30)
            return object()

    pair, found = Pair(), []
    threads = [threading.Thread(target=lambda: found.append(pair.made)) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found[0] is found[1] is pair.made
