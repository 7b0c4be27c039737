"""Threads: how many, when they start, and what concurrent callers and forked processes may do with them."""
from __future__ import annotations

import os
import threading

import numba
import numpy as np

from graphq.errors import InputError, KernelError

SPIN = "500"
"""Turns that an idle thread of libgomp waits before it sleeps: 25 us here, longer than most serial steps.

Its own 300,000 are 15 ms, in which a thread that waits for work takes its core from who has work: NumPy's BLAS in a
Python step, or another process. A parallel step of two threads beside eight other processes: 20 ms, with 500 turns at
most 0.03; alone 4 us either way, and 10 more after a pause that was longer.
"""


def launch() -> None:
    """Start Numba's threads, once per process, and note which process has them."""
    if _state.started is None and not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN  # libgomp reads it once, when it is loaded
        try:
            numba.get_num_threads()
        finally:
            del os.environ["GOMP_SPINCOUNT"]
    _state.started = _state.started or os.getpid()
    numba.get_num_threads()


class _Threads:
    """The parallel region of one call: Numba's thread number for the calling thread, set and restored.

    Only the workqueue layer, which aborts when two threads enter, needs the lock (numba#8563). After OpenMP ran,
    a forked child would die at its first parallel region: it gets an exception instead.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: int | None = None

    def enter(self, threads: int) -> tuple[int, bool]:
        if self.started != os.getpid() and _layer() != "tbb":
            raise KernelError("this process was forked after graphq had started its threads, and they did not survive; "
                              "start it with multiprocessing's 'spawn', or compile with threads=1 before forking")
        locked = _layer() in ("workqueue", None)
        if locked:
            self.lock.acquire()
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        return before, locked

    def leave(self, before: int, locked: bool) -> None:
        numba.set_num_threads(before)
        if locked:
            self.lock.release()


_state = _Threads()


class parallel_region:  # a class, since contextlib costs 1 us a call
    """Within the block, parallel steps use `count` threads.

    Raises KernelError in a process forked after one ran.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before, self.locked = _state.enter(self.count)

    def __exit__(self, *_: object) -> None:
        _state.leave(self.before, self.locked)


def _layer() -> str | None:
    """Numba's threading layer, None before the first parallel region."""
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def resolve_threads(threads: int | None) -> int:
    """The thread number asked for, at most Numba's; by default all cores that this process may use.

    Raises InputError unless it is a positive int or None.
    """
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if threads is None:
        return max(1, min(most, len(os.sched_getaffinity(0)), _quota()))
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise InputError(f"threads must be a positive int or None, got {threads!r}")
    return min(int(threads), most)


def _quota(path: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that the control group's quota allows, rounded up; a large number without one."""
    try:
        with open(path) as f:
            quota, period = f.read().split()[:2]
        return -(-int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 20
