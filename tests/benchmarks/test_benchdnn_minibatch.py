"""Which tensors have the minibatch as their first dimension: through every operation, as far as the axis stays one."""
import pytest
from benchdnn_minibatch import batch_tensors

import graphq as gq
from graphq.onednn.files import from_graph

SQUARES = "t0: f32[3,3], t1: f32[3,3]"


def carriers(body, inputs, result="%0"):
    """The numbers of the inputs that have the minibatch of the result."""
    g = gq.parse(f"graph({inputs}) {{\n {body}\n return {result} as t9\n}}")
    return {id for id in batch_tensors(from_graph(g)) if id < len(g.inputs)}


@pytest.mark.parametrize("body, inputs, wanted", [
    ("%0 = relu(t0)", "t0: f32[3,3]", {0}),
    ("%0 = static_transpose(t0, order=[1,0])", "t0: f32[3,3]", set()),
    ("%0 = static_transpose(t0, order=[0,2,1])", "t0: f32[3,2,2]", {0}),
    ("%0 = static_transpose(t0, order=[-2,-1])", "t0: f32[3,3]", {0}),
    ("%0 = static_transpose(t0, order=[-1,-2])", "t0: f32[3,3]", set()),
    ("%0 = reduce_sum(t0, axes=[0])", "t0: f32[3,3]", set()),
    ("%0 = reduce_mean(t0, axes=[-2])", "t0: f32[3,3]", set()),
    ("%0 = reduce_max(t0, axes=[-1])", "t0: f32[3,3]", {0}),
    ("%0 = reduce_max(t0, axes=[1,2], keep_dims=true)", "t0: f32[3,3,3]", {0}),
    ("%0 = reduce_max(t0, axes=[0,2])", "t0: f32[3,3,3]", set()),
    ("%0 = concat(t0, t1, axis=1)", "t0: f32[3,3], t1: f32[3,2]", {0, 1}),
    ("%0 = concat(t0, t1, axis=0)", "t0: f32[3,3], t1: f32[0,3]", set()),
    ("%0 = concat(t0, t1, axis=-2)", "t0: f32[3,3], t1: f32[0,3]", set()),
    ("%0 = concat(t0, t1, axis=-1)", SQUARES, {0, 1}),
    ("%0 = matmul(t0, t1)", SQUARES, {0}),
    ("%0 = matmul(t0, t1, transpose_a=true)", SQUARES, set()),
    ("%0 = matmul(t0, t1, transpose_b=true)", SQUARES, {0}),
    ("%0 = matmul(t0, t1, transpose_a=true)", "t0: f32[3,2,2], t1: f32[3,2,2]", {0, 1}),
    ("%0 = matmul(t0, t1)", "t0: f32[3,4,3], t1: f32[3,3]", {0}),
    ("%0 = add(t0, t1)", SQUARES, {0, 1}),
    ("%0 = add(t0, t1)", "t0: f32[3,3], t1: f32[3]", {0}),
    ("%0 = add(t0, t1)", "t0: f32[3,3], t1: f32[1,3]", {0}),
    ("%0 = select(t0, t1, t2)", "t0: boolean[3,3], t1: f32[3,3], t2: f32[1]", {0, 1}),
    ("%0 = prelu(t0, t1)", SQUARES, {0}),
    ("%0 = static_reshape(t0, shape=[3,2,2])", "t0: f32[3,4]", {0}),
    ("%0 = static_reshape(t0, shape=[4,3])", "t0: f32[3,4]", set()),
])
def test_an_operation(body, inputs, wanted):
    assert carriers(body, inputs) == wanted


def test_the_way_ends_where_an_axis_is_moved():
    body = "%0 = static_transpose(t0, order=[1,0])\n %1 = add(%0, t1)\n %2 = relu(%1)"
    assert carriers(body, SQUARES, "%2") == {1}


@pytest.mark.parametrize("rows, wanted", [(1, {0}), (3, {0, 1})])
def test_a_single_row_of_a_constant_is_no_minibatch(rows, wanted):
    g = gq.Graph()
    x, y = g.input("t0", shape=(rows, 4), dtype="f32"), g.input("t1", shape=(rows, 4), dtype="f32", property="constant")
    g.output(g.add(x, y), name="t9")
    assert {id for id in batch_tensors(from_graph(g)) if id < 2} == wanted
