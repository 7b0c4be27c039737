"""The shell: steps in order, every block once, whoever runs it."""
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from graphq.kernels import cache as modules
from graphq.kernels import shell

BLOCK = '''"""A block adds 1 to what the step before left for it."""
from graphq.kernels.cache import block
from graphq.kernels.intrinsics import load_s64, store_s64, word


@block
def BLOCK(args, index):
    before, now, count = word(args, 0), word(args, 1), word(args, 2)
    store_s64(now + 8 * index, load_s64(now + 8 * index) + load_s64(before + 8 * (index % count)) + 1)
'''


class Chain:
    """Steps that each read what all blocks of the one before have written; `wanted` is what the last ones give."""

    def __init__(self, seed, steps, threads):
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 40, steps + 1)
        self.arrays = [np.zeros(n, np.int64) for n in counts]
        address = modules.load("adding", BLOCK).BLOCK.address
        self.args = [np.array([a.ctypes.data, b.ctypes.data, a.size], np.int64)
                     for a, b in zip(self.arrays, self.arrays[1:], strict=False)]
        rows = [shell.Row(address, args.ctypes.data, b.size, bool(rng.integers(0, 3)) and b.size > 1)
                for args, b in zip(self.args, self.arrays[1:], strict=True)]
        self.table = shell.Table(rows, threads)
        self.arrays[0][:] = rng.integers(0, 100, counts[0])

    def right(self):
        for x in self.arrays[1:]:
            x[:] = 0
        self.table.run()
        wanted = self.arrays[0]
        for x in self.arrays[1:]:
            wanted = np.resize(wanted, x.size) + 1
            if not np.array_equal(x, wanted):
                return False
        return True


@pytest.mark.parametrize("steps, threads", [(0, 2), (1, 1), (1, 2), (7, 2), (60, 2), (60, 5), (200, 40)])
def test_every_block_runs_once_and_steps_in_order(steps, threads):
    chain = Chain(steps, steps, threads)
    assert all(chain.right() for _ in range(50))


CALLERS = """
import sys, threading, time
from tests.kernels.test_shell import Chain
wrong, turns = [], int(sys.argv[1])
def call(k):
    chain = Chain(k, 30, 1 + k % 9)
    for turn in range(turns):
        if not chain.right(): wrong.append(k)
        if turn % 10 == k % 10: time.sleep(0.003)  # helpers fall asleep
callers = [threading.Thread(target=call, args=(k,)) for k in range(20)]
[t.start() for t in callers]; [t.join() for t in callers]
print(wrong)
"""


@pytest.mark.parametrize("threads", ["1", "2", "8"])
def test_more_callers_than_slots_and_helpers_than_cores(threads, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    done = subprocess.run([sys.executable, "-c", CALLERS, "40"], capture_output=True, text=True, timeout=300,
                          cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr


DOZE = '''"""Helpers that wake once."""
from graphq.kernels.atomics import acquired, added, sleep, wake
from graphq.kernels.cache import function
from graphq.kernels.shell import BELL, SLEEPERS


@function("intp")
def doze(team):
    added(team + SLEEPERS, 1)
    while not sleep(team + BELL, acquired(team + BELL)):
        pass


@function("intp")
def rouse(team):
    wake(team + BELL, 100)
'''


def test_no_more_helpers_are_woken_than_wanted():
    chain, asleep = Chain(1, 60, 3), modules.load("doze", DOZE)
    words = np.zeros(shell.TEAM_BYTES // 8, np.int64)
    words[shell.HELPERS // 8], team = 6, words.ctypes.data
    sleepers = words[shell.SLEEPERS // 8:]
    helpers = [threading.Thread(target=asleep.doze, args=(team,)) for _ in range(6)]
    for x in helpers:
        x.start()
    while sleepers[0] < 6:
        time.sleep(0.001)
    for _ in range(1000):
        chain.table._run(*chain.table._span, team, 2)
    while sleepers[0] > 4 and any(x.is_alive() for x in helpers):  # some had not begun to sleep
        chain.table._run(*chain.table._span, team, 2)
    assert sleepers[0] == 4 and words[shell.WANTED // 8] == 0
    while any(x.is_alive() for x in helpers):
        asleep.rouse(team)
