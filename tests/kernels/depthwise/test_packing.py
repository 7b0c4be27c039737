"""Where packed weights of depthwise convolutions lie, and which convolutions the kernels take."""
import numpy as np
import pytest

from graphq.kernels.depthwise import packing
from graphq.kernels.operands.windows import windows
from graphq.kernels.target.isa import level_named


@pytest.mark.parametrize("lanes, pixels", [(1, 0), (4, 0), (8, 0), (16, 0), (4, 4), (8, 2), (16, 4)])
@pytest.mark.parametrize("ko,ki,channels", [(1, 1, 64), (2, 2, 90), (3, 3, 65), (5, 3, 128)])
def test_packed_weights(lanes, pixels, ko, ki, channels):
    """Column sums come first; then each weight, and zeros, where the layout says."""
    w = np.random.default_rng(0).integers(-128, 128, (ko * ki, channels))
    layout = packing.Layout(lanes, ko, ki, pixels)
    packed = packing.pack(w, layout)
    assert packed.nbytes == packing.packed_bytes(layout, channels)
    assert (packed[:4 * channels].view(np.int32) == w.sum(axis=0)).all()
    chunk = packed[packing.header_bytes(channels):][:layout.chunk_bytes].view(f"i{layout.item}")
    lane_of = np.argsort(layout.order.ravel())
    at = (layout.offsets()[:, None] + 4 * lane_of) // layout.item
    assert (chunk[at] == w[:, :layout.size]).all()
    assert np.count_nonzero(chunk) == np.count_nonzero(w[:, :layout.size])


def test_what_fits():
    assert packing.fits(49, 1) and not packing.fits(1025, 1) and not packing.fits(0, 1)
    assert packing.fits(49, 4) and not packing.fits(49, 6)
    assert packing.fits(49, 1, 512) and packing.fits(49, 8, 512) and not packing.fits(49, 3, 512)
    assert not packing.fits(49, 1, 5000) and not packing.fits(1025, 1, 3)


@pytest.mark.parametrize("low, high, item", [(-128, 127, 1), (-129, 127, 2), (-128, 128, 2), (0, 255, 2)])
def test_weights_have_8_bits_only_if_all_fit(low, high, item):
    weights = np.zeros((9, 64), np.int64)
    weights[3, 5], weights[8, 63] = low, high
    w = windows((8, 8), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (8, 8), 64)
    assert packing.choose(64, w, weights, level_named("amx")).item == item


@pytest.mark.parametrize("lanes, pixels", [(1, 0), (8, 0), (16, 0), (4, 4), (8, 2), (16, 4)])
def test_the_order_of_channels(lanes, pixels):
    """Pairs of taps lie as vpunpcklbw and vpunpckhbw interleave bytes: the halves of 16 bytes go to two vectors."""
    layout = packing.Layout(lanes, 3, 3, pixels)
    channels = np.arange(layout.size)
    if layout.half:
        low, high = np.moveaxis(channels.reshape(-1, 2, 8), 1, 0)
        assert layout.half == lanes > 1 and layout.order.tolist() == [low.ravel().tolist(), high.ravel().tolist()]
    else:
        assert (pixels or lanes == 1) and layout.order.ravel().tolist() == channels.tolist()
    assert layout.order.shape == (layout.size // lanes, lanes)
