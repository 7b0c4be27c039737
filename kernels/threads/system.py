"""What threads need: atomic access to words of 8 bytes that they share, and the functions of the system (Linux).

Native code calls the functions of the first half, Python the functions of the second half.
"""
from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.values import I32, I64, Builder, Type, Value
from graphq.kernels.target import isa


@emits
def acquired(b: Builder, address: Value) -> Value:
    """Load a word with acquire order: stores that another thread made before its `release` are then visible."""
    word: Value = b.load_atomic(address.pointer(I64), "acquire", 8)
    return word


@emits
def release(b: Builder, address: Value, value: Value) -> None:
    """Store a word with release order: a thread that acquires the word then sees all earlier stores."""
    b.store_atomic(value, address.pointer(I64), "release", 8)


@emits
def added(b: Builder, address: Value, value: Value) -> Value:
    """Add to a word atomically, in sequentially consistent order; returns the old value."""
    before: Value = b.atomic_rmw("add", address.pointer(I64), value, "seq_cst")
    return before


@emits
def exchanged(b: Builder, address: Value, old: Value, new: Value) -> Value:
    """Set a word to `new` if it equals `old`, atomically. Returns whether it did."""
    word_and_done = b.cmpxchg(address.pointer(I64), old, new, "seq_cst", "seq_cst")
    done: Value = b.extract_value(word_and_done, 1)
    return done.zext(I64)


@emits
def pause(b: Builder) -> None:
    """Wait some dozens of cycles, if the CPU has an instruction for it."""
    isa.pause(b)


@emits
def fence(b: Builder) -> None:
    """Emit a full memory fence: all threads see this thread's earlier stores before its later loads."""
    b.fence("seq_cst")


def _library_function(name: str, arity: int, result: Type = I32) -> Intrinsic:
    """Make the native function that calls a C function with `arity` words; its result is a C int, or a word."""

    def call(b: Builder, *values: Value) -> Value:
        kind = ir.FunctionType(result, [I64] * arity)
        x = b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), values)
        return x if result == I64 else x.sext(I64)

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
this_thread = _library_function("pthread_self", 0, I64)
"""The pthread_t of the calling thread."""
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
