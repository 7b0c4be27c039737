"""Numba as a front end: what functions of kernels may be, and how they call one another."""
import ctypes

import numpy as np
import pytest

from graphq.kernels import cache, compiling
from graphq.kernels.intrinsics import FUNCTIONS

HEAD = """
from graphq.kernels.cache import block, exported, function
from graphq.kernels.intrinsics import load_s64, outer, store_s64, word
from graphq.kernels.jit import njit


@njit
def added(a, *others):
    return a + load_s64(others[0]) - others[1]
"""


@pytest.mark.parametrize(("expression", "want"), [
    ("min(a, b)", -7), ("max(a, b)", 3), ("min(a, 2)", -7), ("max(2, b)", 3), ("a // b", -3), ("a % b", 2),
    ("a >> 1", -4), ("1 if a < b and b > 2 else 0", 1), ("added(a, place, b)", -7 + 40 - 3), ("(a, b)[1]", 3)])
def test_expressions(expression, want):
    text = f"{HEAD}@function('intp', 'intp', 'intp')\n" \
        f"def GIVE(a, b, place):\n    store_s64(place + 8, {expression})\n"
    words = np.array([40, 0], np.int64)
    cache.load("front", text, cache=False).GIVE(-7, 3, words.ctypes.data)
    assert words[1] == want


def test_what_only_numpy_knows_is_refused():
    text = HEAD + "import numpy as np\n@block\ndef BAD(args, index):\n    np.sort(index)\n"
    with pytest.raises(Exception, match="sort"):
        cache.load("front", text, cache=False)


def test_exported_intrinsics_are_called_by_a_table():
    module = cache.load("front", HEAD + "exported(LOAD=load_s64, STORE=store_s64)\n", cache=False)
    load = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_ssize_t)(module.LOAD.address)
    table = np.array([module.LOAD.address, module.STORE.address], np.int64)
    args = np.zeros(FUNCTIONS + 1, np.int64)
    args[0], args[FUNCTIONS] = 17, table.ctypes.data
    compiling.finish()
    assert load(args.ctypes.data) == 17
    text = HEAD + "give = outer(0)\n@block\ndef BLOCK(args, index):\n    store_s64(args + 8, give(args) + index)\n"
    cache.load("front", text, cache=False).BLOCK(args.ctypes.data, 5)
    assert args[1] == 22
