"""Threads: how many, when they start, and what concurrent callers and forked processes may do with them.

The threads are those of Numba's OpenMP or workqueue layer: an extension module that is loaded by itself, since all of
Numba takes 0.3 s and 60 MB. NUMBA_THREADING_LAYER chooses among the two, NUMBA_NUM_THREADS is the most threads.
"""
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphq.errors import CompileError, KernelError

_LAYERS = {"omp": "omppool", "workqueue": "workqueue"}
SPIN = "20000"
"""Turns that an idle thread of libgomp waits before it sleeps: 1 ms here, longer than the serial steps of most models.

Its own 300,000 are 15 ms, in which a thread that waits for work takes its core from who has work: NumPy's BLAS in a
Python step, or another process, which then keeps the core for some ms when the thread is needed. ResNet-50 on two
cores, one of them busy with another process: 40 ms with 20,000 turns, 16 with 5,000; alone 4.8 with both. But where
other engines' threads spin in the same process, between calls of a MobileNetV3 of 0.5 ms, a thread that has to be woken
may come 4 ms late: with 20,000 turns none was seen to, with 5,000 in every third run.
"""


class Pool(NamedTuple):
    """A threading layer: `parallel_for` is its function's address, the others count threads for the calling thread."""

    layer: str
    parallel_for: int
    launch: Callable[[int], None]
    get_threads: Callable[[], int]
    set_threads: Callable[[int], None]


@cache
def pool() -> Pool:
    """Load the threading layer; raises KernelError when there is none."""
    wanted = os.environ.get("NUMBA_THREADING_LAYER", "")
    for layer in (wanted,) if wanted in _LAYERS else tuple(_LAYERS):
        for place in _places(_LAYERS[layer]):
            loader = ExtensionFileLoader(_LAYERS[layer], str(place))
            spec = spec_from_file_location(_LAYERS[layer], place, loader=loader)
            assert spec is not None
            try:
                with _short_spin():
                    module = module_from_spec(spec)
                    loader.exec_module(module)
            except ImportError:  # no OpenMP library
                continue
            of_int, to_int = ctypes.CFUNCTYPE(None, ctypes.c_int), ctypes.CFUNCTYPE(ctypes.c_int)
            return Pool(layer, module.parallel_for, of_int(module.launch_threads), to_int(module.get_num_threads),
                        of_int(module.set_num_threads))
    raise KernelError(f"Numba has none of its threading layers {', '.join(_LAYERS)} here; compile with threads=1")


@contextmanager
def _short_spin() -> Iterator[None]:
    """Within the block, libgomp finds SPIN, unless the user says how threads wait: it reads that when it is loaded."""
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def _places(name: str) -> list[Path]:
    """The files of one of Numba's extension modules."""
    numba = find_spec("numba")
    folders = (numba.submodule_search_locations if numba is not None else None) or ()
    paths = (Path(folder) / "np" / "ufunc" / f"{name}{suffix}" for folder in folders for suffix in EXTENSION_SUFFIXES)
    return [path for path in paths if path.is_file()]


def launch() -> None:
    """Start the threads, once per process, and note which process has them."""
    with _state.starting:
        if _state.started is None:
            pool().launch(_most())
            pool().set_threads(_most())  # the first call gives the number for all threads that set none
            _state.started = os.getpid()


class _Threads:
    """The parallel region of one call: the pool's thread number for the calling thread, restored at the end.

    Only the workqueue layer, which aborts when two threads enter, needs the lock (numba#8563). After the threads were
    started, a forked child would die at its first parallel region: it gets an exception instead.
    """

    def __init__(self) -> None:
        self.lock, self.starting = threading.Lock(), threading.Lock()
        self.started: int | None = None

    def enter(self) -> int:
        if self.started != os.getpid():
            raise KernelError("this process was forked after graphq had started its threads, and they did not survive; "
                              "start it with multiprocessing's 'spawn', or compile with threads=1 before forking")
        if pool().layer == "workqueue":
            self.lock.acquire()
        return pool().get_threads()

    def leave(self, before: int) -> None:
        pool().set_threads(before)
        if pool().layer == "workqueue":
            self.lock.release()


_state = _Threads()


class parallel_region:  # a class, since contextlib costs 1 us a call
    """Within the block, parallel steps may run.

    Raises KernelError in a process forked after one ran.
    """

    def __enter__(self) -> None:
        self.before = _state.enter()

    def __exit__(self, *_: object) -> None:
        _state.leave(self.before)


def _most() -> int:
    """The most threads: $NUMBA_NUM_THREADS, or the cores that this process may use."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else len(os.sched_getaffinity(0))


def resolve_threads(threads: int | None) -> int:
    """The thread number asked for, at most `_most`; by default all cores that this process may use.

    Raises CompileError unless it is a positive int or None.
    """
    if threads is None:
        return max(1, min(_most(), len(os.sched_getaffinity(0)), _quota()))
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise CompileError(f"threads must be a positive int or None, got {threads!r}")
    return min(int(threads), _most())


def _quota(path: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that the control group's quota allows, rounded up; a large number without one."""
    try:
        with open(path) as f:
            quota, period = f.read().split()[:2]
        return -(-int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 20
