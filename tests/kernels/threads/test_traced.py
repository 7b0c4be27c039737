"""Traced steps: they compute what the steps that they stand for do, and say which thread ran each piece, and when."""
import threading
import time

import numpy as np
import pytest
from kernel_factories import adding

from graphq.kernels.jit import modules
from graphq.kernels.threads import team
from graphq.kernels.threads.traced import TracedStep


@pytest.mark.parametrize("blocks, pieces, count", [(1, 1, 1), (7, 3, 3), (7, 0, 1), (2, 2, 2), (40, 40, 40), (0, 0, 1)])
def test_each_piece_has_a_thread_and_a_time_of_perf_counter(blocks, pieces, count):
    source, target = np.array([5, 7], np.int64), np.zeros(max(blocks, 1), np.int64)
    args = np.array([source.ctypes.data, target.ctypes.data, source.size], np.int64)
    step = TracedStep((modules.load("adding", adding).block, args.ctypes.data, blocks, pieces))
    assert step.row[2:] == (count, pieces) and not step.times().any()
    table, wanted = team.StepTable([step.row]), np.resize(source, blocks) + 1
    last = 0
    for turn in (1, 2):  # the second run's times take the place of the first's
        begin = time.perf_counter_ns()
        table.run_alone()
        end = time.perf_counter_ns()
        thread, begins, ends = step.times().T
        assert target[:blocks].tolist() == (turn * wanted).tolist()
        assert step.times().shape == (count, 3) and (thread == threading.get_ident()).all()
        assert begin <= begins.min() and ends.max() <= end and (begins <= ends).all() and last <= begins.min()
        assert (begins[1:] >= ends[:-1]).all()  # one after another, on one thread
        last = ends.max()
