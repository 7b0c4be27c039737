"""What tile functions read of their frames: fields, rows at the edge, the last bytes of a row, transposed operands."""
import numpy as np
import pytest
from guarded_memory import guarded
from kernel_factories import reading_frame

from graphq.kernels.jit import isa, modules
from graphq.kernels.operands.tile_frame import FRAME, FRAME_BYTES, Frame

ROWS = (1, 4, 8) + (16,) * any(level.name.startswith("avx512") for level in isa.available())


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
