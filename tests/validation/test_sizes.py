"""Sizes that are drawn for open dimensions: equal ones first, then unequal ones and 0 and 1 for each axis."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.validation import sizes
from graphq.validation.sizes import with_sizes


def nothing(graph):
    pass


def shapes(graph, **options):
    return [{v.name: v.type.dims for v in g.inputs} for g in with_sizes(graph, nothing, **options)]


def test_equal_sizes_then_those_of_fixed_dimensions():
    g = gq.parse("graph(x: f32[?,5], y: f32[7,*]) {\n %0 = relu(x)\n return %0\n}".replace("f32[7,*]", "f32[7,9]"))
    drawn = [s["x"] for s in sizes._equal(g)]
    assert drawn == [(n, 5) for n in (*sizes.SAME, 5, 7, 9)]
    unknown = gq.parse("graph(x: f32[*], y: f32[?]) {\n %0 = relu(x)\n return %0\n}")
    drawn = list(sizes._equal(unknown))
    assert [len(s["x"]) for s in drawn] == [rank for rank in sizes.RANKS for _ in sizes.SAME]
    assert drawn[0] == {"x": (2, 2), "y": (2,)} and drawn[len(sizes.SAME)]["x"] == (2,) * 4


def test_unequal_sizes():
    base = {"x": (2, 5, 2), "y": (2,)}
    drawn = list(sizes._unequal(base, [("x", 0), ("x", 2), ("y", 0)], np.random.default_rng(0)))
    assert len(drawn) == sizes.DRAWS and all(s["x"][1] == 5 and s["y"] == s["x"][:1] for s in drawn)
    for k, s in enumerate(drawn):
        a, _, b = s["x"]
        assert a != b and all((2 < d <= 7 if k % 2 == 0 else d % 2 == 0 and 2 <= d <= 10) for d in (a, b))
    assert len({s["x"] for s in drawn}) > 3
    assert drawn != list(sizes._unequal(base, [("x", 0), ("x", 2), ("y", 0)], np.random.default_rng(1)))


def test_the_same_axis_has_one_size_in_all_inputs():
    g = gq.parse("graph(x: f32[?,3,?], y: f32[?,3,1]) {\n %0 = add(x, y)\n return %0\n}")
    found = shapes(g)
    assert found[0] == {"x": (2, 3, 2), "y": (2, 3, 1)}
    a, b = found[1]["x"][0], found[1]["x"][2]
    assert a != b and found[1]["y"] == (a, 3, 1)
    assert found[2:] == [{"x": x, "y": (x[0], 3, 1)} for x in ((0, 3, b), (1, 3, b), (a, 3, 0), (a, 3, 1))]
    assert shapes(g) == found and shapes(g, seed=3)[0] == found[0]


def test_what_is_not_accepted_is_left_out():
    g = gq.parse("graph(x: f32[?]) {\n %0 = relu(x)\n return %0\n}")
    asked = []
    assert len(with_sizes(g, asked.append)) >= 3 and asked == []  # all inner shapes are known
    with pytest.raises(GraphError, match="runs with no open dimensions of 2, 3, 1, 8, 16, 32, 64 or 224: "):
        with_sizes(gq.parse("graph(x: f32[?]) {\n %0 = static_reshape(x, shape=[5,7,11])\n return %0\n}"), nothing)
