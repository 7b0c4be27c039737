"""The number of threads for a plan: the process's share of the machine's cores.

The share is the minimum of three limits: the cores that the process may use (affinity), the CPU quotas of its control
groups (containers, Kubernetes), and OMP_NUM_THREADS. Dask, Ray and joblib set OMP_NUM_THREADS for their workers.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphq.base.platform import process_cores
from graphq.errors import CompileError

_NO_LIMIT = 1 << 20
_most_asked = 0


def most_threads() -> int:
    """The most threads that a plan can have: $NUMBA_NUM_THREADS, or the cores that this process may use."""
    return _variable("NUMBA_NUM_THREADS") or len(process_cores())


def share() -> int:
    """The threads that a plan uses by default."""
    return min(len(process_cores()), _allowed())


def team_threads() -> int:
    """The number of threads of the process: its limit, or the largest number that a plan asked for, if larger."""
    return max(_allowed(), _most_asked)


def resolve_threads(threads: int | None) -> int:
    """The number of threads for a plan: `threads`, but at most `most_threads`; by default `share()`.

    Raises CompileError unless `threads` is a positive int or None.
    """
    global _most_asked
    if threads is None:
        return share()
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise CompileError(f"threads must be a positive int or None, got {threads!r}")
    asked = min(int(threads), most_threads())
    _most_asked = max(_most_asked, asked)
    return asked


def _allowed() -> int:
    return max(1, min(most_threads(), quota(), _variable("OMP_NUM_THREADS") or _NO_LIMIT))


def _variable(name: str) -> int | None:
    """The number at the start of an environment variable, such as 4 in "4,2"; None if it is not positive."""
    first = os.environ.get(name, "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else None


def quota(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """The cores that the quotas of control groups allow, rounded up; a large number if there are no quotas."""
    return min((-(-quota // period) for quota, period in _quotas(Path(root), Path(own)) if quota > 0 and period > 0),
               default=_NO_LIMIT)


def _quotas(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """The quota and period of the process's control groups (version 1 or 2) and of their parents."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        groups = []
    for _, controllers, path in [*groups, ["", "", "/"]]:
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / controllers
        group = mounted / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mounted):
                break
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            try:
                quota, period, *_ = " ".join((folder / name).read_text() for name in names).split()
                yield int(quota), int(period)
            except (OSError, ValueError):  # no quota: the file does not exist, or says "max"
                continue
