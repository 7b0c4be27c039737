"""Element types: names, storage, limits, and what is no dtype."""
from typing import get_args

import ml_dtypes
import numpy as np
import pytest

from graphq import dtypes
from graphq.dtypes import DTYPES, as_dtype, bf16, boolean, f8_e4m3, f32, s4, s8, s32, s64, u4, u8
from graphq.errors import GraphError
from graphq.kernels.target import LevelName, isa


@pytest.mark.parametrize("name", DTYPES)
def test_name_numpy_and_self_give_the_same_dtype(name):
    dtype = DTYPES[name]
    assert as_dtype(name) is as_dtype(dtype) is as_dtype(dtype.numpy) is as_dtype(dtype.numpy.type) is dtype
    assert dtype == name and hash(dtype) == hash(name) and repr(dtype) == name
    assert dtype.itemsize == np.zeros(1, dtype.numpy).nbytes


def test_type_checkers_know_the_names_and_no_others():
    names, ours = get_args(dtypes.Name), len(DTYPES)
    assert names[:ours] == tuple(DTYPES)
    assert all(as_dtype(name).numpy == np.dtype(name) for name in names[ours:])
    assert get_args(LevelName) == tuple(level.name for level in isa.LEVELS)


def test_equality_is_by_name():
    assert f32 != s8 and f32 != "s8" and f32 != np.float32 and f32 in {"f32"}


@pytest.mark.parametrize("dtype,low,high", [
    (s8, -128, 127), (u8, 0, 255), (s4, -8, 7), (u4, 0, 15), (s32, -2**31, 2**31 - 1),
    (s64, -2**63, 2**63 - 1), (boolean, 0, 1),
    (f8_e4m3, -448.0, 448.0), (f32, -3.4028234663852886e38, 3.4028234663852886e38)])
def test_limits(dtype, low, high):
    assert (dtype.min, dtype.max) == (low, high)


def test_u4_is_not_numpys_four_byte_integer():
    assert as_dtype("u4") is u4 and as_dtype(ml_dtypes.bfloat16) is bf16


@pytest.mark.parametrize("bad", ["f96", "complex64", np.void, None, 3, "", "(", {"names": 1}, ">f4", object,
                                 np.dtype([("a", "f4")]), [1]])
def test_unknown_dtype(bad):
    with pytest.raises(GraphError, match="unknown dtype .*; graphq has f32, bf16"):
        as_dtype(bad)


@pytest.mark.parametrize("bad, name", [("f96", "'f96'"), (np.dtype("complex64"), "complex64"), (None, "None")])
def test_an_unknown_dtype_is_named_as_it_is_written(bad, name):
    with pytest.raises(GraphError, match=f"unknown dtype {name}; graphq has f32"):
        as_dtype(bad)
