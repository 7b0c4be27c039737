"""Helpers: threads that run parts of steps for callers (see `steps`), and the memory that they share with callers."""
import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from graphq.base.platform import process_cores, signals_left_to_others
from graphq.kernels.jit import modules
from graphq.kernels.threads import steps
from graphq.kernels.threads.system import join_thread, make_semaphore, start_thread


def native(function: modules.Function, arity: int) -> Callable[..., None]:
    """Wrap a native function of `arity` integers as a Python function that releases the GIL."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * arity)(function.address)


class Helpers:
    """At most `most` helpers; `address` is the address of the words that helpers and callers share.

    Helpers are native threads that `start` starts, or iterations of a prange that call `help_others`.
    """

    def __init__(self, most: int, cache: bool = True) -> None:
        self.most = most
        self.code = modules.load("team", steps.team_module, cache=cache)
        size = steps.FIRST_RECORD + most * steps.RECORD
        self.words = np.zeros((size + steps.LINE) // 8, np.int64)
        self.address = self.words.ctypes.data + -self.words.ctypes.data % steps.LINE
        self.threads: list[int] = []
        self._dismiss = native(self.code.dismiss, 1)
        self.word(steps.RECORDS)[0] = most
        cores = process_cores()
        mask_bytes = max(cores) // 64 * 8 + 8
        if mask_bytes <= steps.LINE:
            mask = sum(1 << core for core in cores).to_bytes(mask_bytes, sys.byteorder)
            self.word(steps.MASK)[:mask_bytes // 8] = np.frombuffer(mask, np.int64)
            self.word(steps.CORES)[0] = mask_bytes
        for k in range(most):
            record = steps.FIRST_RECORD + k * steps.RECORD
            self.word(record + steps.HELPER_AT)[steps.HELPER.number("team")] = self.address
            make_semaphore(self.address + record + steps.SEMAPHORE)

    def word(self, offset: int) -> np.ndarray:
        """The shared words from a byte offset on, as an array."""
        return self.words[(self.address - self.words.ctypes.data + offset) // 8:]

    @property
    def begun(self) -> int:
        """The number of helpers that have begun, whether they work or sleep."""
        return int(self.word(steps.HELPERS)[0])

    def start(self) -> None:
        """Start a thread for each helper, or as many as the system allows."""
        function = self.code.help_from.address
        with signals_left_to_others():
            for k in range(self.most):
                thread = start_thread(function, self.address + steps.FIRST_RECORD + k * steps.RECORD)
                if thread is None:
                    break
                self.threads.append(thread)

    def dismiss(self) -> None:
        """Let all helpers return as soon as they begin or wake, and wait for the threads that `start` started."""
        self._dismiss(self.address)
        with suppress(IndexError):
            while True:
                join_thread(self.threads.pop())
