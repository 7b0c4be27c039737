"""Tables of windows against loops over axes and taps."""
from itertools import product

import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.errors import CompileError, KernelError
from graphq.kernels.operands.windows import INVALID, WINDOWS, windows

CASES = [
    # sizes, kernel, strides, dilations, pads, outputs
    ((5,), (3,), (1,), (1,), ((1, 1),), (5,)),
    ((5, 7), (3, 2), (2, 1), (1, 3), ((1, 0), (2, 2)), (2, 8)),
    ((4, 3, 5), (2, 3, 1), (1, 2, 3), (2, 1, 1), ((0, 0), (1, 2), (0, 3)), (2, 2, 3)),
    ((2, 2), (1, 1), (1, 1), (1, 1), ((3, 3), (4, 0)), (8, 6)),  # pads larger than the kernel
    ((3, 3), (3, 3), (2, 2), (1, 1), ((0, 0), (0, 0)), (2, 2)),  # the last windows stick out, as rounding up makes them
    ((3, 4), (2, 2), (1, 1), (1, 1), ((0, 0), (0, 0)), (0, 3)),
]
TRANSPOSED = [
    ((4,), (3,), (2,), (1,), ((1, 1),), (7,)),
    ((3, 4), (3, 2), (2, 3), (1, 2), ((0, 1), (1, 0)), (6, 11)),
    ((2, 2, 2), (2, 1, 3), (1, 2, 2), (1, 1, 1), ((0, 0), (0, 0), (1, 0)), (3, 4, 4)),
]


def record(block):
    """The fields of a block, by name."""
    return dict(zip(WINDOWS.fields, block, strict=False))


def place(o, k, size, stride, dilation, begin, transposed):
    """The input element of an output and a tap, or None in the padding."""
    i = o * stride + k * dilation - begin
    if transposed:
        i = o + begin - k * dilation
        if i % stride:
            return None
        i //= stride
    return i if 0 <= i < size else None


def expected(sizes, kernel, strides, dilations, pads, outputs, images, pad, transposed):
    """The windows by a loop over outputs and taps."""
    pixels = list(product(*map(range, outputs)))
    taps = list(product(*map(range, kernel)))
    out = np.full((len(images), len(pixels), len(taps), images.shape[-1]), pad, images.dtype)
    for (p, o), (t, k) in product(enumerate(pixels), enumerate(taps)):
        at = [place(*x, transposed) for x in zip(o, k, sizes, strides, dilations, (b for b, _ in pads), strict=True)]
        if None not in at:
            out[:, p, t] = images[(slice(None), *at)]
    return out


@pytest.mark.parametrize("case,transposed", [(c, False) for c in CASES] + [(c, True) for c in TRANSPOSED])
@pytest.mark.parametrize("channels,dtype", [(3, np.uint8), (2, np.float32)])
def test_gather(case, transposed, channels, dtype):
    images = np.random.default_rng(0).integers(0, 200, (2, *case[0], channels)).astype(dtype)
    w = windows(*case, channels * images.itemsize, transposed=transposed)
    want = expected(*case, images, 250, transposed)
    assert (w.pixels, w.taps, w.image_bytes) == (*want.shape[1:3], images[0].nbytes)
    assert (w.gather(images, 250) == want).all()
    assert w.fewest_inside == min((want[0] != 250).all(axis=-1).sum(axis=-1), default=1)
    assert w.outer.dtype == w.inner.dtype == np.int64


@pytest.mark.parametrize("case", CASES)
def test_block(case):
    pad_row = np.arange(17, dtype=np.uint8)
    w = windows(*case, 17)
    block = w.block(pad_row)
    data = block.view(np.uint8)
    x = record(block)
    assert not x["even_pad"] and record(w.block(pad_row * 0 + 9))["even_pad"]
    assert block.dtype == np.int64 and block.nbytes % 64 == 0
    assert (x["width"], x["ko"], x["ki"], x["height"]) == (
        len(w.inner), w.outer.shape[1], w.inner.shape[1], len(w.outer))
    for table, start in ((w.outer, x["outer_table"]), (w.inner, x["inner_table"])):
        assert start % 64 == 0 and (data[start:start + table.nbytes].view(np.int64) == table.ravel()).all()
    assert (data[x["pad_row"]:][:17] == pad_row).all() and block.nbytes >= x["pad_row"] + 64 + 64


@pytest.mark.parametrize("case", CASES)
def test_runs(case):
    """Where an entry is valid, the run's pixels lie a step apart from there on; else they do not."""
    w = windows(*case, 5)
    offsets, block = w.offsets(), w.block(np.zeros(5, np.uint8), w.runs(4, w.pixels))
    step, *entries = w.runs(4, w.pixels)
    entries = np.reshape(entries, (-1, w.taps))
    table = block[record(block)["more"] // 8:]
    assert table[0] == step and (table[1:1 + entries.size] == entries.ravel()).all()
    assert len(entries) == -(-w.pixels // 4)
    for q, t in np.ndindex(entries.shape):
        run = offsets[4 * q:4 * q + 4, t]
        even = (run >= 0).all() and (np.diff(run) == step).all()
        assert entries[q, t] == (run[0] if even else INVALID)


def test_runs_of_lines():
    w = windows((5, 7), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (5, 7), 1)
    step, *entries = w.runs(4, 7)
    offsets, entries = w.offsets().reshape(5, 7, 9), np.reshape(entries, (5, 2, 9))
    for y, q, t in np.ndindex(entries.shape):
        run = offsets[y, 4 * q:4 * q + 4, t]
        assert entries[y, q, t] == (run[0] if (run >= 0).all() else INVALID)


@pytest.mark.parametrize("case", CASES[1:3])
def test_subset(case):
    w = windows(*case, 5)
    rank = len(case[0])
    outputs, taps = [np.arange(n)[1::2] for n in w.outputs], [np.arange(n)[1:] for n in w.kernel]
    all_of = w.offsets().reshape(*w.outputs, *w.kernel)
    part = w.subset([1] * rank, [2] * rank, taps)
    assert (part.outputs, part.kernel) == (tuple(map(len, outputs)), tuple(map(len, taps)))
    assert (part.offsets() == all_of[np.ix_(*outputs, *taps)].reshape(part.pixels, part.taps)).all()
    assert rank == len(part.outputs)


def test_runs_of_an_image_are_even_inside():
    w = windows((6, 40), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (6, 40), 64)
    step, *entries = w.runs(8, 40)
    assert step == 64 and (np.reshape(entries, (6, 5, 3, 3))[1:5, 1:4] >= 0).all()


def test_invalid_sums_are_negative():
    """Also those of two invalid parts, which are the least s64."""
    w = windows((1, 1), (1, 1), (1, 1), (1, 1), ((1, 1), (1, 1)), (3, 3), 1000)
    assert (w.outer.ravel() == [INVALID, 0, INVALID]).all()
    assert (w.offsets().ravel() >= 0).sum() == 1 and w.offsets().min() == -2**63


def test_refusals():
    with pytest.raises(KernelError, match="one entry a spatial axis"):
        windows((3, 3), (1,), (1, 1), (1, 1), ((0, 0), (0, 0)), (3, 3), 1)
    with pytest.raises(KernelError, match="one entry a spatial axis"):
        windows((), (), (), (), (), (), 1)
    with pytest.raises(KernelError, match="at least a pixel's 3 bytes, got 2"):
        windows((3,), (1,), (1,), (1,), ((0, 0),), (3,), 3).block(np.zeros(2, np.uint8))


def test_tables_count_before_they_are_made():
    bytes_of_tables = 4 * 8 * (5 * 7 * 2 * 4 + 9 * 3)  # of the first axes merged, and of the last
    for limit, fits in ((bytes_of_tables, True), (bytes_of_tables - 1, False)):
        with budget(limit):
            if fits:
                windows((6, 8, 9), (2, 4, 3), *((1, 1, 1),) * 2, ((0, 0),) * 3, (5, 7, 9), 1)
                continue
            with pytest.raises(CompileError, match=r"the tables of \[5, 7, 9\] windows of \[2, 4, 3\] elements"):
                windows((6, 8, 9), (2, 4, 3), *((1, 1, 1),) * 2, ((0, 0),) * 3, (5, 7, 9), 1)


def test_runs_count_before_they_are_made():
    w = windows((5, 7), (2, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), (4, 5), 1)
    with budget(10**6):
        words = np.asarray(w.runs(4, 5))
    assert words.size > 0
    with budget(100), pytest.raises(CompileError, match=r"the runs of \[4, 5\] windows of \[2, 3\] elements"):
        w.runs(4, 5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_repeated_taps(case, times):
    channels = 2
    w = windows(*case, channels)
    x = np.random.default_rng(0).integers(1, 100, (2, *case[0], channels)).astype(np.uint8)
    again = w.repeated(times)
    assert again.taps == times * w.taps and again.pixels == w.pixels and (times > 1 or again is w)
    wanted = np.concatenate([w.gather(x, 0)] * times, axis=2)
    assert np.array_equal(again.gather(x, 0), wanted)


def test_blocks_of_lines_are_no_larger_than_they_need_to_be():
    w = windows((5, 7), (3, 2), (1, 1), (1, 1), ((1, 1), (0, 1)), (5, 7), 3)
    assert w.block(np.zeros(3, np.uint8)).nbytes < 2048


@pytest.mark.parametrize("pads, outputs, step", [
    ((0, 0), 4, 8), ((0, 0), 1, 8), ((1, 0), 5, -1), ((0, 1), 5, -1), ((9, 0), 3, -1), ((-1, 0), 3, -1)])
def test_pixels_are_even_if_they_begin_with_the_first_and_none_is_padding(pads, outputs, step):
    assert windows((4,), (1,), (1,), (1,), (pads,), (outputs,), 8).even_step() == step
