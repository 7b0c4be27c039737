"""Loops of tiles over pixels: channels in vectors of each width, none twice and none beyond; addresses of taps."""
import numpy as np
import pytest
from kernel_factories import covering
from locating_kernels import locating

from graphq.kernels.jit import modules
from graphq.kernels.operands.windows import windows
from graphq.kernels.pixels import blocks


@pytest.mark.parametrize("lanes, widest", [(1, 4), (8, 4), (16, 4), (8, 2)])
def test_every_channel_is_in_one_vector(lanes, widest):
    module = modules.load("covering", covering, lanes, widest)
    for channels in (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 33, 63, 64, 65, 100, 131):
        out = np.zeros(256, np.int64)
        module.block(np.array([out.ctypes.data, channels]).ctypes.data, 0)
        assert (out[:channels] > 0).all() and not out[channels:].any(), channels
        widths = out[:channels]
        wide = channels // (widest * lanes) * (widest * lanes) if lanes > 1 else channels
        assert (widths[:wide] == (widest * lanes if lanes > 1 else 1)).all()
        rest = widths[wide:]
        assert np.array_equal(np.sort(rest)[::-1], rest) and set(rest) <= {lanes, lanes // 4, 1}
        assert (rest == 1).sum() < max(2, lanes // 4)


@pytest.mark.parametrize("ko, ki", [(3, 2), (1, 1), (2, 3)])
@pytest.mark.parametrize("unrolled", [True, False])
def test_addresses_of_taps(ko, ki, unrolled):
    w = windows((4, 5), (ko, ki), (1, 2), (1, 1), ((1, 0), (1, 1)), (4, 3), 3)
    block, image = w.block(np.zeros(4, np.uint8)), np.zeros(60, np.uint8)
    module = modules.load("locating", locating, *((ko, ki) if unrolled else (0, 0)))
    pad = block.ctypes.data + int(block[5])
    offsets = w.offsets()
    for outer in range(4):
        for inner in range(3):
            addresses = np.zeros(ko * ki + 1, np.int64)
            module.block(np.array([block.ctypes.data, image.ctypes.data, outer, inner,
                                   addresses.ctypes.data]).ctypes.data, 0)
            mine = offsets[3 * outer + inner]
            want = np.where(mine < 0, pad, image.ctypes.data + mine)
            assert addresses.tolist() == [*want, want[-1]]


def test_windows_with_code_of_their_own():
    assert blocks.unrolled(4, 8) == (4, 8) and blocks.unrolled(3, 11) == (0, 0) and blocks.unrolled(1, 32) == (1, 32)
