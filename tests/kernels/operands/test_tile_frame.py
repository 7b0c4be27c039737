"""What tile functions read of their frames: fields, rows at the edge, the last bytes of a row, transposed operands."""
import numpy as np
import pytest
from guarded_memory import guarded
from kernel_factories import reading_frame
from locating_kernels import locating_activations, locating_windows

from graphq.kernels.jit import modules
from graphq.kernels.operands.tile_frame import (
    FRAME,
    FRAME_BYTES,
    IN_COLUMNS,
    IN_ROWS,
    IN_WINDOWS,
    ROWS_AT,
    RUN,
    Frame,
)
from graphq.kernels.operands.windows import windows
from graphq.kernels.target import isa

ROWS = (1, 4, 8) + (16,) * any(level.lanes >= 16 for level in isa.available())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("tail,group", [(1, 2), (2, 4), (3, 1)])
def test_readers(rows, tail, group):
    """No byte beyond the valid ones is read: the operands end where a page does that cannot be read."""
    valid = max(1, rows - 1)
    operand = guarded(np.random.default_rng(rows).integers(0, 256, (4 + group, valid), dtype=np.uint8))  # [k, rows]
    last = guarded(np.arange(7, 7 + tail, dtype=np.uint8))
    frame, found = np.zeros(FRAME_BYTES // 8, np.int64), np.zeros(len(Frame._fields) + 2 * rows + 1, np.int64)
    fields = {"a": operand.ctypes.data, "stride": valid, "w": 11, "k": 12, "rows": valid, "sums": 13, "acc": 14,
              "runs": 15}
    frame[:len(FRAME.words(dict.fromkeys(fields, 0)))] = FRAME.words(fields)
    addresses = np.array([x.ctypes.data for x in (frame, last, found)])
    modules.load("frame", reading_frame, rows, tail, group, cache=False).block(addresses.ctypes.data, 0)
    first, clamped, (bytes_,), columns = np.split(found, np.cumsum([len(Frame._fields), rows, 1]))
    assert first.tolist() == [frame.ctypes.data, *(fields[name] for name in Frame._fields[1:])]
    assert clamped.tolist() == [operand.ctypes.data + valid * min(k, valid - 1) for k in range(rows)]
    assert bytes_ == int.from_bytes([*last, *[last[-1]] * (3 - tail)], "little")
    groups = np.zeros((4, rows), np.uint8)
    groups[:group, :valid] = operand[4:]
    assert columns[:valid].tolist() == groups.T.copy().view(np.uint32).ravel()[:valid].tolist()


@pytest.mark.parametrize("m, rows, step", [(3, 3, 4), (12, 5, 8), (12, 7, 8), (6, 1, 4), (24, 16, 16)])
def test_rows_of_windows(m, rows, step):
    """Of images of 4 lines of 6 pixels: each row's words lead to its pixel's entries; the last valid one's repeat."""
    w = windows((4, 6), (2, 3), (1, 1), (1, 1), ((0, 1), (1, 1)), (4, 6), 5)
    block = w.block(np.zeros(5, np.uint8), w.runs(RUN, m))
    fields = dict(zip(("width", "ko", "ki", "outer_table", "inner_table", "pad_row", "height", "more"), block,
                      strict=False))
    module, base = modules.load("frame", locating_windows), block.ctypes.data
    for batch in range(2 * 24 // m):
        for i in range(0, m - rows + 1, max(1, m // 2)):
            frame = np.zeros(FRAME_BYTES // 8, np.int64)
            module.block(np.array([frame.ctypes.data, base, batch, m, i, rows, step]).ctypes.data, 0)
            words = frame[ROWS_AT // 8:ROWS_AT // 8 + 2 * step].reshape(step, 2)
            line = batch % (24 // m)
            pixels = np.minimum(np.arange(step), rows - 1) + line * m + i
            assert (words[:, 0] == base + fields["outer_table"] + 8 * 2 * (pixels // 6)).all()
            assert (words[:, 1] == base + fields["inner_table"] + 8 * 3 * (pixels % 6)).all()
            run = line * -(-m // RUN) + i // RUN
            assert frame[FRAME.number("runs")] == base + fields["more"] + 8 + run * 6 * 8


@pytest.mark.parametrize("itemsize", [1, 4])
@pytest.mark.parametrize("m, i, rows, step", [(24, 0, 4, 4), (24, 7, 3, 4), (6, 5, 1, 8)])
def test_where_activations_lie_in_each_layout(itemsize, m, i, rows, step):
    """Rows lie a stride apart, columns an element; windows begin at the batch element, with words for each row."""
    w = windows((4, 6), (2, 3), (1, 1), (1, 1), ((0, 1), (1, 1)), (4, 6), 5)
    block = w.block(np.zeros(5, np.uint8), w.runs(RUN, m))
    start, base, batch = 1 << 20, block.ctypes.data, 2

    def located(factory, *arguments, stride=0):
        frame = np.zeros(FRAME_BYTES // 8, np.int64)
        frame[FRAME.number("stride")] = stride
        modules.load("frame", factory).block(np.array([frame.ctypes.data, *arguments]).ctypes.data, 0)
        return frame

    for layout, stride, first in ((IN_ROWS, 96, start + 96 * i), (IN_COLUMNS, 96, start + itemsize * i)):
        frame = located(locating_activations, layout, itemsize, start, batch, m, i, rows, step, stride=stride)
        assert frame[FRAME.number("a")] == first and not frame[ROWS_AT // 8:].any()
    frame = located(locating_activations, IN_WINDOWS, itemsize, start, batch, m, i, rows, step, stride=base)
    words = located(locating_windows, base, batch, m, i, rows, step)
    assert frame[FRAME.number("a")] == start and frame[FRAME.number("runs")] == words[FRAME.number("runs")] != 0
    assert np.array_equal(frame[ROWS_AT // 8:], words[ROWS_AT // 8:]) and words[ROWS_AT // 8:].any()
