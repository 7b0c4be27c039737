"""Thread numbers."""
import os
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest

from graphq.base import platform
from graphq.base.platform import most_threads, process_cores, quota, resolve_threads
from graphq.errors import CompileError


def test_thread_numbers(monkeypatch):
    assert resolve_threads(1) == resolve_threads(np.int64(1)) == 1
    assert resolve_threads(10_000) == numba.config.NUMBA_NUM_THREADS
    monkeypatch.setattr("graphq.base.platform.quota", lambda: 1)
    assert resolve_threads(None) == 1


def test_numbas_variable_says_how_many_threads_there_are_at_most(monkeypatch):
    for text, most in (("5", 5), ("1", 1), ("0", 1), ("", len(process_cores())), ("many", len(process_cores()))):
        monkeypatch.setenv("NUMBA_NUM_THREADS", text)
        assert resolve_threads(10_000) == most and resolve_threads(None) <= len(process_cores())


def test_quota_of_the_control_group(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/\n")
    for text, cores in (("150000 100000", 2), ("100000 100000", 1), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert quota(str(tmp_path), str(own)) == cores
    (tmp_path / "cpu.max").write_text("max 100000")
    assert quota(str(tmp_path), str(own)) > 1000
    assert quota(str(tmp_path / "absent"), str(tmp_path / "none")) > 1000


def test_the_least_quota_of_a_group_and_its_parents_counts(tmp_path):
    own, group = tmp_path / "own", tmp_path / "pods" / "one"
    group.mkdir(parents=True)
    own.write_text("0::/pods/one\n")
    (group / "cpu.max").write_text("800000 100000")
    (group.parent / "cpu.max").write_text("300000 100000")
    assert quota(str(tmp_path), str(own)) == 3


def test_quota_of_control_groups_of_version_1(tmp_path):
    own, group = tmp_path / "own", tmp_path / "cpu,cpuacct" / "docker"
    group.mkdir(parents=True)
    own.write_text("no group\n5:memory:/docker\n4:cpu,cpuacct:/docker\n:\n")
    (group / "cpu.cfs_quota_us").write_text("250000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert quota(str(tmp_path), str(own)) == 3
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota(str(tmp_path), str(own)) > 1000


def test_the_share_that_an_engine_gives(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")
    monkeypatch.setattr("graphq.base.platform.quota", lambda: 8)
    monkeypatch.setattr("graphq.base.platform.process_cores", lambda: set(range(8)))
    for text, threads in (("3", 3), ("2,4", 2), ("1", 1), ("", 8), ("auto", 8), ("64", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert resolve_threads(None) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert resolve_threads(4) == 4  # what is asked for counts


def test_a_plan_with_fewer_threads_takes_none_from_a_plan_with_more(monkeypatch):
    monkeypatch.setattr(platform, "_most_asked", 0)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for asked, threads in ((1, 2), (4, 4), (3, 4), (100, 8), (1, 8)):
        resolve_threads(asked)
        assert platform.team_threads() == threads


THREADS = """
import os, time
import numpy as np, graphq as gq
from graphq.kernels.threads.team import the_team
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
model = gq.compile(g, isa="scalar")
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    model(x=x)
while model.threads > 1 and not the_team().settled:
    time.sleep(0.001)
print(model.threads, len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("given", ["1", "2"])
def test_a_process_has_no_more_threads_than_its_share(given):
    """Though eight are allowed; its own is one of them."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "8", "OMP_NUM_THREADS": given, "NUMBA_THREADING_LAYER": "omp",
                   "OPENBLAS_NUM_THREADS": "1"}
    for _ in range(2):  # the second process compiles nothing, for which there are threads, too
        done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=300,
                              env=environment)
    threads, more = map(int, done.stdout.split())
    assert threads == int(given) and more <= threads - 1, done.stdout + done.stderr


@pytest.mark.parametrize("threads", [0, -1, 2.0, True, "2"])
def test_bad_thread_numbers(threads):
    with pytest.raises(CompileError, match="positive int"):
        resolve_threads(threads)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_pinned_thread_has_no_fewer_threads():
    """The cores that the process may use count, not those of the thread that asks."""
    found = []

    def ask():
        os.sched_setaffinity(0, {min(process_cores())})
        found.append((process_cores(), most_threads()))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    assert found == [(process_cores(), most_threads())] and len(process_cores()) > 1
