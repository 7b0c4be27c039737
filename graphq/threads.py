"""Threads: how many a plan may use, and starting those that run native code alone."""
from __future__ import annotations

import ctypes
import os
import signal
import sys

import numpy as np

from graphq.errors import CompileError

_FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP}


def start(function: int, argument: int) -> bool:
    """Start a thread of this process that calls the native function at an address; whether the system gave one.

    It never holds the GIL, and gets no signals but those of its own faults: Python's handlers are for Python's threads.
    It may run on all cores of the process, also where the thread that starts it may not.
    """
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    cores = _cores()
    mask = sum(1 << core for core in cores).to_bytes(max(cores) // 64 * 8 + 8, sys.byteorder)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        failed = library.pthread_create(ctypes.byref(thread), None, *map(ctypes.c_void_p, (function, argument)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if not failed:
        library.pthread_setaffinity_np(thread, ctypes.c_size_t(len(mask)), mask)
        library.pthread_detach(thread)
    return not failed


def _cores() -> set[int]:
    """The cores that this process may use: its main thread, as others may have chosen theirs."""
    return os.sched_getaffinity(os.getpid())


def most_threads() -> int:
    """The most threads of a plan: $NUMBA_NUM_THREADS, or the cores that this process may use."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else len(_cores())


def resolve_threads(threads: int | None) -> int:
    """The thread number asked for, at most `most_threads`; by default all cores that this process may use.

    Raises CompileError unless it is a positive int or None.
    """
    if threads is None:
        return max(1, min(most_threads(), len(_cores()), _quota()))
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise CompileError(f"threads must be a positive int or None, got {threads!r}")
    return min(int(threads), most_threads())


def _quota(path: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that the control group's quota allows, rounded up; a large number without one."""
    try:
        with open(path) as f:
            quota, period = f.read().split()[:2]
        return -(-int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 20
