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
    """Show bars on stderr, or hide them, while this context is active in this thread."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """The items. If bars are wanted, a bar counts the items while the caller loops over them."""
    if not _wanted.get():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    shown: Iterable[T] = tqdm(items, desc=what, leave=False, delay=DELAY)
    return shown
