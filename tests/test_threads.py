"""Thread numbers."""
import subprocess
import sys

import numba
import numpy as np
import pytest

from graphq.errors import CompileError
from graphq.threads import _quota, resolve_threads


def test_thread_numbers(monkeypatch):
    assert resolve_threads(1) == resolve_threads(np.int64(1)) == 1
    assert resolve_threads(10_000) == numba.config.NUMBA_NUM_THREADS
    monkeypatch.setattr("graphq.threads._quota", lambda: 1)
    assert resolve_threads(None) == 1


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
import os, sys, threading, time
import numpy as np, graphq as gq
from graphq.threads import most_threads
cores = sorted(os.sched_getaffinity(0))
if len(cores) < 2: print("one core"); sys.exit(0)
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
most = []
def first():
    os.sched_setaffinity(0, cores[:1])
    most.append(most_threads())
    gq.compile(g, threads=2)(x=x)
t = threading.Thread(target=first)
t.start(); t.join()
gq.compile(g, threads=2)(x=x)
masks = {tuple(sorted(os.sched_getaffinity(int(tid)))) for tid in os.listdir("/proc/self/task")}
print(most == [most_threads()] and masks == {tuple(cores)}, len(os.listdir("/proc/self/task")) >= 2)
"""


def test_a_pinned_thread_starts_helpers_for_all_cores():
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() in ("True True", "one core"), done.stdout + done.stderr
