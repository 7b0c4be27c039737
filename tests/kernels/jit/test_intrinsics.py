"""Shuffles of vectors against NumPy: transposes, columns, lanes of several vectors, lanes again.

Records: fields by name for who fills an argument block in and for its kernel.
"""
import numpy as np
import pytest
from kernel_factories import PAIR, misnaming, shuffling, swapping

from graphq.errors import KernelError
from graphq.kernels.jit import modules
from graphq.kernels.jit.modules import load


def shuffled(name, count, lanes, shape):
    source, target = np.arange(100, 100 + count * lanes, dtype=np.int32), np.zeros(shape, np.int32)
    module = modules.load("shuffles", shuffling, name, count, lanes)
    module.block(np.array([source.ctypes.data, target.ctypes.data]).ctypes.data, 0)
    return source.reshape(count, lanes), target


@pytest.mark.parametrize("count, lanes", [(2, 4), (4, 4), (4, 8), (8, 8), (4, 16), (8, 16)])
def test_tiles_are_transposed(count, lanes):
    rows, got = shuffled("transposed", count, lanes, (count, lanes))
    tiles = rows.reshape(count, lanes // count, count)
    assert np.array_equal(got, tiles.transpose(2, 1, 0).reshape(count, lanes))


def test_columns_of_eight_rows():
    rows, got = shuffled("columns", 8, 4, (4, 8))
    assert np.array_equal(got, rows.T)


def test_lanes_again():
    rows, got = shuffled("repeated", 3, 4, (3, 8))
    assert np.array_equal(got, rows.repeat(2, axis=1))
    rows, got = shuffled("splat", 2, 4, (8,))
    assert (got == rows[0, 1]).all()
    rows, got = shuffled("once", 2, 4, (2, 4))
    assert np.array_equal(got, rows)


@pytest.mark.parametrize("by_intrinsic", [False, True])
def test_a_kernel_reads_and_writes_fields(by_intrinsic):
    words = np.array([7, *PAIR.words({"second": -5, "first": 3}), 9], np.int64)
    load("test", swapping, by_intrinsic, cache=False).block(words.ctypes.data + 8, 0)
    assert words.tolist() == [7, -5, 3, 9]


def test_a_field_that_is_not_given_is_0():
    assert PAIR.words({"second": 4}) == [0, 4]


def test_a_wrong_name_is_an_error_when_the_kernel_is_compiled():
    with pytest.raises(KernelError, match="third"):
        load("test", misnaming, cache=False).block(0, 0)
