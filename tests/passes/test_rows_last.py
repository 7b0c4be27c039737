"""Axes of operations along rows move to the end, by views where that is enough."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.text import parse
from graphq.passes.rows_last import RowsLast
from graphq.testing import check_pass, check_same_numbers


def moved(statement, inputs="x: f32[2,5,7,3], m: f32[7,3]"):
    """The operations that the pass leaves, and their numbers."""
    g = parse(f"graph({inputs}) {{ %0 = {statement}\n return %0 }}")
    before = g.copy()
    assert RowsLast()(g) <= 1
    check_same_numbers(before, g)
    return [n.op.name for n in g.nodes]


def test_softmax_along_an_inner_axis():
    check_pass(RowsLast(), before="graph(x: f32[2,5,7]) {\n %y = softmax(x, axis=1)\n return %y }", count=1, after="""
      graph(x: f32[2,5,7]) {
        %0 = static_transpose(x, order=[0, 2, 1])
        %1 = static_reshape(%0, shape=[2, 7, 5])
        %2 = softmax(%1, axis=2)
        %3 = static_reshape(%2, shape=[2, 7, 5])
        %y = static_transpose(%3, order=[0, 2, 1])
        return %y
      }""")


def test_views_are_enough_where_nothing_lies_behind():
    inputs = "x: f32[2,5,1,1]"
    assert moved("softmax(x, axis=1)", inputs) == ["static_reshape", "softmax", "static_reshape"]
    assert moved("reduce_sum(x, axes=[1,2], keep_dims=true)", inputs) == ["static_reshape", "reduce_sum",
                                                                          "static_reshape"]


@pytest.mark.parametrize("statement", ["reduce_max(x, axes=[3])", "reduce_sum(x, axes=[2,3], keep_dims=true)",
                                       "reduce_mean(x, axes=[0,1,2,3])", "rms_norm(x, m, begin_norm_axis=-2)",
                                       "layer_norm(x, m, m, keep_stats=false, begin_norm_axis=2)"])
def test_last_axes_are_merged(statement):
    assert "static_transpose" not in moved(statement)


@pytest.mark.parametrize("statement", ["reduce_min(x, axes=[0,2])", "reduce_l2(x, axes=[1], keep_dims=true)",
                                       "reduce_mean(x, axes=[1,3])", "log_softmax(x, axis=0)"])
def test_axes_that_move(statement):
    assert "static_transpose" in moved(statement)


@pytest.mark.parametrize("statement", ["softmax(x, axis=-1)", "reduce_sum(x, axes=[3], keep_dims=true)",
                                       "reduce_mean(x, axes=[1,2])", "reduce_sum(x)", "layer_norm(x, keep_stats=false, "
                                       "use_affine=false)"])
def test_what_stays(statement):
    assert len(moved(statement)) == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_compiled(axis):
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(6, 9, 11))
    g.output(g.add(g.softmax(x, axis=axis), g.reduce_max(x, axes=[axis], keep_dims=True)), name="y")
    arrays = gq.testing.random_inputs(g)
    model = gq.compile(g, strict=True)
    got = model(**arrays)
    assert got.tobytes() == model.formula(**arrays).tobytes()
    np.testing.assert_allclose(got, gq.reference(g, arrays), rtol=1e-6)
