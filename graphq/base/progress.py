"""Progress bars for long work. They are shown if `bars` asks for them, as the command line does on a terminal.

Loops that can take seconds go over `progress(items, "what they are")`. Bars are those of tqdm (the extra `progress`);
without it there are none.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

DELAY = 1.0
"""Seconds after which a bar appears: shorter work has none."""

_wanted: ContextVar[bool] = ContextVar("wanted", default=False)


@contextmanager
def bars(wanted: bool = True) -> Iterator[None]:
    """Show bars on stderr, or show none, while this context is active in this thread."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """The items, with a bar if bars are wanted: the number of items that are done and, if it is known, of all items."""
    if not _wanted.get():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    shown: Iterable[T] = tqdm(items, desc=what, leave=False, delay=DELAY)
    return shown
