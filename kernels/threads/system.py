"""The operating system's functions for threads (Linux): native threads, semaphores, cores and clocks.

Native code calls the functions of the first half, Python the functions of the second half.
"""
from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.values import I32, I64, Builder, Type, Value


def _library_call(b: Builder, name: str, kind: Type, args: Sequence[Value]) -> Value:
    function = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(kind, [I64] * len(args)), name)
    return b.call(function, args)


def _library_function(name: str, arity: int) -> Intrinsic:
    """Make the native function that calls a C function with `arity` words; its result is a C int."""

    def call(b: Builder, *values: Value) -> Value:
        return _library_call(b, name, I32, values).sext(I64)

    return emits(call, arity)


semaphore_wait = _library_function("sem_wait", 1)
"""Wait until the POSIX semaphore at an address is above 0, and subtract 1; -1 if a signal interrupted, else 0."""
semaphore_post = _library_function("sem_post", 1)
"""Add 1 to the POSIX semaphore at an address."""
give_way = _library_function("sched_yield", 0)
"""Let another thread run on this core, if a thread waits for the core."""
this_core = _library_function("sched_getcpu", 0)
"""The number of the core that this thread runs on, or -1."""
read_clock = _library_function("clock_gettime", 2)
"""Store the time of a clock (such as CLOCK_MONOTONIC) at an address: seconds, then nanoseconds."""
set_cores = _library_function("pthread_setaffinity_np", 3)
"""Let a thread run only on the cores of a mask; takes its pthread_t, the mask's bytes, and the mask's address."""


@emits
def this_thread(b: Builder) -> Value:
    """The pthread_t of the calling thread."""
    return _library_call(b, "pthread_self", I64, [])


SEMAPHORE_BYTES = 32
"""The bytes of the C library's sem_t."""


@cache
def _library() -> Any:
    return ctypes.CDLL(None)


def make_semaphore(address: int) -> None:
    """Make a semaphore with value 0 at an address, for the threads of this process."""
    _library().sem_init(ctypes.c_void_p(address), 0, 0)


def start_thread(function: int, argument: int) -> int | None:
    """Start a native thread that calls the function at an address as `function(argument)`.

    Python does not know the thread, so the thread never waits for the GIL. Returns its pthread_t without waiting for
    it, or None if no more threads can be started.
    """
    thread = ctypes.c_void_p()
    failed = _library().pthread_create(
        ctypes.byref(thread), None, ctypes.c_void_p(function), ctypes.c_void_p(argument))
    return None if failed else thread.value


def join_thread(thread: int) -> None:
    """Wait until a native thread has ended."""
    _library().pthread_join(ctypes.c_void_p(thread), None)


def lower_priority() -> None:
    """Give this thread a low priority, for the rest of its life.

    It then gets a quarter of a core that another thread of the process wants. With the lowest priority, 19, an import
    of Numba next to plans on all cores had not ended after 17 s.
    """
    with suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


@contextmanager
def signals_left_to_others() -> Iterator[None]:
    """Block signals in this thread and in threads that it starts in the `with` block, except for faults."""
    faults = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
