"""Windows: sizes of outputs, padding and counts, against loops; rules of lists."""
from itertools import product

import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.dtypes import f32
from graphq.errors import CompileError, GraphError
from graphq.ir import TensorType
from graphq.ops.window import (
    channels_first,
    check_channels,
    check_lists,
    from_channels_first,
    in_format,
    output_size,
    output_sizes,
    padded,
    padding,
    span,
    to_channels_first,
    window_counts,
)


@pytest.mark.parametrize("size, k, stride, begin, end, ceil", [
    *((*c, False) for c in product((1, 5, 8), (1, 3), (1, 2, 3), (0, 2), (-1, 0, 1))), (7, 3, 2, 0, 0, True),
    (8, 3, 2, 0, 0, True), (8, 2, 3, 1, 0, True), (5, 3, 2, 0, -1, True)])
def test_outputs_are_the_windows_that_fit(size, k, stride, begin, end, ceil):
    room = size + begin + end - k
    if room < 0:
        with pytest.raises(GraphError, match=f"of {k} elements does not fit into {size} padded by {begin} and {end}"):
            output_size(size, k, stride, (begin, end), "none", ceil=ceil)
        return
    starts = [*range(0, room + (stride if ceil else 1), stride)]
    assert output_size(size, k, stride, (begin, end), "none", ceil=ceil) == len(starts)
    counts = window_counts(size, k, stride, (begin, end), len(starts), inside=True)
    own = [sum(0 <= s - begin + t < size for t in range(k)) for s in starts]
    assert counts.tolist() == own and counts.dtype == np.float32
    whole = [sum(-begin <= s - begin + t < size + max(end, 0) for t in range(k)) for s in starts]
    assert window_counts(size, k, stride, (begin, end), len(starts), inside=False).tolist() == whole


@pytest.mark.parametrize("size, k, stride", [*product((1, 4, 7, 10), (1, 2, 3, 5), (1, 2, 3))])
def test_same(size, k, stride):
    outputs = -(-size // stride)
    for auto_pad, more in (("same_upper", 1), ("same_lower", 0)):
        begin, end = padding(auto_pad, size, k, stride, 9, 9)
        assert output_size(size, k, stride, (9, 9), auto_pad) == outputs
        total = max((outputs - 1) * stride + k - size, 0)
        assert begin + end == total and (begin, end)[more] - (begin, end)[1 - more] == total % 2
    assert padding("valid", size, k, stride, 9, 9) == (0, 0) and padding("none", size, k, stride, 3, 4) == (3, 4)


def test_unknown_sizes():
    assert output_size(None, 3, 1, (0, 0), "none") is None and output_size(5, None, 1, (0, 0), "none") is None
    assert output_size(5, None, 2, (0, 0), "same_upper") == 3
    with pytest.raises(GraphError, match="a window of 1 elements does not fit into 0 padded by 0 and 0"):
        output_size(0, 1, 1, (1, 0), "same_upper")
    assert output_sizes([5, None], [3, 3], [2, 1], [0, 1], [1, 0], "none") == (2, None)
    assert output_sizes([6, 5], [3, 2], [2, 3], [0, 1], [0, 0], "none", ceil=True) == (3, 3)
    assert span(None, 2) is None and span(1, 5) == 1 and span(3, 2) == 5


def test_padded():
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    made = padded(x, [(1, 2), (2, -1)], 9.0)
    assert made.shape == (1, 1, 6, 5) and (made[0, 0, 0] == 9).all() and (made[0, 0, 4:] == 9).all()
    assert np.array_equal(made[0, 0, 1:4, 2:], x[0, 0, :, :3]) and (made[0, 0, :, :2] == 9).all()
    assert padded(x, [(0, 0), (0, 0)]).tolist() == x.tolist()
    assert padded(x, [(0, 1), (0, 0)])[0, 0, 3].tolist() == [0] * 4


def test_formats():
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    assert to_channels_first(x, "NCX") is x and to_channels_first(x, "NXC").shape == (2, 5, 3, 4)
    assert from_channels_first(x, "NXC").shape == (2, 4, 5, 3) and from_channels_first(x, "NXC").flags.c_contiguous
    assert np.array_equal(to_channels_first(from_channels_first(x, "NXC"), "NXC"), x)
    assert channels_first((2, 3, 4, 5), 2, "NXC") == (2, 5, 3, 4) and channels_first((2, 3, 4), 1, "NCX") == (2, 3, 4)
    assert channels_first(None, 3, "NXC") == (None,) * 5
    assert in_format((2, 3, 4, 5), "NXC") == (2, 4, 5, 3) and in_format((2, 3, 4, 5), "NCX") == (2, 3, 4, 5)


def test_lists():
    src = TensorType(f32, (1, 2, 3, 4))
    assert check_lists(src, {"strides": (1, 2)}, {"pads": (0, 0)}, ends=(-1, 0)) == 2
    assert check_lists(TensorType(f32, None), {"strides": (1, 2, 3)}, {}) == 3
    for positive, others, ends, message in (
            ({"strides": (0, 1)}, {}, (0, 0), r"strides must be 2 values >= 1, one per spatial.*got \[0, 1\]"),
            ({"strides": (1,)}, {}, (0, 0), "strides must be 2 values >= 1"),
            ({"strides": (1, 1)}, {"pads": (0, -1)}, (0, 0), r"pads must be 2 values >= 0.*got \[0, -1\]"),
            ({"strides": (1, 1)}, {}, (0,), r"ends must be 2 values, one per spatial axis.*got \[0\]")):
        with pytest.raises(GraphError, match=message):
            check_lists(src, positive, others, ends=ends)
    with pytest.raises(GraphError, match="'src' must have a batch, a channel and spatial axes"):
        check_lists(TensorType(f32, (1, 2)), {"strides": ()}, {})


def test_channels():
    for got, want in ((None, 3), (3, None), (3, 3)):
        check_channels("channels", got, want, (1, 3), "why")
    with pytest.raises(GraphError, match=r"channels must be 4 \(why\), got 3 in \[1,3,\?\]"):
        check_channels("channels", 3, 4, (1, 3, None), "why")


def test_memory_counts_before_it_is_taken():
    x = np.zeros((2, 3, 4, 5), np.float16)
    with budget(2 * 2 * 3 * 7 * 5):
        assert padded(x, [(2, 1), (1, -1)]).shape == (2, 3, 7, 5)
    with budget(2 * 2 * 3 * 7 * 5 - 1), pytest.raises(CompileError, match=r"an input of \[2, 3, 4, 5\] padded by"):
        padded(x, [(2, 1), (1, -1)])
    with budget(32 * 7):
        assert window_counts(7, 3, 1, (1, 1), 7, inside=True).tolist() == [2, 3, 3, 3, 3, 3, 2]
    with budget(32 * 7 - 1), pytest.raises(CompileError, match="counting the taps of 7 windows"):
        window_counts(7, 3, 1, (1, 1), 7, inside=True)
