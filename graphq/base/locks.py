"""Locks between threads that survive forks and signal handlers.

A fork copies locks, but not the threads that hold them: a child would wait for such a lock for ever. There are two
kinds, for two kinds of state:

- `Lock()` guards Python objects that are whole whenever another thread may run. The child gets a new, free lock.
- `Lock(fork_waits=True)` guards state that we cannot repair, such as LLVM's, or a module's while it is imported.
  The thread that forks takes the lock first, so that nobody is inside at that moment.

All are re-entrant: a signal's handler runs on the main thread between two of its instructions, and may call a model
while that thread holds a lock. So guarded state may change during a call that a holder of the lock makes: read it again
afterwards.

`lazy_property` needs no lock.
"""
from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

log = logging.getLogger("graphq")

PATIENCE_SECONDS = 10.0
"""A fork waits at most this long.

The thread that holds the lock may wait for a lock that another library's fork hook holds.
"""
_waited_for: list[Lock] = []
_taken: list[Lock] = []
_renewed: weakref.WeakSet[Lock] = weakref.WeakSet()


class lazy_property(Generic[T]):
    """A property that is computed when it is first read, and kept in the object's `__dict__`.

    Threads that read it at the same time may all compute it; the first result is kept, and all threads get it. There is
    no lock: `functools.cached_property` has one in Python 3.11, and a fork may copy it while another thread holds it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy_property[T] | T:
        """The kept result; it is computed if there is none."""
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.compute(instance))


class Lock:
    """A re-entrant lock, taken by `with lock.hold:`; the module's text explains `fork_waits`."""

    def __init__(self, *, fork_waits: bool = False) -> None:
        self.hold = threading.RLock()  # a child's frame that is in `with` leaves the lock that it took
        if fork_waits:
            _waited_for.append(self)
        else:
            _renewed.add(self)


def _before() -> None:
    for lock in _waited_for:
        if lock.hold.acquire(timeout=PATIENCE_SECONDS):
            _taken.append(lock)
        else:
            # Hooks before a fork run in reverse order of registration: logging's, which takes its lock, comes later.
            log.warning("a fork waited %g s for another thread to compile or import, and goes on: its child may hang "
                        "where it does the same", PATIENCE_SECONDS)


def _after() -> None:
    held = _taken[::-1]
    _taken.clear()  # first, as another thread may fork as soon as it gets a lock
    for lock in held:
        lock.hold.release()


def _in_child() -> None:
    held = list(_taken)
    _after()
    for lock in [*_renewed, *(x for x in _waited_for if x not in held)]:
        lock.hold = threading.RLock()


importing = Lock(fork_waits=True)
"""Held by code that imports another package late, since Python's own locks of modules do not survive a fork."""
os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
