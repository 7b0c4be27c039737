"""The team: a plan's native steps run in a single call, without Python or the GIL, on the threads of Numba's prange.

A step is a block function's address, an argument block's address and a number of blocks. The blocks of a parallel step
are cut into pieces of neighbouring blocks, as many as the step says (`plan.plan.pieces`). Any free thread takes the
next piece, the caller and helpers alike. So no piece waits for a thread that is asleep or whose core another process
has. The thread that ends a step's last piece runs the serial steps after it, and offers the pieces of the next parallel
step.

The helpers are iterations of one prange (`region`). With Numba's layer "omp" a thread of this process enters the region
once, in the background, and stays there. Until then, some 0.5 s after the first run, callers run alone. The threads of
"tbb" and "workqueue" serve all parallel code of the process, which would have to wait if they stayed in the region.
With these layers each run enters a region of its own, and only one run at a time, since workqueue ends the process if
two threads enter regions. If Numba has started threads in a process, a forked child of the process has no helpers:
libgomp's threads do not survive a fork, and cannot be started again.

Helpers that have found nothing to do for a while sleep, each at a semaphore. Waking one costs some 50 us, so short runs
wake none, unless they follow one another closely. Linux often wakes a thread on the core of the waking thread, which
goes on working there, although another core is idle. So a helper is kept off the core of its caller.
"""
from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any, TypeAlias

import numpy as np

from graphq.base.locks import Lock
from graphq.kernels.jit import modules
from graphq.kernels.threads.count import process_cores, team_threads
from graphq.kernels.threads.steps import (
    CORES,
    FIRST_RECORD,
    HELPERS,
    LINE,
    MASK,
    RECORD,
    RECORDS,
    SEMAPHORE,
    STEP,
    STOP,
    serial_module,
    team_module,
)

log = logging.getLogger("graphq")

SHORT_SECONDS = 2e-4
"""Runs that take fewer seconds than this on one thread wake no helpers, unless CLOSE_SECONDS says otherwise."""
CLOSE_SECONDS = 5e-4
"""Short runs wake helpers if they are at most this many seconds apart: helpers then stay awake for the next run."""


Row: TypeAlias = tuple[int | modules.Function, int, int, int]
"""A step as a row of STEP: its block function, its argument block's address, the numbers of blocks and of pieces."""


class StepTable:
    """Steps that run in one call, each on as many threads as it has pieces. Argument blocks must stay in memory.

    The table is the array `rows`, if it is one, and otherwise a new array of these rows.
    """

    def __init__(self, rows: Sequence[Row] | np.ndarray, cache: bool = True) -> None:
        self._cache = cache
        self._words = np.asarray(rows, np.int64).reshape(-1, len(STEP.fields))
        begin = self._words.ctypes.data
        self.span = begin, begin + self._words.nbytes
        self.run_alone = partial(_run_serial(cache), *self.span)
        self._helpers = max([1, *self._words[:, STEP.number("pieces")].tolist()]) - 1
        self._seconds, self._ended = float("inf"), 0.0  # how long the last run took on one thread, and when it ended

    def run(self) -> None:
        """Run the steps in order."""
        if self._helpers == 0:
            return self.run_alone()
        begun = perf_counter()
        awake = self._seconds > SHORT_SECONDS or begun - self._ended < CLOSE_SECONDS
        the_team(self._cache).run(self, self._helpers if awake else 0)
        self._ended = perf_counter()
        self._seconds = (self._ended - begun) * (1 + self._helpers if awake else 1)


def modules_of_team() -> tuple[modules.Module, ...]:
    """The modules that run tables; they are the same for all plans."""
    return modules.load("steps", serial_module), modules.load("team", team_module)


@cache
def _run_serial(cache: bool) -> Callable[[int, int], None]:
    return _native(modules.load("steps", serial_module, cache=cache).run_serial, 2)


def _native(function: modules.Function, arity: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * arity)(function.address)


PATIENCE = 0.25
"""Seconds that the helpers' thread waits before it imports Numba, which takes 0.5 s.

So a process that ends after its first results need not wait for the import.
"""


class Team:
    """The helpers of a process. Callers run alone until the helpers have begun, and if there are none."""

    def __init__(self, cache: bool = True) -> None:
        self._cache = cache
        self.most = team_threads() - 1
        size = FIRST_RECORD + self.most * RECORD
        self.words = np.zeros((size + LINE) // 8, np.int64)
        self.address = self.words.ctypes.data + -self.words.ctypes.data % LINE
        self.region: Any = None  # the module `region`, once Numba is imported
        self.layer: str | None = None  # known once a caller has entered a region
        self.run_shared: Callable[[int, int, int, int], None] | None = None  # set once helpers stay in a region
        self.layers: SimpleQueue[str | None] = SimpleQueue()  # passes `layer` to the thread; None at the end
        self.thread = threading.Thread(target=self._begin, name="graphq-team", daemon=True)

    def run(self, table: StepTable, helpers: int) -> None:
        """Run a table; wake `helpers` helpers, or enter a region with as many threads.

        Numba's layer is known only after a region was entered. A caller enters the first region, since no region of the
        user's can be active at that time: workqueue ends the process if two threads are in regions at once.
        """
        if self.run_shared is not None:
            return self.run_shared(*table.span, self.address, helpers)
        if self.region is None or helpers == 0:
            return table.run_alone()
        opened = ctypes.c_int64()  # the slot of this run: native code takes it and writes it here in one call, so that
        try:  # whatever interrupts the run after that call (KeyboardInterrupt) leaves by way of `finally`
            self.open_table(*table.span, self.address, ctypes.addressof(opened))
            if not opened.value:
                table.run_alone()
            elif self._found_layer() != "omp":
                self.region.enter(self.code.take_part.address, opened.value, 1 + helpers)
        finally:
            if opened.value:
                self.close_table(opened.value)

    def _found_layer(self) -> str:
        if self.layer is not None:
            return self.layer
        found: str = self.region.layer(self.code.nothing.address)
        self.layers.put(found)  # puts it twice, if this is interrupted before the next line
        self.layer = found
        return found

    def start(self) -> None:
        """Start the helpers in the background. A child process that is forked later has no helpers."""
        if _numba_has_threads_of_another_process or self.most == 0:
            return
        try:
            self.thread.start()
        except RuntimeError:  # no more threads can be started, or Python is ending
            return
        atexit.register(self.end)

    def _begin(self) -> None:
        """Import Numba, wait until a caller has found Numba's layer, and start the helpers if the layer is "omp".

        The helpers run in a region that this thread enters. Numba takes its number of threads from the cores that the
        importing thread may use.
        """
        with suppress(Empty):
            self.layers.get(timeout=PATIENCE)
            return  # the process is ending
        os.sched_setaffinity(0, process_cores())
        try:
            with _starting.hold:
                from graphq.kernels.threads import region
            # This module is loaded after the modules that the first result needs.
            self.code = modules.load("team", team_module, cache=self._cache)
            self.open_table, self.close_table = _native(self.code.open_table, 4), _native(self.code.close_table, 1)
        except Exception as error:  # whatever keeps Numba from running
            if threading.main_thread().is_alive():  # else Python is ending, and lets nothing start
                log.warning("plans run on one thread, as Numba starts no threads: %s: %s", type(error).__name__, error)
            return
        self.region = region
        if self.layers.get() == "omp":
            self._prepare()
            self._stay()

    def _stay(self) -> None:
        """Enter the region of the helpers, and stay in it."""
        # Signals are left to Python's threads, but a fault concerns the thread that causes it.
        faults = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        self.run_shared = _native(self.code.run_shared, 4)
        self.region.enter(self.code.help_others.address, self.address, self.most)

    def _prepare(self) -> None:
        """Write the words that helpers read: their semaphores, and a mask of the process's cores."""
        cores = process_cores()
        size = max(cores) // 64 * 8 + 8
        if size <= LINE:
            mask = sum(1 << core for core in cores).to_bytes(size, sys.byteorder)
            self._word(MASK)[:size // 8] = np.frombuffer(mask, np.int64)
            self._word(CORES)[0] = size
        self._word(RECORDS)[0] = self.most
        library = ctypes.CDLL(None)
        for k in range(self.most):
            record = self.address + FIRST_RECORD + k * RECORD
            library.sem_init(ctypes.c_void_p(record + SEMAPHORE), 0, 0)

    def _word(self, offset: int) -> np.ndarray:
        return self.words[(self.address - self.words.ctypes.data + offset) // 8:]

    @property
    def settled(self) -> bool:
        """Whether helpers take part in runs, or never will."""
        if self.thread.ident is None:
            return True
        if self.layer == "omp" and self.thread.is_alive():
            return bool(self._word(HELPERS)[0])
        return self.layer is not None or self.region is None and not self.thread.is_alive()

    def end(self) -> None:
        """Let the helpers return before Python ends, while their thread is in Numba's code or in graphq's."""
        self._word(STOP)[0] = 1  # helpers that have not begun yet see it
        self.layers.put(None)
        if self.run_shared is not None:
            _native(self.code.dismiss, 1)(self.address)
        self.thread.join(timeout=10)


_starting = Lock(fork_waits=True)
_team: Team | None = None
_numba_has_threads_of_another_process = False


def the_team(cache: bool = True) -> Team:
    """The team of this process; the first call starts it."""
    global _team
    if _team is None:
        made = Team(cache)
        with _starting.hold:
            if _team is None:
                _team = made
                made.start()
    return _team


def run_until_settled(run: Callable[[], object], seconds: float = 30.0) -> None:
    """Call `run` until helpers take part in it, if it uses any, so that it can be measured; at most for `seconds`."""
    end = perf_counter() + seconds
    run()
    while _team is not None and not _team.settled and perf_counter() < end:
        sleep(0.01)
        could_ask = _team.region is not None
        run()
        if could_ask and _team.layer is None:  # `run` has asked for no helpers
            return


def _in_child() -> None:
    """Forget the parent's team: its threads do not survive a fork, and Numba ends a process that starts them again."""
    global _team, _numba_has_threads_of_another_process
    numba = sys.modules.get("numba")
    try:
        _numba_has_threads_of_another_process |= numba is not None and bool(numba.threading_layer())
    except (ValueError, AttributeError):  # Numba has not started any threads
        pass
    if _team is not None:
        atexit.unregister(_team.end)
        _team = None


os.register_at_fork(after_in_child=_in_child)
