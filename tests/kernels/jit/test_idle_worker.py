"""Kernels that nobody wants yet: who compiles them, with which priority, and what happens when they become wanted."""
import os
import time

import pytest
from echo_process import ECHO

from graphq.kernels.jit import compiling
from graphq.kernels.jit.compiling import Job


def test_what_nobody_wants_is_left_to_an_idle_process(fresh, here, monkeypatch):
    """A worker that has nothing else to do starts it, and it ends after the last job."""
    monkeypatch.setattr(compiling, "CHILD", ECHO)
    later = [Job("object_code", text, wanted=False) for text in ("one", "two", "three")]
    later[1].want()
    assert compiling.pool.idle is None and later[1].result().startswith("two")
    while not all(job.done for job in later):
        time.sleep(0.001)
    compiling.pool.idle.join()
    assert [job.answer.split()[0] for job in later] == ["one", "two", "three"]
    assert compiling.pool.idle.jobs == 0 and compiling.pool.idle.process is None and not compiling.pool.later
    assert [job.process for job in later] == [0, os.getpid(), 0]


def test_what_an_idle_process_does_is_done_again_once_wanted(fresh, monkeypatch):
    monkeypatch.setattr(compiling, "CHILD", ECHO)
    job = Job("object_code", "text", wanted=False)
    assert compiling.pool.later.popleft() is job  # as its worker does
    first = job.result()
    job.end("late", None)
    job.end(None, "the process ended")
    assert job.result() == first and first.startswith("text")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="no such scheduling policy")
def test_an_idle_process_gives_way_to_others():
    """It shares the session, in which priorities count, but not the group that gets Ctrl-C."""
    made = compiling.Process(1, idle=True)
    process = made.popen.pid
    try:
        while os.sched_getscheduler(process) != os.SCHED_IDLE:
            assert made.popen.poll() is None
            time.sleep(0.001)
        assert os.getsid(process) == os.getsid(0) and os.getpgid(process) != os.getpgid(0)
    finally:
        made.leave(made.connections[0])
