"""What threads need: atomic access to words of 8 bytes that they share, and the functions of the system.

Native code calls the functions of the first half, Python the functions of the second half.
"""
from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

from llvmlite import ir

from graphq.base.platform import SYSTEM
from graphq.kernels.jit.deferred import Intrinsic, emits, njit
from graphq.kernels.jit.values import I32, I64, Builder, Type, Value, c64
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


def _library_function(name: str, arity: int, result: Type = I32, more: tuple[int, ...] | None = None) -> Intrinsic:
    """Make the native function that calls a C function with `arity` words; its result is a C int, or a word.

    With `more`, the one argument is the address of a word; the C function gets this word and the numbers `more`.
    """
    def call(b: Builder, *values: Value) -> Value:
        words = values if more is None else (values[0].load(I64), *map(c64, more))
        kind = ir.FunctionType(result, [I64] * len(words))
        x = b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), words)
        return x if result == I64 else x.sext(I64)

    return emits(call, arity)


def _nothing(arity: int) -> Intrinsic:
    def minus_one(b: Builder, *values: Value) -> Value:
        return c64(-1)

    return emits(minus_one, arity)


give_way = _library_function("SwitchToThread" if SYSTEM == "win32" else "sched_yield", 0)
"""Let another thread run on this core, if a thread waits for the core."""
this_core = _library_function("sched_getcpu", 0) if SYSTEM == "linux" else _nothing(0)
"""The number of the core that this thread runs on, or -1."""
set_cores = _library_function("pthread_setaffinity_np", 3) if SYSTEM == "linux" else _nothing(3)
"""Let a thread run only on the cores of a mask; takes its pthread_t, the mask's bytes, and the mask's address."""
this_thread = (_library_function("GetCurrentThreadId", 0) if SYSTEM == "win32" else
               _library_function("pthread_self", 0, I64))
"""The number of the calling thread that `threading.get_ident` gives; a pthread_t except on Windows."""
_counter, _gettime = _library_function("QueryPerformanceCounter", 1), _library_function("clock_gettime", 2)
if SYSTEM == "win32":
    TICK, _CLOCK = round(1e9 * time.get_clock_info("perf_counter").resolution), 0
else:
    TICK, _CLOCK = 10**9, getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)


@njit
def read_clock(address: int) -> None:
    """Store the time of `time.perf_counter` at an address: ticks of TICK nanoseconds, then nanoseconds."""
    if SYSTEM == "win32":
        _counter(address)
    else:
        _gettime(_CLOCK, address)


_MOST_PAUSES = 1 << 14


@njit
def _poll(address: int) -> int:
    pauses = 1
    while exchanged(address, 1, 0) == 0:
        for _ in range(pauses):
            pause()
        give_way()
        pauses = min(2 * pauses, _MOST_PAUSES)
    return 0


@njit
def _mark(address: int) -> None:
    release(address, 1)


semaphore_wait, semaphore_post = {
    "linux": (_library_function("sem_wait", 1), _library_function("sem_post", 1)),
    "darwin": (_library_function("dispatch_semaphore_wait", 1, more=(-1,)),  # -1: without a limit of time
               _library_function("dispatch_semaphore_signal", 1, more=())),
    "win32": (_library_function("WaitForSingleObject", 1, more=(-1,)),
              _library_function("ReleaseSemaphore", 1, more=(1, 0))),
}.get(SYSTEM, (_poll, _mark))
"""`semaphore_wait` waits until the semaphore at an address is above 0, and subtracts 1. Its result is not 0 if a signal
interrupted it. `semaphore_post` adds 1. A semaphore is a sem_t on Linux, and the word of a handle on macOS and Windows.
On other systems it is a word that is 1 or 0, and a waiting thread polls it more and more seldom."""
SEMAPHORE_BYTES = 32
"""The bytes of the C library's sem_t."""


@cache
def _library() -> Any:
    return ctypes.CDLL("kernel32" if SYSTEM == "win32" else None)


def make_semaphore(address: int) -> None:
    """Make a semaphore with value 0 at an address of zeros, for the threads of this process."""
    library, handle = _library(), ctypes.c_void_p.from_address(address)
    if SYSTEM == "linux":
        library.sem_init(ctypes.c_void_p(address), 0, 0)
    elif SYSTEM == "darwin":
        library.dispatch_semaphore_create.restype = ctypes.c_void_p
        handle.value = library.dispatch_semaphore_create(ctypes.c_ssize_t(0))
    elif SYSTEM == "win32":
        library.CreateSemaphoreW.restype = ctypes.c_void_p
        handle.value = library.CreateSemaphoreW(None, 0, 1 << 30, None)


def start_thread(function: int, argument: int) -> int | None:
    """Start a native thread that calls the function at an address as `function(argument)`.

    Python does not know the thread, so the thread never waits for the GIL. Returns its pthread_t or handle without
    waiting for it, or None if no more threads can be started.
    """
    thread, code, word = ctypes.c_void_p(), ctypes.c_void_p(function), ctypes.c_void_p(argument)
    if SYSTEM == "win32":
        _library().CreateThread.restype = ctypes.c_void_p
        thread.value = _library().CreateThread(None, ctypes.c_size_t(0), code, word, 0, None)
    elif _library().pthread_create(ctypes.byref(thread), None, code, word):
        return None
    return thread.value


def join_thread(thread: int) -> None:
    """Wait until a native thread has ended."""
    if SYSTEM == "win32":
        _library().WaitForSingleObject(ctypes.c_void_p(thread), -1)
        _library().CloseHandle(ctypes.c_void_p(thread))
    else:
        _library().pthread_join(ctypes.c_void_p(thread), None)
