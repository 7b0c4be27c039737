"""Show one progress bar for a long job, if the caller asks (`bars`) and the package tqdm is installed.

The bar shows the share of the whole job that is done. The time of a part is unknown before the part has run. Each part
therefore states its share of the rest of the surrounding part. The bar never goes back, and never exceeds 100 %.
"""
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

DELAY = 1.0
"""A bar appears this many seconds after its job began, if the job still runs."""
LOOP, MOST, ITEM = 0.5, 0.9, 0.1
"""The shares that parts take of the rest: a loop that other work may follow, a loop that takes most of the time,
and one item if the number of items is unknown."""


class _ProgressJob:
    """A job, its bar, and the share of the job that is `done` (0 to 1).

    `parts` are the running parts, the outermost first: the name of each, or "", and the share that is done after it.
    """

    def __init__(self, name: str) -> None:
        self.name, self.begin, self.done = name, time.monotonic(), 0.0
        self.parts: list[tuple[str, float]] = []
        self._bar: Any = None

    @contextmanager
    def part(self, what: str, share: float) -> Iterator[None]:
        """A `with` block for the part `what`. It takes `share` of the rest of the surrounding part."""
        rest, depth = self.parts[-1][1] if self.parts else 1.0, len(self.parts)
        own = what, self.done + share * max(0.0, rest - self.done)
        self.parts.append(own)
        self._show()
        try:
            yield
        finally:
            # If an exception left a loop, the surrounding part may have ended first.
            if len(self.parts) > depth and self.parts[depth] is own:
                self.done = max(self.done, own[1])
                self._show()
                del self.parts[depth:]

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
        what = next((what for what, _ in self.parts if what), "")
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
