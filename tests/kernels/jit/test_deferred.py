"""What functions of kernel modules may be, how they call one another, and what Numba sees of them."""
import ctypes
from operator import index

import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.jit import deferred as jit
from graphq.kernels.jit.deferred import Deferred, bound, njit
from graphq.kernels.jit.intrinsics import FUNCTIONS, load_s64
from graphq.kernels.jit.modules import FunctionTable, load

HEAD = """
from graphq.kernels.jit.codegen import block, exported, function
from graphq.kernels.jit.intrinsics import load_s64, outer, stack, store_s64, word
from graphq.kernels.jit.deferred import intrinsic, njit, types

SCALE = 10


@njit
def added(a, b, place):
    return a + load_s64(place) - b


@njit
def halved(x: int) -> int:
    return x // 2


@njit
def store_twice(place: int, x: int) -> None:
    store_s64(place, 2 * x)


def adder(step):
    @njit
    def add(x):
        return added(x, -step, 0) if step < 0 else x + step * SCALE

    return add


ADD_3 = adder(3)
"""


@pytest.mark.parametrize(("expression", "want"), [
    ("min(a, b)", -7), ("max(a, b)", 3), ("min(a, 2)", -7), ("max(2, b)", 3), ("a // b", -3), ("a % b", 2),
    ("a // (b - 3) * 0", 0), ("a >> 1", -4), ("a & 12 | 1", 9), ("~a", 6), ("a << 2", -28), ("abs(a)", 7),
    ("1 if a < b and b > 2 else 0", 1), ("not a == b or a != b", 1), ("(a, b)[1]", 3), ("a * SCALE", -70),
    ("added(a, b, place)", -7 + 40 - 3), ("halved(a)", -4), ("halved(halved(40))", 10), ("ADD_3(b)", 33),
    ("added(a, halved(6), place) + halved(a)", 26)])
def test_expressions(expression, want):
    text = f"{HEAD}@function('intp', 'intp', 'intp')\n" \
        f"def GIVE(a, b, place):\n    store_s64(place + 8, {expression})\n"
    words = np.array([40, 0], np.int64)
    load("front", text, cache=False).GIVE(-7, 3, words.ctypes.data)
    assert words[1] == want


STATEMENTS = HEAD + """
@function("intp", "intp")
def GIVE(n, place):
    total, k = 0, 0
    while True:
        k += 1
        if k > n:
            break
        for i in range(k, 0, -2):
            if i % 3 == 0:
                continue
            total += i
    room = stack(64)
    store_s64(room, total)
    store_twice(place, load_s64(room))
"""


def test_statements():
    want = sum(i for k in range(1, 21) for i in range(k, 0, -2) if i % 3)
    out = np.zeros(1, np.int64)
    load("front", STATEMENTS, cache=False).GIVE(20, out.ctypes.data)
    assert out[0] == 2 * want


@pytest.mark.parametrize(("body", "message"), [
    ("index.sort()", "sort"), ("store_s64(args, index + 'a')", "TypingError"), ("nothing(index)", "nothing"),
    ("store_s64(args)", "missing 1 required positional argument")])
def test_what_numba_does_not_know_is_refused(body, message):
    module = load("front", f"{HEAD}\n@block\ndef BAD(args, index):\n    {body}\n", cache=False)
    with pytest.raises(KernelError, match=message):
        index(module.BAD)


def test_exported_intrinsics_are_called_by_a_table():
    module = load("front", HEAD + "exported(LOAD=load_s64, STORE=store_s64)\n", cache=False)
    table = FunctionTable([0, module.STORE, module.LOAD])
    args = np.zeros(FUNCTIONS + 1, np.int64)
    args[0], args[FUNCTIONS] = 17, index(table)
    direct = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_ssize_t)(index(module.LOAD))
    assert direct(args.ctypes.data) == 17
    text = HEAD + "keep, give = outer(1, 2), outer(2, 1)\n" \
        "@block\ndef BLOCK(args, index):\n    keep(args, 5 * give(args) + index)\n"
    load("front", text, cache=False).BLOCK(args.ctypes.data, 4)
    assert args[0] == 5 * 17 + 4


def test_helpers_with_annotations_have_one_signature():
    import numba

    @njit
    def plain(x: int, y: float) -> float:
        return x * y

    @njit
    def without(x: int) -> None:
        pass

    @njit
    def partly(x, y: int) -> int:
        return x * y

    @njit
    def other(x: "int", y: "np.int64") -> "int":
        return x * y

    assert isinstance(plain, Deferred) and repr(plain) == "<deferred plain>"
    kinds = numba.types
    for helper, want in ((plain, [(kinds.intp, kinds.float32)]), (partly, []), (other, [])):
        helper.body.__annotations__ = {k: getattr(v, "__name__", v) for k, v in helper.body.__annotations__.items()}
        assert helper.made.signatures == want
        assert helper.made is helper.made
    without.body.__annotations__ = {"x": "int", "return": "None"}
    assert without.made.signatures == [(kinds.intp,)]
    assert without.made.nopython_signatures[0].return_type == kinds.void
    assert plain.made.nopython_signatures[0].return_type == kinds.float32


def test_other_helpers_are_typed_for_each_call():
    text = HEAD + """
@njit
def both(x, y):
    return x + y

@njit
def room(n):
    return stack(n)

@function("intp")
def GIVE(place):
    store_s64(place, both(1, 2) + int(both(1.5, 2.75)))
    store_s64(room(8), 1)
    store_s64(room(16) + 8, load_s64(place))
"""
    out = np.zeros(1, np.int64)
    load("front", text, cache=False).GIVE(out.ctypes.data)
    assert out[0] == 3 + 4


LATER = 7


def test_functions_see_numbas_objects_of_globals_and_of_closures():
    inner = njit(lambda x: x + 1)
    number = 5

    def outside(x, *, k=3):
        """With a text."""
        return [inner, number, load_s64, LATER, [load_s64 for _ in range(1)], x, k]

    copy = bound(outside)
    assert outside(1) == [inner, 5, load_s64, 7, [load_s64], 1, 3]
    assert copy(1) == [inner.made, 5, load_s64.made, 7, [load_s64.made], 1, 3]
    assert copy.__name__ == "outside" and copy.__doc__ == "With a text." and copy.__module__ == outside.__module__
    assert "pytest" not in copy.__globals__  # only what it names
    assert not isinstance(inner.made, Deferred) and jit.types.intp.bitwidth == 64


def test_bound_functions_have_pythons_builtins():
    def smallest(a, b):
        return min(a, b)

    assert bound(smallest)(2, 1) == 1
