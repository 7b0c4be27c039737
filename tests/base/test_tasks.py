"""Work in the background: one task after another, each in a thread."""
import logging
import os
import sys
import threading

from graphq.base.locks import Lock
from graphq.base.tasks import Tasks, short_turns


def test_tasks_run_in_order():
    tasks, done = Tasks("some-tasks"), []
    free = threading.Event()
    tasks.start(free.wait, "it failed")
    for k in range(20):
        tasks.start(lambda k=k: done.append((k, threading.current_thread().name)), "it failed")
    assert not done
    free.set()
    tasks.join()
    assert done == [(k, "some-tasks") for k in range(20)]


def test_a_task_that_starts_another_and_joins_does_not_wait_for_itself():
    tasks, done = Tasks("some-tasks"), []

    def first():
        tasks.start(lambda: done.append(2), "it failed")
        tasks.join()
        done.append(1)

    tasks.start(first, "it failed")
    while len(done) < 2:
        tasks.join()
    assert done == [1, 2]


def test_each_thread_follows_another(monkeypatch):
    """Two callers add tasks at once: the second starts its thread while the first starts its own."""
    tasks, start, begun, running, most = Tasks("some-tasks"), threading.Thread.start, [], [], []

    def task():
        running.append(1)
        most.append(len(running))
        running.pop()

    other = threading.Thread(target=tasks.start, args=(task, "it failed"))

    def slow_start(thread):
        if thread.name == "some-tasks" and not begun:
            begun.append(thread)
            start(other)
            other.join(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    tasks.start(task, "it failed")
    other.join()
    tasks.join()
    assert most == [1, 1]


def test_a_task_runs_here_if_no_thread_can_be_started(monkeypatch):
    tasks, done = Tasks("some-tasks"), []

    def full(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    tasks.start(lambda: done.append(threading.current_thread()), "it failed")
    tasks.join()
    assert done == [threading.current_thread()]


def test_an_error_of_a_task_is_logged(caplog):
    tasks, done = Tasks("some-tasks"), []

    def broken():
        raise OSError("the disk is full")

    with caplog.at_level(logging.WARNING, "graphq"):
        tasks.start(broken, "a file is not written")
        tasks.start(lambda: done.append(1), "it failed")
        tasks.join()
    assert done == [1] and "a file is not written: OSError: the disk is full" in caplog.text


def test_a_signal_handler_waits_for_some_time_for_a_task_that_needs_the_lock_of_its_thread(monkeypatch):
    monkeypatch.setattr("graphq.base.tasks.PATIENCE_SECONDS", 0.1)
    tasks, lock, done = Tasks("some-tasks"), Lock(), []

    def needs_it():
        with lock.hold:
            done.append(1)

    with lock.hold:
        tasks.start(needs_it, "it failed")
        tasks.join()
        assert not done
    tasks.join()
    assert done == [1]


def test_the_child_of_a_fork_drops_the_tasks_of_its_parent():
    tasks, done, free = Tasks("some-tasks"), [], threading.Event()
    tasks.start(free.wait, "it failed")
    child = os.fork()
    if child == 0:
        tasks.join()
        tasks.start(lambda: done.append(1), "it failed")
        tasks.join()
        os._exit(0 if done == [1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free.set()
    tasks.join()


def test_short_turns_keep_what_the_user_sets_meanwhile_and_end_in_a_child_of_a_fork():
    usual = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() < usual
        child = os.fork()
        if child == 0:
            os._exit(0 if sys.getswitchinterval() == usual else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.getswitchinterval() == usual
    try:
        with short_turns():
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == 0.02
    finally:
        sys.setswitchinterval(usual)


def test_turns_stay_short_until_the_last_of_two_tasks_ends():
    usual, first, second, seen = sys.getswitchinterval(), Tasks("a"), Tasks("b"), []
    begun, free = threading.Barrier(3), threading.Event()
    first.start(begun.wait, "it failed")

    def waits():
        begun.wait()
        free.wait()
        seen.append(sys.getswitchinterval())

    second.start(waits, "it failed")
    begun.wait()
    first.join()
    assert sys.getswitchinterval() < usual
    free.set()
    second.join()
    assert seen[0] < usual and sys.getswitchinterval() == usual
