"""Progress bars for long loops, shown within `bars()` if the package tqdm (the extra `progress`) is installed."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

DELAY = 1.0
"""The seconds after which a bar appears."""

_wanted: ContextVar[bool] = ContextVar("wanted", default=False)


@contextmanager
def bars(wanted: bool = True) -> Iterator[None]:
    """Within a `with` block, show bars on stderr if `wanted`, else hide them; other threads are not affected."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """Return the items to loop over. If bars are wanted, a bar counts the items during the loop."""
    if not _wanted.get():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    shown: Iterable[T] = tqdm(items, desc=what, leave=False, delay=DELAY)
    return shown
