"""Words of 8 bytes that threads share: atomic memory access, and the C library's semaphores, cores and clocks."""
from __future__ import annotations

import platform
from collections.abc import Sequence

from llvmlite import ir

from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.values import I32, I64, Builder, Type, Value

MACHINE = platform.machine()


@emits
def acquired(b: Builder, address: Value) -> Value:
    """Load a word with acquire order: stores made by another thread before its `release` are then visible."""
    word: Value = b.load_atomic(address.pointer(I64), "acquire", 8)
    return word


@emits
def release(b: Builder, address: Value, value: Value) -> None:
    """Store a word with release order: a thread that acquires it then sees all stores made before."""
    b.store_atomic(value, address.pointer(I64), "release", 8)


@emits
def added(b: Builder, address: Value, value: Value) -> Value:
    """Add to a word atomically, in sequentially consistent order; returns the value before."""
    before: Value = b.atomic_rmw("add", address.pointer(I64), value, "seq_cst")
    return before


@emits
def exchanged(b: Builder, address: Value, old: Value, new: Value) -> Value:
    """Compare and exchange: set a word to `new` if it is `old`. Returns whether it was."""
    word_and_done = b.cmpxchg(address.pointer(I64), old, new, "seq_cst", "seq_cst")
    done: Value = b.extract_value(word_and_done, 1)
    return done.zext(I64)


@emits
def pause(b: Builder) -> None:
    """Wait for some dozens of cycles; on CPUs other than x86 it emits nothing."""
    if MACHINE == "x86_64":
        b.call_named("llvm.x86.sse2.pause", ir.VoidType())


@emits
def fence(b: Builder) -> None:
    """Emit a full memory fence: this thread's earlier stores come before its later loads for all threads."""
    b.fence("seq_cst")


def _library_call(b: Builder, name: str, kind: Type, args: Sequence[Value]) -> Value:
    function = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(kind, [I64] * len(args)), name)
    return b.call(function, args)


def _library(name: str, arity: int) -> Intrinsic:
    """Make the function that calls a function of the C library with `arity` words; its result is a C int."""

    def call(b: Builder, *values: Value) -> Value:
        return _library_call(b, name, I32, values).sext(I64)

    return emits(call, arity)


semaphore_wait = _library("sem_wait", 1)
"""Wait until the POSIX semaphore at an address is greater than 0, and subtract 1.

Returns 0, or -1 if a signal interrupted it.
"""
semaphore_post = _library("sem_post", 1)
"""Add 1 to the POSIX semaphore at an address."""
give_way = _library("sched_yield", 0)
"""Let another thread run on this core, if one waits for it."""
this_core = _library("sched_getcpu", 0)
"""The number of the core that this thread runs on, or -1."""
read_clock = _library("clock_gettime", 2)
"""Store the time of a clock (such as CLOCK_MONOTONIC) at an address: seconds, then nanoseconds."""
set_cores = _library("pthread_setaffinity_np", 3)
"""Let a thread run only on the cores of a mask: takes its pthread_t, and the mask's bytes and address (Linux)."""


@emits
def this_thread(b: Builder) -> Value:
    """The pthread_t of the calling thread."""
    return _library_call(b, "pthread_self", I64, [])
