"""Operators of values, and indexing: what they build, and the numbers of NumPy's."""
import numpy as np
import pytest
from graphs import ops

import graphq as gq
from graphq.errors import GraphError

X = np.float32([[-1.5, 0, 2], [3, 0.25, -4]])
W = np.float32([[1, 2], [0, -1], [3, 0.5]])


@pytest.mark.parametrize("f", [
    lambda x: x * 2, lambda x: 2 * x, lambda x: x + 1.5, lambda x: 1.5 + x, lambda x: x - 1, lambda x: 1 - x,
    lambda x: x / 4, lambda x: 4 / (x * x + 1), lambda x: -x, abs, lambda x: x**2, lambda x: x + x, lambda x: x - W.T,
    lambda x: W.T - x, lambda x: x @ W, lambda x: W @ x, lambda x: np.float32(2) * x, lambda x: x * np.float64(0.5),
    lambda x: np.ones(3) * x, lambda x: np.full((2, 1), 0.5) / (x * x + 1), lambda x: -x[1] @ W + 0.5])
def test_operators_compute_what_they_do_on_arrays(g, x, f):
    g.output(f(x), name="y")
    want = f(X)
    got = gq.reference(g, X)
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.array_equal(gq.compile(g, threads=1)(X), got)


def test_operators_build_onednns_operations(g, x):
    (1 - abs(-x) * 2) @ W / 3
    assert [name for name in ops(g) if name != "constant"] == [
        "multiply", "abs", "multiply", "subtract", "matmul", "divide"]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_numbers_take_the_dtype_of_the_value(g, dtype):
    y = g.input("y", dtype=dtype, shape=(3,))
    assert [(f(y)).dtype for f in (lambda y: y * 2, lambda y: 0.5 - y, lambda y: -y)] == [dtype] * 3
    assert (y * np.float32(2)).dtype == (y * np.ones(3)).dtype == "f32"
    n = g.input("n", dtype="s32", shape=(3,))
    assert (n + 2).dtype == (5 - n).dtype == "s32"


@pytest.mark.parametrize("f, message", [
    (lambda x, u: u * 2, r"multiply\(u: u8\[3\], u8\[\]\): 'src_0' must be f32, bf16 or f16, got u8"),
    (lambda x, u: x + u, "'src_1' must be f32, .*, got u8"),
    (lambda x, u: x * 1e39, r"multiply: 1e\+39 does not fit into f32"),
    (lambda x, u: x @ 2, "'weights' must have at least one dimension"),
    (lambda x, u: x @ x, "k must agree, got 3 and 2")])
def test_operators_refuse_as_their_operations_do(g, x, f, message):
    u = g.input("u", dtype="u8", shape=(3,))
    with pytest.raises(GraphError, match=message):
        f(x, u)
    assert g.nodes == []


@pytest.mark.parametrize("f", [lambda x: x + "a", lambda x: [1.0] * x, lambda x: x * True, lambda x: None - x,
                               lambda x: x ** x, lambda x: x % 2, iter, len, float, lambda x: 1 in x, lambda x: x < 0])
def test_what_values_have_no_operator_for(g, x, f):
    with pytest.raises(TypeError):
        f(x)
    assert g.nodes == []


def test_values_are_neither_true_nor_false(g, x):
    for ask in (bool, lambda v: v or 1, lambda v: not v, lambda v: [1 for _ in "a" if v]):
        with pytest.raises(GraphError, match=r"<value x: f32\[2,3\]> is neither true nor false"):
            ask(x)
    assert x == x and x != g.relu(x) and x in {x: 1} and len({x, g.abs(x)}) == 2


# -- indexing -------------------------------------------------------------------------------------------------

CUBE = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
KEYS = [np.s_[1:3], np.s_[0], np.s_[-1], np.s_[:, 2], np.s_[..., 0], np.s_[1, ..., -2:], np.s_[::2, 1:-1:3],
        np.s_[::-1], np.s_[3:0:-2], np.s_[-9:9], np.s_[9:], np.s_[2:1], np.s_[-9::-1], np.s_[9::-1], np.s_[1:3:-1],
        np.s_[None], np.s_[:, None, 1], np.s_[..., None], np.s_[1, 2, 3], np.s_[1, 2, 3, None],
        np.s_[None, ..., 3:, None], np.s_[np.int64(2)], np.s_[np.int8(1):np.int64(3)]]


@pytest.mark.parametrize("open_axes", [(), (0,), (0, 1, 2)])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indices_take_what_numpy_takes(g, key, open_axes):
    x = g.input("x", dtype="f32", shape=[None if k in open_axes else n for k, n in enumerate(CUBE.shape)])
    try:
        y = x[key]
    except GraphError as error:
        assert open_axes and ("unknown dimension" in str(error))
        return
    g.output(y, name="y")
    want = CUBE[key]
    assert y.shape == want.shape or open_axes
    assert np.array_equal(gq.reference(g, CUBE), want) and gq.reference(g, CUBE).shape == want.shape
    if want.size:
        assert np.array_equal(gq.compile(g, threads=1)(CUBE), want)


def test_all_of_a_value_is_itself(g, x):
    assert x[:] is x and x[...] is x and x[:, :] is x and x[()] is x and g.nodes == []
    x[1:, 0]
    assert ops(g) == ["slice", "static_reshape"]


@pytest.mark.parametrize("key, message", [
    (2, r"an index of x: f32\[2,3\]: must be in \[-2, 1\], got 2"), (np.s_[0, -4], r"must be in \[-3, 2\], got -4"),
    (np.s_[0, 0, 0], "takes 2 indices and one ..., got 3"), (np.s_[..., 0, ...], "takes 2 indices and one"),
    (np.s_[::0], "a step must not be 0"), (1.5, "must be an int, a slice, ... or None, got 1.5"),
    (True, "must be an int, .* got True"), (np.array([0]), "must be an int, .*; use gather for arrays"),
    (np.s_["a":], "a slice must have ints"), ([0, 1], "must be an int")])
def test_indices_that_are_none(g, x, key, message):
    with pytest.raises(GraphError, match=message):
        x[key]
    with pytest.raises(GraphError, match="the rank must be known"):
        g.input("y", dtype="f32")[0]
    assert g.nodes == []
