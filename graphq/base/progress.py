"""Show one progress bar for a long job, if the caller asks (`bars`) and the package tqdm is installed."""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

DELAY = 1.0
"""A bar appears this many seconds after its job began, if the job still runs."""


class _Job:
    """A job whose loops share one bar. The bar shows the outermost loop that runs; inner loops have no bar."""

    def __init__(self, name: str) -> None:
        self.name, self.begin, self.busy = name, time.monotonic(), False

    def loop(self, items: Iterable[T], what: str) -> Iterator[T]:
        try:
            from tqdm import tqdm
        except ImportError:
            tqdm = None
        if self.busy or tqdm is None:
            yield from items
            return
        left = max(0.0, DELAY - (time.monotonic() - self.begin))
        self.busy = True
        try:
            yield from tqdm(items, desc=f"{self.name}: {what}" if self.name else what, leave=False, delay=left)
        finally:
            self.busy = False


_job: ContextVar[_Job | None] = ContextVar("job", default=None)


@contextmanager
def bars(wanted: bool = True, job: str = "") -> Iterator[None]:
    """Within a `with` block, show a bar on stderr for the loops of this thread; without `wanted`, show none."""
    before = _job.set(_Job(job) if wanted else None)
    try:
        yield
    finally:
        _job.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """Yield the items, counted by the bar of the current job, if there is one."""
    job = _job.get()
    return items if job is None else job.loop(items, what)
