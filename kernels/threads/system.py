"""What threads need: atomic access to words of 8 bytes that they share, and the functions of the system."""
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from graphq.base.platform import SYSTEM
from graphq.kernels.jit import Intrinsic, Type, emits, njit
from graphq.kernels.jit.values import I32, I64, Builder, Value, c64
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


class System(NamedTuple):
    """The functions of a system. Native code calls all but the last three, which Python calls."""

    wait: Intrinsic
    """Wait until the semaphore at an address is above 0, and subtract 1. The result is not 0 after a signal."""
    post: Intrinsic
    """Add 1 to the semaphore at an address."""
    give_way: Intrinsic
    """Let another thread run on this core, if a thread waits for the core."""
    this_core: Intrinsic
    """The number of the core that this thread runs on, or -1."""
    set_cores: Intrinsic
    """Let a thread run only on the cores of a mask; takes its pthread_t, the mask's bytes, and the mask's address."""
    this_thread: Intrinsic
    """The number of the calling thread that `threading.get_ident` gives; a pthread_t except on Windows."""
    read_clock: Intrinsic
    """Store the time of `time.perf_counter` at an address: ticks of `tick` nanoseconds, then nanoseconds."""
    tick: int
    make_semaphore: Callable[[int], object]
    """Make a semaphore with value 0 at an address of zeros, for the threads of this process."""
    start_thread: Callable[[int, int], int | None]
    """Start a native thread that calls the function at an address as `function(argument)`.

    Python does not know the thread, so the thread never waits for the GIL. Returns its pthread_t or handle without
    waiting for it, or None if no more threads can be started.
    """
    join_thread: Callable[[int], object]
    """Wait until a native thread has ended."""


def _call(b: Builder, *values: Value, name: str, result: Type = I32, more: tuple[int, ...] | None = None) -> Value:
    """Call a C function with these words; its result is a C int, or a word.

    With `more`, the one value is the address of a word; the C function gets this word and the numbers `more`.
    """
    words = values if more is None else (values[0].load(I64), *map(c64, more))
    kind = ir.FunctionType(result, [I64] * len(words))
    x = b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), words)
    return x if result == I64 else x.sext(I64)


def _calls(name: str, arity: int = 0, **settings: Any) -> Intrinsic:
    return emits(_call, arity, name=name, **settings)


def _nothing(b: Builder, *values: Value) -> Value:
    return c64(-1)


_sleep, _gettime = _calls("usleep", 1), _calls("clock_gettime", 2)
_CLOCK = getattr(time, "CLOCK_UPTIME_RAW", getattr(time, "CLOCK_MONOTONIC", 0))


@njit
def _poll(address: int) -> int:
    microseconds = 64
    while exchanged(address, 1, 0) == 0:
        _sleep(microseconds)
        microseconds = min(2 * microseconds, 1 << 13)
    return 0


@njit
def _mark(address: int) -> None:
    release(address, 1)


@njit
def _read_clock(address: int) -> None:
    _gettime(_CLOCK, address)


def _keep(address: int, make: Any, *arguments: object) -> None:
    """Store a handle that a C function makes."""
    make.restype = ctypes.c_void_p
    ctypes.c_void_p.from_address(address).value = make(*arguments)


def _start(function: int, argument: int) -> int | None:
    thread, code, word = ctypes.c_void_p(), ctypes.c_void_p(function), ctypes.c_void_p(argument)
    return None if ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, code, word) else thread.value


def _start_on_windows(function: int, argument: int) -> int | None:
    thread, code, word = ctypes.c_void_p(), ctypes.c_void_p(function), ctypes.c_void_p(argument)
    _keep(ctypes.addressof(thread), ctypes.CDLL("kernel32").CreateThread, None, ctypes.c_size_t(0), code, word, 0, None)
    return thread.value


def _join_on_windows(thread: int) -> None:
    ctypes.CDLL("kernel32").WaitForSingleObject(ctypes.c_void_p(thread), -1)
    ctypes.CDLL("kernel32").CloseHandle(ctypes.c_void_p(thread))


_POSIX = System(
    wait=_poll, post=_mark, give_way=_calls("sched_yield"), this_core=emits(_nothing, 0), set_cores=emits(_nothing, 3),
    this_thread=_calls("pthread_self", result=I64), read_clock=_read_clock, tick=10**9,
    make_semaphore=lambda address: None, start_thread=_start,
    join_thread=lambda thread: ctypes.CDLL(None).pthread_join(ctypes.c_void_p(thread), None))
"""Without a known semaphore: it is a word that is 1 or 0. A waiting thread looks at it, after a while every 8 ms."""
_LINUX = _POSIX._replace(
    wait=_calls("sem_wait", 1), post=_calls("sem_post", 1), this_core=_calls("sched_getcpu"),
    set_cores=_calls("pthread_setaffinity_np", 3),
    make_semaphore=lambda address: ctypes.CDLL(None).sem_init(ctypes.c_void_p(address), 0, 0))
_MACOS = _POSIX._replace(
    wait=_calls("dispatch_semaphore_wait", 1, more=(-1,)),  # -1: without a limit of time
    post=_calls("dispatch_semaphore_signal", 1, more=()),
    make_semaphore=lambda address: _keep(address, ctypes.CDLL(None).dispatch_semaphore_create, ctypes.c_ssize_t(0)))
_WINDOWS = _POSIX._replace(
    wait=_calls("WaitForSingleObject", 1, more=(-1,)), post=_calls("ReleaseSemaphore", 1, more=(1, 0)),
    give_way=_calls("SwitchToThread"), this_thread=_calls("GetCurrentThreadId"),
    read_clock=_calls("QueryPerformanceCounter", 1), tick=round(1e9 * time.get_clock_info("perf_counter").resolution),
    make_semaphore=lambda address: _keep(address, ctypes.CDLL("kernel32").CreateSemaphoreW, None, 0, 1 << 30, None),
    start_thread=_start_on_windows, join_thread=_join_on_windows)
(semaphore_wait, semaphore_post, give_way, this_core, set_cores, this_thread, read_clock, TICK,
 make_semaphore, start_thread, join_thread) = {"linux": _LINUX, "darwin": _MACOS, "win32": _WINDOWS}.get(SYSTEM, _POSIX)
SEMAPHORE_BYTES = 32
"""The bytes of Linux's sem_t; a semaphore of other systems is a word."""
