"""Indexing gives what NumPy gives, for every kind of index, and refuses the rest with the rule."""
import itertools

import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError

KEYS = [0, -1, 3, -4, slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2),
        slice(-2, None), slice(None, -1), slice(10, None), slice(2, 2), slice(-9, 9), slice(3, None, -1),
        slice(1, None, 3), None, ..., np.int64(2)]


@pytest.mark.parametrize("keys", [*((k,) for k in KEYS), *itertools.product(KEYS[:12] + KEYS[16:], KEYS[::3]),
                                  (0, ..., 1), (None, 1, None, ..., None), (..., slice(0, 1)),
                                  (slice(1, 3), None, 0, slice(None, None, -2)), (0, 0, 0), (..., None)], ids=str)
def test_indices_are_numpys(keys):
    array = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(4, 5, 6))
    if sum(k is ... for k in keys) > 1:
        with pytest.raises(GraphError, match="takes 3 indices and one ..., got 2"):
            x[keys]
        return
    y = x[keys if len(keys) > 1 else keys[0]]
    wanted = array[keys]
    assert y.shape == wanted.shape
    g.output(g.add(y, g.constant(np.float32(0))), name="y")
    assert np.array_equal(gq.reference(g, {"x": array}), wanted)


def test_of_unknown_dimensions():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for key in (slice(1, None), slice(None, -1), slice(None, None, -1), slice(-2, None), 0, -1, slice(None, 3),
                slice(None, 2, -1), (slice(None), None), (0, slice(1, None))):
        g = gq.Graph()
        x = g.input("x", dtype="f32", shape=(None, 6))
        g.output(g.relu(x[key]), name="y")
        assert np.array_equal(gq.reference(g, {"x": array}), array[key]), key


def test_all_is_the_value_itself(x):
    assert x[...] is x and x[:] is x and x[:, :] is x and x[()] is x
    assert x[0:2] is not x and x[0:2].node.op.name == "slice"


def test_only_what_is_needed_is_added(g, x):
    assert x[None].node.op.name == "static_reshape" and next(x[None].node.operands) is x
    y = x[:, 1:]
    assert y.node.attrs["axes"] == [1] or tuple(y.node.attrs["axes"]) == (1,)


@pytest.mark.parametrize("key, message", [
    (2, r"an index of x: f32\[2,3\]: must be in \[-2, 1\], got 2"), (-3, r"must be in \[-2, 1\], got -3"),
    ((0, 3), r"must be in \[-3, 2\], got 3"), (True, "must be an int, a slice, ... or None, got True"),
    (1.0, "got 1.0; use gather for arrays"), ([0], r"got \[0\]"), ((0, 0, 0), "takes 2 indices and one ..., got 3"),
    ((..., ...), "takes 2 indices and one ..., got 2"), (slice(None, None, 0), "a step must not be 0"),
    (slice(0.5, None), r"a slice must have ints, got slice\(0.5")])
def test_refusals(x, key, message):
    with pytest.raises(GraphError, match=message):
        x[key]


def test_refusals_of_unknown_shapes(g):
    x, y = g.input("x", dtype="f32", shape=(None, None)), g.input("y", dtype="f32", shape=None)
    with pytest.raises(GraphError, match="the rank must be known"):
        y[0]
    with pytest.raises(GraphError, match="at most one unknown dimension"):
        x[None]
    with pytest.raises(GraphError, match="nor go back from an index of an unknown dimension"):
        x[3::-1]
    assert x[0].shape == (None,) and x[:, None, 0].shape == (None, 1)
