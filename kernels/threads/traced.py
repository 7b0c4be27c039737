"""Steps that also write down when and on which thread their pieces ran, for profiles.

The block function of a traced step runs a whole piece of the step that it stands for, between two looks at the clock.
So the team runs traced steps as it runs any others, and the steps of ordinary runs stay as they are.
"""
from __future__ import annotations

import time

import numpy as np

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import store_s64
from graphq.kernels.jit.records import Record
from graphq.kernels.threads.atomics import read_clock, this_thread
from graphq.kernels.threads.steps import run_piece
from graphq.kernels.threads.team import Row

TRACED = Record("step", "log")
"""The row of the step that is traced, and an ENTRY for each of its pieces."""
ENTRY = Record("thread", "begin", "begin_ns", "end", "end_ns")
"""A piece: its pthread_t, and seconds and nanoseconds of the clock (C's struct timespec) when it began and ended."""
view_traced = TRACED.view
ENTRY_BYTES = ENTRY.nbytes
BEGIN, END = (8 * ENTRY.number(name) for name in ("begin", "end"))
CLOCK = time.CLOCK_MONOTONIC
"""The clock of `time.perf_counter`."""


def traced_module() -> Functions:
    """Give the module that runs pieces and looks at the clock."""

    def block(args: int, piece: int) -> None:
        a = view_traced(args)
        entry = a.log + ENTRY_BYTES * piece
        store_s64(entry, this_thread())
        read_clock(CLOCK, entry + BEGIN)
        run_piece(a.step, piece)
        read_clock(CLOCK, entry + END)

    return Functions(block=block)


class TracedStep:
    """A step that runs the one of a row and logs its pieces; a StepTable takes its `row` in place of that one."""

    def __init__(self, row: Row, cache: bool = True) -> None:
        *step, pieces = row
        count = max(1, pieces)
        self._log = np.zeros((count, len(ENTRY.fields)), np.int64)
        self._step = np.array([*map(int, step), count], np.int64)
        self._args = np.array(TRACED.words({"step": self._step.ctypes.data, "log": self._log.ctypes.data}), np.int64)
        block = modules.load("traced", traced_module, cache=cache).block
        self.row: Row = block, self._args.ctypes.data, count, pieces

    def times(self) -> np.ndarray:
        """Of the latest run, for each piece: the thread's `threading.get_ident`, begin and end in ns. [pieces, 3]."""
        thread, begin, begin_ns, end, end_ns = self._log.T
        return np.stack([thread, 10**9 * begin + begin_ns, 10**9 * end + end_ns], axis=1)
