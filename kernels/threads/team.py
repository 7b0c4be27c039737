"""The team of threads that runs a plan's native steps in a single call, without Python or the GIL.

The blocks of a parallel step are cut into pieces of neighboring blocks; `plan.plan.pieces` chooses their number. A
caller is a thread that runs a plan; helpers are the other threads of the team. Any of them that is free takes the next
piece, so no piece waits for a thread that sleeps or has lost its core to another process. The thread that ends a step's
last piece runs the serial steps after it, and offers the next parallel step's pieces.

The first run with several threads starts the helpers, as native threads (`helpers`). They begin within some 50 us, and
the run does not wait for them. When the process has Numba, the iterations of a prange (`region`) replace them. If
nothing else imports Numba, a thread of low priority does, at a run that begins IMPORT_SECONDS after the first one.

- With Numba's layer "omp" a thread of this process enters the region once, in the background, and stays there.
- With "tbb" and "workqueue" each run enters a region of its own, because the threads of these layers serve all parallel
  code of the process and must not stay in a region. Only one run at a time enters a region, because workqueue ends the
  process if two threads do.

A forked child starts new helpers. If Numba had started threads before the fork, the child's helpers remain native
threads: libgomp's threads do not survive a fork, and cannot be started again.

A helper that has found nothing to do for a while sleeps at a semaphore. To wake it takes some 50 us, so short runs wake
no helpers, unless the runs follow one another closely. Linux often wakes a thread on the core of the waking thread,
even if another core is idle. A helper is therefore kept off the core of its caller; it would have to wait there.
"""
import atexit
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from time import perf_counter, sleep
from typing import Any, TypeAlias

import numpy as np

from graphq.base.locks import Lock
from graphq.base.platform import at_fork, lower_priority, signals_left_to_others, team_threads
from graphq.kernels.jit import modules
from graphq.kernels.threads.helpers import Helpers, native
from graphq.kernels.threads.steps import STEP, serial_module, team_module

log = logging.getLogger("graphq")

SHORT_SECONDS = 2e-4
"""Runs that take fewer seconds on one thread wake no helpers, except as CLOSE_SECONDS says."""
CLOSE_SECONDS = 5e-4
"""Short runs wake helpers if they are at most this many seconds apart: helpers then stay awake between runs."""

Row: TypeAlias = tuple[int | modules.Function, int, int, int]
"""A step as a row of STEP: its block function, its argument block's address, its blocks, and its pieces."""


class StepTable:
    """Steps that run in one call, each on as many threads as it has pieces. Argument blocks must stay in memory.

    If `rows` is an array, the array itself is the table. Other rows are copied.
    """

    def __init__(self, rows: Sequence[Row] | np.ndarray, cache: bool = True) -> None:
        self._cache = cache
        self._words = np.asarray(rows, np.int64).reshape(-1, len(STEP.fields))
        begin = self._words.ctypes.data
        self.span = begin, begin + self._words.nbytes
        self.run_alone = partial(_run_serial(cache), *self.span)
        self._helpers = max([1, *self._words[:, STEP.number("pieces")].tolist()]) - 1
        self._seconds, self._ended = float("inf"), 0.0  # the seconds of the last run on one thread, and when it ended

    def run(self) -> None:
        """Run the steps in order. While the code of the team is compiled, the caller runs them by itself."""
        if self._helpers == 0 or current is None and not _team_ready(self._cache):
            return self.run_alone()
        begun = perf_counter()
        awake = self._seconds > SHORT_SECONDS or begun - self._ended < CLOSE_SECONDS
        the_team(self._cache).run(self, self._helpers if awake else 0)
        self._ended = perf_counter()
        self._seconds = (self._ended - begun) * (1 + self._helpers if awake else 1)


@cache
def modules_of_team(threads: int = 2, cache: bool = True) -> tuple[modules.Module, ...]:
    """The modules that run tables of steps on `threads` threads, the same for all plans."""
    serial = modules.load("steps", serial_module, cache=cache)
    return (serial, modules.load("team", team_module, cache=cache)) if threads > 1 else (serial,)


@cache
def _run_serial(cache: bool) -> Callable[[int, int], None]:
    return native(modules.load("steps", serial_module, cache=cache).run_serial, 2)


PATIENCE = 0.25
"""The seconds that a thread waits before it loads the region.

Loading takes 0.4 s if Numba has compiled nothing in this process yet. A process that ends after its first results
should not have to wait for it.
"""
IMPORT_SECONDS = 3.0
"""A process that goes on running plans imports Numba this many seconds after its first run on several threads."""


class Team:
    """The threads of a process. Until helpers have begun, a caller runs its steps by itself."""

    def __init__(self, cache: bool = True) -> None:
        self._cache = cache
        self.helpers = Helpers(team_threads() - 1, cache)
        self.code = self.helpers.code
        self.run_shared, self.open_table, self.close_table = (
            native(self.code.run_shared, 4), native(self.code.open_table, 4), native(self.code.close_table, 1))
        self.import_at = perf_counter() + IMPORT_SECONDS  # when a run may have Numba imported
        self.loader: threading.Thread | None = None  # loads the region
        self.region: Any = None  # the module `region`, after it is loaded
        self.layer: str | None = None  # Numba's threading layer, known after a caller has entered a region
        self.replacing: threading.Thread | None = None  # replaces the native helpers, after `layer` is known
        self._finder = [None]  # the caller that pops the item must find out Numba's layer
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the helpers."""
        atexit.register(self.end)  # the reference to `self` also keeps the memory that helpers use
        self.helpers.start()

    def run(self, table: StepTable, helpers: int) -> None:
        """Run a table: wake `helpers` helpers, or enter a region with as many more threads.

        Numba's layer is known only after a thread has entered a region. A caller enters the first region. If the
        background thread did, user code could be in a region at the same time, and workqueue would end the process.
        """
        if self.loader is None and self.helpers.most and self.can_load():
            with _starting.hold:
                if self.loader is None:
                    self.loader = self._started(self._load)
        if self.region is not None and self.layer is None:
            self._find_layer()
        if self.layer is None or self.layer == "omp":
            # this reference keeps the helpers' shared memory allocated during the run, even if `self.helpers` changes
            those = self.helpers
            self.run_shared(*table.span, those.address, helpers)
        elif helpers == 0:
            table.run_alone()
        else:
            self._run_in_region(table, 1 + helpers)

    def _run_in_region(self, table: StepTable, threads: int) -> None:
        those = self.helpers
        # the address of this run's slot: `open_table` takes the slot and writes its address here, in one native call
        opened = ctypes.c_int64()
        try:  # `finally` frees the slot, even after a KeyboardInterrupt
            self.open_table(*table.span, those.address, ctypes.addressof(opened))
            if opened.value:
                self.region.enter(self.code.take_part.address, opened.value, threads)
            else:
                table.run_alone()
        finally:
            if opened.value:
                self.close_table(opened.value)

    def can_load(self) -> bool:
        """Whether the region may be loaded: Numba is imported or its time has come, and its threads can be started."""
        return not _numba_has_threads_of_another_process and (
            "numba" in sys.modules or perf_counter() >= self.import_at)

    @property
    def awaits_run(self) -> bool:
        """Whether the next run on several threads has the region loaded, or finds out Numba's layer."""
        return self.layer is None and (self.region is not None or self.loader is None and self.can_load())

    def _started(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="graphq-team", daemon=True)
        with suppress(RuntimeError):  # no more threads can be started, or Python is ending
            thread.start()
        return thread

    def _load(self) -> None:
        """Load the region at a low priority, which this thread keeps: nothing else may run on it."""
        if self._ended.wait(PATIENCE):
            return
        lower_priority()
        try:
            with _starting.hold:
                from graphq.kernels.threads import region
        except Exception as error:
            # Numba failed to load. Do not warn while Python shuts down: starting threads always fails then.
            if threading.main_thread().is_alive():
                log.warning("plans do not run on Numba's threads: %s: %s", type(error).__name__, error)
            return
        self.region = region

    def _find_layer(self) -> None:
        try:
            self._finder.pop()
        except IndexError:  # no item: another caller finds out the layer
            return
        try:
            self.layer = self.region.layer(self.code.nothing.address)
            self.replacing = self._started(self.replace_helpers)
        finally:
            if self.layer is None:
                self._finder.append(None)

    def replace_helpers(self) -> None:
        """Let the native helpers return, and with "omp" stay in a region whose iterations are the new helpers."""
        before, self.helpers = self.helpers, Helpers(self.helpers.most, self._cache)
        before.dismiss()
        if self.layer == "omp" and not self._ended.is_set():  # if `end` begins after this test, it dismisses them
            with signals_left_to_others():
                self.region.enter(self.code.help_others.address, self.helpers.address, self.helpers.most)

    @property
    def settled(self) -> bool:
        """Whether helpers take part in runs, or it is certain that they never will."""
        those = self.helpers
        if those.most == 0:
            return True
        if self.awaits_run or self.layer is None and self.loader is not None and self.loader.is_alive():
            return False
        return self.layer not in (None, "omp") or those.begun >= (len(those.threads) or self.layer == "omp")

    def end(self) -> None:
        """Let the helpers return before Python ends, because they run code of Numba or graphq."""
        self._ended.set()
        self.helpers.dismiss()
        for thread in self.loader, self.replacing:
            if thread is not None and thread.ident is not None:
                thread.join(timeout=10)


_starting = Lock(fork_waits=True)
current: Team | None = None
sought: modules.Module | None = None
"""The team's module, after a run that can use helpers has looked for its code."""
_numba_has_threads_of_another_process = False


def _team_ready(cache: bool) -> bool:
    global sought
    *_, sought = modules_of_team(2, cache)
    sought.want()
    return sought.ready


def the_team(cache: bool = True) -> Team:
    """The team of this process; the first call starts it."""
    global current
    if current is None:
        made = Team(cache)
        with _starting.hold:
            if current is None:
                current = made
                made.start()
    return current


def run_until_settled(run: Callable[[], object], seconds: float = 30.0) -> None:
    """Call `run`, for at most `seconds`, until all helpers that it uses take part: then runs can be timed."""
    end = perf_counter() + seconds
    run()
    if current is None and sought is not None:
        sought.address("run_shared")  # wait for it
        run()
    while current is not None and not current.settled and perf_counter() < end:
        sleep(0.01)
        awaited = current.awaits_run
        run()
        if awaited and current.awaits_run:  # `run` used one thread only: nothing to wait for
            return


def _in_child() -> None:
    """Forget the parent's team: its threads do not exist in a forked child."""
    global current, _numba_has_threads_of_another_process
    numba = sys.modules.get("numba")
    try:
        _numba_has_threads_of_another_process |= numba is not None and bool(numba.threading_layer())
    except (ValueError, AttributeError):  # raised if Numba has not started threads
        pass
    if current is not None:
        atexit.unregister(current.end)
        current = None


at_fork(after_in_child=_in_child)
