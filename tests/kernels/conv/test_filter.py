"""Filters: weights in any order of axes as matrices, and the phases of transposed convolutions, by loops."""
from itertools import product

import numpy as np
import pytest

from graphq.kernels.conv.filter import Filter, count_phases, transposed_phases, whole
from graphq.kernels.operands.windows import windows

ORDERS = {"OIX": (0, 1, 2, 3), "XIO": (3, 2, 0, 1), "IOX": (1, 0, 2, 3), "XOI": (2, 3, 0, 1)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("transposed, groups, o, i", [
    (False, 1, 6, 4), (False, 2, 6, 4), (False, 3, 6, 1), (True, 1, 5, 4), (True, 2, 3, 8), (True, 4, 3, 4)])
def test_matrices(order, transposed, groups, o, i):
    axes, taps = ORDERS[order], (3, 2)
    dims = [0] * 4
    for axis, size in zip(axes, (o, i, *taps), strict=True):
        dims[axis] = size
    f = Filter(tuple(dims), axes, groups, transposed)
    columns, channels = (o, i // groups) if transposed else (o // groups, i)
    assert (f.columns, f.channels, f.taps, f.outputs) == (columns, channels, taps, groups * columns)
    assert f.multiplier == (columns if groups > 1 and channels == 1 else 0)
    w = np.arange(o * i * 6).reshape(dims)
    matrix = f.matrix(w.ravel())
    assert matrix.shape == (groups, 6, channels, columns)
    plain = w.transpose(axes)
    for g, (a, b), c, n in product(range(groups), product(range(3), range(2)), range(channels), range(columns)):
        want = plain[n, g * channels + c, a, b] if transposed else plain[g * columns + n, c, a, b]
        assert matrix[g, 2 * a + b, c, n] == want


@pytest.mark.parametrize("strides, dilations, pads, outputs", [
    ((2, 3), (1, 1), ((1, 0), (0, 2)), (7, 11)), ((2, 2), (2, 1), ((0, 0), (1, 1)), (9, 8)),
    ((4, 1), (1, 3), ((0, 0), (2, 0)), (3, 9))])
def test_phases(strides, dilations, pads, outputs):
    view = windows((4, 5), (3, 2), strides, dilations, pads, outputs, 1, transposed=True)
    phases = list(transposed_phases(view, strides, dilations, pads))
    assert len(phases) == count_phases(strides, outputs) == np.minimum(strides, outputs).prod()
    offsets = view.offsets().reshape(*outputs, 6)
    seen = np.zeros(outputs, int)
    for phase in phases:
        assert phase.step == strides and phase.windows.outputs == phase.counts
        seen[phase.outputs] += 1
        mine = offsets[phase.outputs]
        assert mine.shape[:2] == phase.counts
        own = phase.windows.offsets().reshape(*phase.counts, len(phase.taps))
        assert np.array_equal(np.maximum(own, -1), np.maximum(mine[..., phase.taps], -1))
        rest = [k for k in range(6) if k not in phase.taps]
        assert (mine[..., rest] < 0).all()
    assert (seen == 1).all()


def test_one_phase_of_other_convolutions():
    view = windows((4, 5), (3, 2), (1, 1), (1, 1), ((0, 0), (0, 0)), (2, 4), 1)
    phase = whole(view)
    assert phase.windows is view and phase.taps.tolist() == [*range(6)] and phase.counts == (2, 4)
    assert (phase.origin, phase.step) == ((0, 0), (1, 1)) and phase.outputs == (slice(0, None, 1),) * 2
