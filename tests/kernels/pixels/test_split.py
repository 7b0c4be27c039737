"""How pixel kernels cut their work: tiles fit the room that block functions have for them."""
import itertools

import pytest

from graphq.kernels.pixels import blocks as pixels
from graphq.kernels.pixels.blocks import split

SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 100, 511, 512, 513, 1000, 2047, 4095, 4096]


@pytest.mark.parametrize("channels, whole", [*itertools.product(SIZES, (False, True)), (4097, False), (10_000, False)])
def test_tiles_fit_their_room(channels, whole):
    for batch, m, threads in itertools.product((1, 2, 50), (0, 1, 5, 196, 100_000), (1, 2, 7)):
        each, width, step = split(batch, m, channels, threads, whole)
        assert 1 <= each <= max(m, 1) and 1 <= width <= channels and step >= 1
        assert width == channels or not whole and width % 64 == 0
        assert 4 * step * width <= pixels.SCRATCH
        for lanes in (1, 8, 16):  # the least room that an entry for each vector, and one more, takes
            assert 8 * (step * -(-width // lanes) + 1) <= pixels.ENTRIES_BYTES, (width, step, lanes)


def test_all_threads_have_blocks():
    for batch, m, channels, threads in itertools.product((1, 3), (1, 4, 196), (64, 640, 5000), (1, 2, 4)):
        each, width, _ = split(batch, m, channels, threads, False)
        blocks = batch * -(-m // each) * -(-channels // width)
        assert blocks >= min(threads, batch * m * (-(-channels // 64)))
        assert threads > 1 or each == m
