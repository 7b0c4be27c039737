from itertools import product

import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.errors import CompileError
from graphq.kernels.operands.space import broadcast_strides, merged_space, offsets, strip_space, table


def walked(space, walk, base):
    """The elements that a walk visits, as (batch, m) row starts in units of the itemsize."""
    table = np.zeros(space.batch, np.int64) if walk.table is None else walk.table
    return [[base + table[b] + i * walk.row for i in range(space.m)] for b in range(space.batch)]


@pytest.mark.parametrize("out, shapes", [
    ((4, 5), [(4, 5)]), ((4, 5), [(5,), (4, 1)]), ((2, 3, 4), [(3, 1), (4,), (2, 1, 1)]), ((), [()]),
    ((7,), [(7,), (1,)]), ((2, 3, 4, 5), [(1, 3, 1, 1), (2, 3, 4, 5)]), ((2, 1, 4, 1), [(2, 1, 1, 1), (4, 1)]),
    ((3, 2, 2, 2, 3), [(2, 1, 2, 1)]), ((1, 1, 6), [(1, 1, 6)]), ((2, 0, 3), [(2, 0, 3)]),
])
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_every_output_meets_its_broadcast_element(out, shapes, keep):
    arrays = [np.arange(int(np.prod(s)), dtype=np.int64).reshape(s) for s in shapes]
    strides = [broadcast_strides(s, out, 8) for s in shapes]
    space = merged_space(out, strides, keep=keep)
    assert space.batch * space.m * space.n == int(np.prod(out))
    for array, stride, walk in zip(arrays, strides, space.walks, strict=True):
        wanted = np.broadcast_to(array, out).reshape(-1)
        # Columns step by one element, or not at all: by the last dimension of the output that is larger than 1.
        moves = [s for d, s in zip(out, stride, strict=True) if d != 1]
        step = 8 if moves and moves[-1] and (not keep or stride[-1]) else 0
        step = stride[-1] if keep and out else step
        got = [(start + j * step) // 8 for row in walked(space, walk, 0) for start in row for j in range(space.n)]
        assert got == wanted.tolist()


@pytest.mark.parametrize("out, shapes", [
    ((4, 5), [(4, 5), (4, 1), (5,)]), ((2, 3, 4, 5), [(2, 3, 4, 5), (3, 4, 1), (2, 1, 1, 5)]),
    ((2, 1, 8, 3), [(2, 1, 8, 3), (1, 1, 8, 1), (2, 1, 1, 3)]), ((3, 0, 2), [(3, 0, 2)])])
@pytest.mark.parametrize("parts", [1, 2])
def test_rows_stay_apart(out, shapes, parts):
    """Batch elements have so many rows, though all would merge."""
    m = out[-2] // parts
    space = strip_space(out, [broadcast_strides(s, out, 8) for s in shapes], m or 1)
    assert (space.m, space.n) == (m or 1, out[-1]) and space.batch * space.m * space.n == np.prod(out)
    for shape, walk in zip(shapes, space.walks, strict=True):
        wanted = np.broadcast_to(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape), out)[..., 0].ravel()
        assert [start // 8 for rows in walked(space, walk, 0) for start in rows] == wanted.tolist()


def test_equal_shapes_are_one_row():
    space = merged_space((8, 16, 32), [broadcast_strides((8, 16, 32), (8, 16, 32), 4)] * 2)
    assert (space.batch, space.m, space.n) == (1, 1, 8 * 16 * 32)


def test_channels_first_bias_makes_long_rows():
    out = (2, 3, 10, 10)
    space = merged_space(out, [broadcast_strides(s, out, 4) for s in (out, (3, 1, 1))])
    assert (space.batch, space.m, space.n) == (2, 3, 100)
    assert [w.row for w in space.walks] == [400, 4]


def test_anchor_keeps_its_columns_and_takes_the_batch_into_the_rows():
    out = (8, 16, 32)
    a, weights = (16 * 64, 64, 0), (0, 0, 0)
    space = merged_space(out, [a, weights], keep=1)
    assert (space.batch, space.m, space.n) == (1, 128, 32)
    space = merged_space(out, [a, (4096, 0, 0)], keep=2)
    assert (space.batch, space.m, space.n) == (8, 16, 32)
    assert all(w.row == 0 for w in space.walks[1:])


def test_products_of_sizes():
    for out in product((1, 2, 3), repeat=3):
        space = merged_space(out, [broadcast_strides(out, out, 1)])
        assert space.batch * space.m * space.n == out[0] * out[1] * out[2]


def test_tables_of_offsets():
    assert offsets([(2, 100), (3, 7)]).tolist() == [0, 7, 14, 100, 107, 114]
    assert table([(2, 0), (1, 5)]) is None and table([(2, 0), (2, 5)]) is not None
    with budget(8 * 6):
        offsets([(2, 100), (3, 7)])
    with budget(8 * 6 - 1), pytest.raises(CompileError, match=r"the offsets of \[2, 3\] matrices"):
        offsets([(2, 100), (3, 7)])
