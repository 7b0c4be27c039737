import itertools

import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError


def arange(*shape, dtype="f32"):
    return np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), DTYPES[dtype].numpy)


@pytest.mark.parametrize("src, shape, special_zero, want", [
    ((2, 6), [3, 4], False, (3, 4)), ((2, 6), [-1], False, (12,)), ((2, 6), [4, -1, 1], False, (4, 3, 1)),
    ((2, 6), [0, 3, -1], True, (2, 3, 2)), ((2, 6), [-1, 0], True, (2, 6)),
    ((2, 3, 4), [0, 0, 2, 2], True, (2, 3, 2, 2)),
    ((), [], False, ()), ((), [1, 1], False, (1, 1)), ((1,), [], False, ()), ((), [-1], False, (1,)),
    ((0, 4), [0], False, (0,)), ((0, 4), [7, 0], False, (7, 0)), ((0, 4, 5), [-1, 20], False, (0, 20)),
    ((0, 4, 5), [0, -1], True, (0, 20)), ((0, 4), [0, 2, 2], True, (0, 2, 2)), ((3, 0), [-1, 5], False, (0, 5)),
])
def test_reshape(run, src, shape, special_zero, want):
    x = arange(*src)
    got = run("static_reshape", x, shape=shape, special_zero=special_zero)
    np.testing.assert_array_equal(got, x.reshape(want))
    assert got.shape == want


@pytest.mark.parametrize("src, shape, special_zero, want", [
    ("[?,6]", [-1, 3], False, "[?,3]"), ("[?,6]", [4, 3], False, "[4,3]"), ("[?,?]", [7], False, "[7]"),
    ("[?,4,5]", [0, -1], True, "[?,20]"), ("[?,4,5]", [0, 20], True, "[?,20]"), ("[?,0]", [-1, 2], False, "[0,2]"),
    ("[?,0]", [3, 0], False, "[3,0]"), ("[?,4]", [0], False, "[0]"), ("[*]", [2, -1, 0], True, "[2,?,?]"),
    ("[*]", [2, 0], False, "[2,0]"), ("[?,?,6]", [0, 0, 2, -1], True, "[?,?,2,3]"),
])
def test_reshape_types(infer, src, shape, special_zero, want):
    assert infer("static_reshape", "u8" + src, shape=shape, special_zero=special_zero) == "u8" + want


@pytest.mark.parametrize("src, shape, special_zero, match", [
    ("[2,3]", [4], False, r"cannot reshape \[2,3\] to \[4\]: 6 elements against 4"),
    ("[]", [2], False, "1 elements against 2"), ("[2,3]", [], False, "6 elements against 1"),
    ("[0,3]", [1], False, "0 elements against 1"), ("[2,3]", [0, 3], False, "6 elements against 0"),
    ("[2,3]", [-1, -1], False, r"at most one -1, got \[-1, -1\]"),
    ("[*]", [-1, -1], False, "at most one -1"), ("[2,3]", [-2, 3], False, "dimensions >= 0 and at most one -1"),
    ("[2,3]", [-1, 4], False, r"6 elements are no multiple of 4"),
    ("[0,3]", [0, -1], False, "-1 is not determined next to a dimension of 0"),
    ("[2,3]", [3, 2, 0], True, r"special_zero copies dimension 2, which \[2,3\] does not have"),
    ("[2,3]", [0, 2], True, "3 elements against 2"), ("[?,3]", [4], False, r"3 \* \? elements against 4"),
    ("[?,0]", [4], False, r"0 \* \? elements against 4"),
])
def test_reshape_rules(infer, src, shape, special_zero, match):
    with pytest.raises(GraphError, match=match):
        infer("static_reshape", "f32" + src, shape=shape, special_zero=special_zero)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_transpose(run, order):
    x = arange(2, 3, 4)
    want = np.empty([x.shape[k] for k in order], np.float32)
    for index in np.ndindex(2, 3, 4):
        want[tuple(index[k] for k in order)] = x[index]
    np.testing.assert_array_equal(run("static_transpose", x, order=list(order)), want)
    np.testing.assert_array_equal(run("static_transpose", x, order=[k - 3 for k in order]), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(run, dtype):
    x = arange(2, 3, dtype=dtype)
    turned, flat = run("static_transpose", x, order=[1, 0]), run("static_reshape", x, shape=[6])
    for got, want in ((turned, x.T), (flat, x.ravel())):
        assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def test_transpose_of_nothing(run):
    assert run("static_transpose", arange(), order=[]).shape == ()
    assert run("static_transpose", np.zeros((2, 0, 3), np.float32), order=[2, -2, 0]).shape == (3, 0, 2)


@pytest.mark.parametrize("src, order, want", [("[?,3]", [1, 0], "[3,?]"), ("[*]", [1, 0], "[?,?]"), ("[*]", [], "[]")])
def test_transpose_types(infer, src, order, want):
    assert infer("static_transpose", "s8" + src, order=order) == "s8" + want


@pytest.mark.parametrize("src, order", [("[2,3]", [0]), ("[2,3]", [0, 1, 2]), ("[2,3]", [0, 0]), ("[2,3]", [0, 2]),
                                        ("[2,3]", [-3, 0]), ("[2,3]", [1, -1]), ("[*]", [0, 2]), ("[]", [0])])
def test_transpose_rules(infer, src, order):
    with pytest.raises(GraphError, match=r"order must be a permutation of the \d axes of f32.*, got \["):
        infer("static_transpose", "f32" + src, order=order)
