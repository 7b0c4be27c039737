"""Locks between threads that survive forks and signal handlers.

A fork copies locks, but not the threads that hold them, so the child could wait for a lock forever. There are two kinds
of locks, for two kinds of state:

- `Lock()` guards Python objects that are in a valid state whenever the interpreter can switch threads. The child gets a
  new, free lock.
- `Lock(fork_waits=True)` guards state that graphq cannot repair, such as LLVM's state, or a module during its import.
  The thread that forks takes the lock first, so no other thread is changing the state at that moment.

All locks are re-entrant, because a signal handler may call a model while the interrupted thread holds a lock. Guarded
state may therefore change during any call that the holder of a lock makes. Read the state again after the call.
"""
from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from graphq.base.platform import at_fork
from graphq.errors import CompileError

T = TypeVar("T")

log = logging.getLogger("graphq")

PATIENCE_SECONDS = 10.0
"""The most seconds that a fork waits for a lock.

Without a limit two threads could wait for each other: the thread that holds the lock may itself wait for a lock that
another library took in its fork hook."""
waited_for: list[Lock] = []
taken: list[Lock] = []
renewed: weakref.WeakSet[Lock] = weakref.WeakSet()


class lazy_property(Generic[T]):
    """A property that is computed when it is first read, and kept in the object's `__dict__`.

    Threads that read the property at the same time may all compute it; all of them get the first result. There is no
    lock, unlike in Python 3.11's `functools.cached_property`, because a fork may copy a lock while a thread holds it.
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
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.compute(instance))


class Lock:
    """A re-entrant lock for `with lock.hold:`; the module's docstring explains `fork_waits`."""

    def __init__(self, *, fork_waits: bool = False) -> None:
        self.hold = threading.RLock()  # a `with` block releases the RLock that it took, even if a fork replaced `hold`
        if fork_waits:
            waited_for.append(self)
        else:
            renewed.add(self)


def _before() -> None:
    for lock in waited_for:
        if lock.hold.acquire(timeout=PATIENCE_SECONDS):
            taken.append(lock)
        else:
            # Logging is safe here: fork hooks run in reverse order of registration, so logging's hook has not taken its
            # lock yet.
            log.warning("a fork waited %g s for another thread to compile or import, and goes on: its child may hang "
                        "when it compiles or imports", PATIENCE_SECONDS)


def _after() -> None:
    held = taken[::-1]
    taken.clear()  # emptied first, because another thread may fork as soon as a lock is free
    for lock in held:
        lock.hold.release()


def _in_child() -> None:
    held = list(taken)
    _after()
    for lock in [*renewed, *(x for x in waited_for if x not in held)]:
        lock.hold = threading.RLock()


importing = Lock(fork_waits=True)
"""The lock to hold during a late import of another package: Python's own module locks do not survive a fork."""


@contextmanager
def files_needed(what: str) -> Iterator[None]:
    """Raise CompileError if a `with` block fails because too many files are open. `what` begins the message."""
    try:
        yield
    except (OSError, ImportError) as e:  # ImportError if a shared library cannot be opened
        if not any(os.strerror(number) in str(e) for number in (errno.EMFILE, errno.ENFILE)):
            raise
        raise CompileError(f"{what}: {e}") from None


@contextmanager
def late_imports(what: str = "a module of graphq") -> Iterator[None]:
    """Hold the lock `importing` while a `with` block imports `what`. Raises CompileError for too many open files."""
    with files_needed(f"{what} cannot be imported"), importing.hold:
        yield


at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
