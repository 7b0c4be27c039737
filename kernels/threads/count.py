"""How many threads a plan may use."""
from __future__ import annotations

import os

import numpy as np

from graphq.errors import CompileError


def process_cores() -> set[int]:
    """The cores that this process may use: its main thread, as others may have chosen theirs."""
    return os.sched_getaffinity(os.getpid())


def most_threads() -> int:
    """The most threads of a plan: $NUMBA_NUM_THREADS, or the cores that this process may use."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else len(process_cores())


def resolve_threads(threads: int | None) -> int:
    """The thread number asked for, at most `most_threads`; by default all cores that this process may use.

    Raises CompileError unless it is a positive int or None.
    """
    if threads is None:
        return max(1, min(most_threads(), len(process_cores()), _quota()))
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
