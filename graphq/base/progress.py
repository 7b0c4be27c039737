"""Show one progress bar for a long job, if the caller asks (`bars`) and the package tqdm is installed.

The bar shows the share of the whole job that is done. The time of a part is unknown before the part has run. Each part
therefore states its share of the rest of the surrounding part. The bar never goes back, and never exceeds 100 %.
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

DELAY = 1.0
"""A bar appears this many seconds after its job began, if the job still runs."""
LOOP, MOST, ITEM = 0.5, 0.9, 0.1
"""The shares that parts take of the rest: a loop that other work may follow, a loop that takes most of the time,
and one item if the number of items is unknown."""


@dataclass(eq=False)
class _RunningPart:
    """A running part of a job: its name, or "", and the share of the job that is done after the part (0 to 1)."""

    what: str
    end: float


class _ProgressJob:
    """A job, its bar, the share of the job that is `done`, and the running parts, the outermost first."""

    def __init__(self, name: str) -> None:
        self.name, self.begin, self.done = name, time.monotonic(), 0.0
        self.parts: list[_RunningPart] = []
        self._bar: Any = None

    @contextmanager
    def part(self, what: str, share: float) -> Iterator[None]:
        """A `with` block for the part `what`. It takes `share` of the rest of the surrounding part."""
        end = self.parts[-1].end if self.parts else 1.0
        own = _RunningPart(what, self.done + share * max(0.0, end - self.done))
        self.parts.append(own)
        self._show()
        try:
            yield
        finally:
            if own in self.parts:  # the surrounding part may have ended first, if an exception left a loop
                self.done = max(self.done, own.end)
                self._show()
                del self.parts[self.parts.index(own):]

    def loop(self, items: Iterable[T], what: str, share: float) -> Iterator[T]:
        """Yield the items; the caller's work on each item is an equal share of the loop's part."""
        left = len(items) if isinstance(items, Sized) else 0
        with self.part(what, share):
            for item in items:
                with self.part("", 1 / left if left > 0 else ITEM):
                    yield item
                left -= 1

    def _show(self) -> None:
        if self._bar is None:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            left = max(0.0, DELAY - (time.monotonic() - self.begin))
            self._bar = tqdm(total=100, leave=False, delay=left, miniters=0, bar_format="{l_bar}{bar}| {elapsed}")
        what = next((part.what for part in self.parts if part.what), "")
        self._bar.set_description(": ".join(filter(None, (self.name, what))), refresh=False)
        self._bar.update(100 * self.done - self._bar.n)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


_job: ContextVar[_ProgressJob | None] = ContextVar("job", default=None)


@contextmanager
def bars(wanted: bool = True, job: str = "") -> Iterator[None]:
    """Within a `with` block, show a bar on stderr for the job of this thread, if `wanted`."""
    made = _ProgressJob(job) if wanted else None
    before = _job.set(made)
    try:
        yield
    finally:
        _job.reset(before)
        if made is not None:
            made.close()


def job_part(what: str, share: float) -> AbstractContextManager[None]:
    """A `with` block for a part of the job. It takes `share` (0 to 1) of the rest of the surrounding part."""
    job = _job.get()
    return nullcontext() if job is None else job.part(what, share)


def progress(items: Iterable[T], what: str, share: float = LOOP) -> Iterable[T]:
    """Yield the items. In a job, the loop is a part of the job, and each item is an equal part of the loop."""
    job = _job.get()
    return items if job is None else job.loop(items, what, share)
