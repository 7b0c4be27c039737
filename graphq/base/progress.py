"""One progress bar for a long job, within `bars()` and if the package tqdm (the extra `progress`) is installed."""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

DELAY = 1.0
"""The seconds after the start of a job after which its bar appears."""


class _Job:
    """A job whose loops share one bar: it shows the outermost loop that runs, and appears DELAY after the job began."""

    def __init__(self, name: str) -> None:
        self.name, self.begin, self.busy = name, time.monotonic(), False

    def loop(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Yield the items; the bar counts them, unless it shows another loop."""
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
    """Show a bar on stderr for a job, or none, while this context is active in this thread."""
    before = _job.set(_Job(job) if wanted else None)
    try:
        yield
    finally:
        _job.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """The items. In a job with a bar, the bar counts them while the caller loops over them."""
    job = _job.get()
    return items if job is None else job.loop(items, what)
