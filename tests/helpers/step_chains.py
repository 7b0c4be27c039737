"""Chains of steps that show what threads do wrong, and processes that run them."""
import os
import subprocess
import sys
import threading
import time

import numpy as np
from kernel_factories import adding

from graphq.kernels.jit import modules
from graphq.kernels.threads import team


class Chain:
    """Steps that each read what all blocks of the one before have written; `wanted` is what the last ones give."""

    def __init__(self, seed, steps, threads):
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 40, steps + 1)
        self.arrays = [np.zeros(n, np.int64) for n in counts]
        function = modules.load("adding", adding).block
        self.args = [np.array([a.ctypes.data, b.ctypes.data, a.size], np.int64)
                     for a, b in zip(self.arrays, self.arrays[1:], strict=False)]
        rows = [(function, args.ctypes.data, b.size,
                 min(b.size, threads) if rng.integers(0, 3) and b.size > 1 else 0)
                for args, b in zip(self.args, self.arrays[1:], strict=True)]
        self.table = team.StepTable(rows)
        self.arrays[0][:] = rng.integers(0, 100, counts[0])

    def right(self, run=None):
        """Whether a run, `table.run` if none is given, leaves what it should."""
        for x in self.arrays[1:]:
            x[:] = 0
        (run or self.table.run)()
        wanted = self.arrays[0]
        for x in self.arrays[1:]:
            wanted = np.resize(wanted, x.size) + 1
            if not np.array_equal(x, wanted):
                return False
        return True


def begun():
    """The team of this process, once its helpers take part: those of the region if Numba is imported."""
    found, chain = team.the_team(), Chain(0, 30, 2)
    while not found.settled or found.layer == "omp" and not all_in_region(found):
        chain.table.run()
        time.sleep(0.001)
    return found


def all_in_region(found):
    threads = min(found.helpers.most, sys.modules["numba"].config.NUMBA_NUM_THREADS)
    return not found.helpers.threads and found.helpers.begun >= threads


def in_region(found):
    """Whether the helpers of a team that has begun are those of a prange."""
    return found.helpers.begun > 0 and not found.helpers.threads


def finished(text, *arguments, **environment):
    """What a Python process prints that ends well, without a word of warning."""
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


def native_threads():
    """The ids of this process's threads that Python does not know."""
    return set(os.listdir("/proc/self/task")) - {str(x.native_id) for x in threading.enumerate()}
