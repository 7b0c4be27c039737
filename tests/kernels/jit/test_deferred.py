"""What functions of kernel modules may be, how they call one another, and what Numba sees of them."""
import ctypes
from operator import index

import numpy as np
import pytest
from kernel_factories import (
    EXPRESSIONS,
    REFUSED,
    branches,
    calling_by_table,
    expression,
    loading_and_storing,
    of_several_types,
    refused,
    statements,
)

from graphq.errors import KernelError
from graphq.kernels.jit import deferred as jit
from graphq.kernels.jit.deferred import Deferred, bound, emits, njit
from graphq.kernels.jit.intrinsics import FUNCTIONS, load_s64
from graphq.kernels.jit.modules import FunctionTable, load
from graphq.kernels.jit.values import Value


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_expressions(number):
    words = np.array([40, 0], np.int64)
    load("front", expression, number, cache=False).give(-7, 3, words.ctypes.data)
    assert words[1] == EXPRESSIONS[number][1]


def test_statements():
    want = sum(i for k in range(1, 21) for i in range(k, 0, -2) if i % 3)
    out = np.zeros(1, np.int64)
    load("front", statements, cache=False).give(20, out.ctypes.data)
    assert out[0] == 2 * want


def test_branches_on_variables_of_a_factory_are_decided_when_it_is_compiled():
    out = np.zeros(1, np.int64)
    load("front", branches, 3, "one", None, cache=False).give(14, out.ctypes.data)
    assert out[0] == 42
    for arguments in ((None, "one", None), (3, "other", None)):
        with pytest.raises(KernelError, match="nothing"):
            index(load("front", branches, *arguments, cache=False).give)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_numba_does_not_know_is_refused(number):
    with pytest.raises(KernelError, match=REFUSED[number][1]):
        index(load("front", refused, number, cache=False).block)


def test_intrinsics_are_called_by_a_table():
    module = load("front", loading_and_storing, cache=False)
    table = FunctionTable([0, module.store, module.load])
    assert FUNCTIONS == 0
    args = np.array([index(table)], np.int64)
    direct = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_ssize_t)(index(module.load))
    assert direct(args.ctypes.data) == index(table)
    load("front", calling_by_table, cache=False).block(args.ctypes.data, 4)
    assert args[0] == 5 * index(table) + 4


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
    out = np.zeros(1, np.int64)
    load("front", of_several_types, cache=False).give(out.ctypes.data)
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


@pytest.mark.parametrize("annotations, part", [
    ({"x": "float", "return": "Value"}, "'float'"), ({"x": "Value"}, "'nothing'"),
    ({"x": Value, "return": "None"}, "Value'"), ({"x": "Value", "return": "int"}, "got 'int'"),
    ({"x": "None", "return": "Value"}, "got 'None'")])
def test_an_emitting_function_with_other_annotations_is_refused(annotations, part):
    def body(b, x):
        return x

    body.__annotations__ = annotations
    with pytest.raises(TypeError, match="body: annotate an emitting function's parameters with one of "
                                        "Value, F32Value, int") as error:
        emits(body)
    assert part in str(error.value)
