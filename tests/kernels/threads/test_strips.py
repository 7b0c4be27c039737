"""The kernel of strips: each strip goes through all steps, on copies of their argument blocks."""
import numpy as np
import pytest
from row_kernels import ROWS, adding_rows

from graphq.kernels.jit import modules
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.threads.strips import STRIPS, strips_module


@pytest.mark.parametrize("batch, m, each, pieces", [
    (1, 8, 8, 1), (1, 7, 3, 3), (2, 5, 2, 1), (3, 10, 4, 4), (2, 3, 8, 2)])
def test_strips_go_through_rooms_of_their_pieces(batch, m, each, pieces):
    """Two steps add 1 and 20; between them lies a strip for each piece, whose rows are 24 bytes apart."""
    function = int(modules.load("adding_rows", adding_rows).block)
    x, y = np.arange(batch * m), np.zeros(batch * m, np.int64)
    between, scratch = np.full((pieces, each, 3), -1), np.zeros((pieces, 1), np.int64)
    same = {"batch": batch, "m": m, "each": each, "rooms": scratch.ctypes.data, "room_count": pieces, "room_bytes": 8}
    first = ROWS.words({**same, "by": 1, "source": x.ctypes.data, "source_bytes": 8 * m, "source_stride": 8,
                        "target": between.ctypes.data, "target_stride": 24})
    second = ROWS.words({**same, "by": 20, "source": between.ctypes.data, "source_stride": 24,
                         "target": y.ctypes.data, "target_bytes": 8 * m, "target_stride": 8})
    copies = np.zeros((pieces, len(first)), np.int64)
    words = STRIPS.words({"steps": 2, "batch": batch, "m": m, "each": each, "rooms": copies.ctypes.data,
                          "room_count": pieces, "room_bytes": copies.strides[0]})
    words += [0] * (HEADER_WORDS - len(words))
    for block, moved in ((first, "target"), (second, "source")):
        words += [function, len(block), 1, *block, ROWS.number(moved), 24]
    args = np.array(words, np.int64)
    before, strip = args.copy(), modules.load("strips", strips_module).block
    blocks = batch * -(-m // each)
    for index in np.random.default_rng(0).permutation(blocks):
        strip(args.ctypes.data, int(index))
    np.testing.assert_array_equal(y, x + 21)
    np.testing.assert_array_equal(args, before)
    used = {((index + 1) * pieces - 1) // blocks for index in range(blocks)}
    assert all((between[piece, :, 0] > 0).any() == (piece in used) for piece in range(pieces))
    assert (between[..., 1:] == -1).all()
