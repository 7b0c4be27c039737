"""Thread numbers."""
import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from graphq.errors import CompileError
from graphq.kernels.threads.count import _quota, process_cores, resolve_threads


def test_thread_numbers(monkeypatch):
    assert resolve_threads(1) == resolve_threads(np.int64(1)) == 1
    assert resolve_threads(10_000) == numba.config.NUMBA_NUM_THREADS
    monkeypatch.setattr("graphq.kernels.threads.count._quota", lambda: 1)
    assert resolve_threads(None) == 1


def test_numbas_variable_says_how_many_threads_there_are_at_most(monkeypatch):
    for text, most in (("5", 5), ("1", 1), ("0", 1), ("", len(process_cores())), ("many", len(process_cores()))):
        monkeypatch.setenv("NUMBA_NUM_THREADS", text)
        assert resolve_threads(10_000) == most and resolve_threads(None) <= len(process_cores())


def test_quota_of_the_control_group(tmp_path):
    for text, cores in (("150000 100000", 2), ("100000 100000", 1), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert _quota(str(tmp_path / "cpu.max")) == cores
    (tmp_path / "cpu.max").write_text("max 100000")
    assert _quota(str(tmp_path / "cpu.max")) > 1000
    assert _quota(str(tmp_path / "absent")) > 1000


@pytest.mark.parametrize("threads", [0, -1, 2.0, True, "2"])
def test_bad_thread_numbers(threads):
    with pytest.raises(CompileError, match="positive int"):
        resolve_threads(threads)


PINNED = """
import os, threading, time
import numpy as np, graphq as gq
from graphq.kernels.threads.team import the_team
from graphq.kernels.threads.count import most_threads
cores = os.sched_getaffinity(0)
first_core = min(cores)
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
most = []

def first():
    os.sched_setaffinity(0, {first_core})
    most.append(most_threads())
    model = gq.compile(g, isa="scalar", threads=2)
    model(x=x)
    team = the_team()
    while team.thread.is_alive() and team.run_shared is None:
        time.sleep(0.001)
    helper = team.thread.native_id
    while os.sched_getaffinity(helper) != cores - {first_core}:
        time.sleep(0.01)  # the helper falls asleep; who wakes it says where it may run
        model(x=x)

t = threading.Thread(target=first)
t.start(); t.join()
print(most == [most_threads()], os.sched_getaffinity(0) == cores)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_pinned_thread_starts_helpers_for_other_cores():
    """On which the process may run, though the thread that runs a plan first may not."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=300,
                          env={**environment, "NUMBA_THREADING_LAYER": "omp"})
    assert done.stdout.strip() == "True True", done.stdout + done.stderr
