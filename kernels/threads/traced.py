"""Traced steps: they record on which thread and when their pieces ran, for profiles.

A traced step takes the place of another step in a table. Its block function runs a whole piece of that step, and reads
the clock before and after.
"""
import numpy as np

from graphq.kernels.jit import block_module, modules
from graphq.kernels.jit.intrinsics import Record, store_s64
from graphq.kernels.threads.steps import run_piece
from graphq.kernels.threads.system import TICK, read_clock, this_thread
from graphq.kernels.threads.team import Row

TRACED = Record("step", "log")
"""The argument block: the row of the original step, and the address of an ENTRY for each of its pieces."""
ENTRY = Record("thread", "begin", "begin_ns", "end", "end_ns")
"""The record of a piece: its thread, and its begin and end as `read_clock` stores them."""
ENTRY_BYTES = ENTRY.nbytes
BEGIN, END = (8 * ENTRY.number(name) for name in ("begin", "end"))


@block_module
def traced_module(args: int, piece: int) -> None:
    """Run a piece, and read the clock before and after."""
    a = TRACED(args)
    entry = a.log + ENTRY_BYTES * piece
    store_s64(entry, this_thread())
    read_clock(entry + BEGIN)
    run_piece(a.step, piece)
    read_clock(entry + END)


class TracedStep:
    """A step that runs another step and logs its pieces; `row` replaces the other step's row in a StepTable."""

    def __init__(self, row: Row, cache: bool = True) -> None:
        *step, pieces = row
        count = max(1, pieces)
        self._log = np.zeros((count, len(ENTRY.fields)), np.int64)
        self._step = np.array([*map(int, step), count], np.int64)
        self._args = np.array(TRACED.words({"step": self._step.ctypes.data, "log": self._log.ctypes.data}), np.int64)
        block = modules.load("traced", traced_module, cache=cache).block
        self.row: Row = block, self._args.ctypes.data, count, pieces

    def times(self) -> np.ndarray:
        """The pieces of the latest run, [pieces, 3]: the thread's `threading.get_ident`, begin and end in ns."""
        thread, begin, begin_ns, end, end_ns = self._log.T
        return np.stack([thread, TICK * begin + begin_ns, TICK * end + end_ns], axis=1)
