"""Show progress bars for loops that take long, if the caller asks (`bars`) and the package tqdm is installed."""
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

DELAY = 1.0
"""A bar appears if its loop runs for longer than this many seconds."""

_job: ContextVar[str | None] = ContextVar("job", default=None)


@contextmanager
def bars(wanted: bool = True, job: str = "") -> Iterator[None]:
    """Within a `with` block, show bars on stderr for the loops of this thread, if `wanted`; titles begin with `job`."""
    before = _job.set(job if wanted else None)
    try:
        yield
    finally:
        _job.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """Yield the items. In a `bars` block, a bar shows how many have been processed; inner loops have their own bars."""
    job = _job.get()
    if job is None:
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Any = tqdm(items, ": ".join(filter(None, (job, what))), leave=False, delay=DELAY)
    return bar
