"""Masks join the partitions of their users: which nodes are masks, and the copies that are made of them."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes import duplicate_masks
from graphq.passes.fuse import is_large_mask, is_mask
from graphq.testing import check_pass

INPUTS = ("x: f32[2,6,7], m: boolean[6,7], r: s32[6,1], c: s32[7], wide: s64[7], big: f32[1000,300], "
          "cond: boolean[1000,300]")


def node(statement, name):
    g = gq.parse(f"graph({INPUTS}) {{\n %z = constant(value=f32[]{{0}})\n {statement}\n return %0\n}}")
    return next(n for n in g.nodes if n.op.name == name)


@pytest.mark.parametrize("statement, name, wanted", [
    ("%0 = select(m, %z, %z)", "select", True), ("%0 = less_equal(c, r)", "less_equal", True),
    ("%0 = less(wide, wide)", "less", False), ("%0 = equal(m, m)", "equal", False),
    ("%1 = select(cond, %z, %z)\n %0 = select(cond, %1, %z)", "select", True),
    ("%0 = logical_and(cond, cond)", "logical_and", False), ("%0 = logical_not(m)", "logical_not", True),
    ("%1 = less(r, c)\n %2 = greater(r, c)\n %0 = logical_or(%1, %2)", "logical_or", True),
    ("%0 = relu(x)", "relu", False), ("%0 = select(cond, %z, %z)", "select", True),
    ("%0 = select(cond, big, %z)", "select", False), ("%0 = greater(big, %z)", "greater", False)])
def test_which_nodes_are_masks(statement, name, wanted):
    assert is_mask(node(statement, name)) is wanted


def test_large_masks_of_constants_stay():
    g = gq.Graph()
    for n in (1000, 1100):
        rows, columns = np.arange(n, dtype=np.int32)[:, None], np.arange(n, dtype=np.int32)
        x = g.input(f"x{n}", shape=(n, n), dtype="f32")
        g.output(g.select(g.less_equal(g.constant(columns), g.constant(rows)), x, np.float32(0)), name=f"y{n}")
    assert [is_large_mask(x) for x in g.nodes_of({"less_equal"})] == [False, True]
    inputs = gq.testing.random_inputs(g)
    want = gq.reference(g, inputs)
    assert gq.passes.fold_constants(g) == 1
    for name, got in gq.compile(g)(inputs).items():
        np.testing.assert_array_equal(got, want[name])


def test_each_user_gets_a_mask():
    check_pass(duplicate_masks, """
        %z = constant(value=f32[]{0})
        %0 = less_equal(c, r)
        %1 = select(%0, %z, %z)
        %2 = add(x, %1)
        %3 = multiply(x, %1)
        %4 = static_reshape(%1, shape=[42])
        return %2, %3, %4""", """
        %z = constant(value=f32[]{0})
        %0 = less_equal(c, r)
        %1 = select(%0, %z, %z)
        %2 = less_equal(c, r)
        %3 = select(%2, %z, %z)
        %4 = add(x, %3)
        %5 = less_equal(c, r)
        %6 = select(%5, %z, %z)
        %7 = multiply(x, %6)
        %8 = static_reshape(%1, shape=[42])
        return %4, %7, %8""", inputs="x: f32[2,6,7], r: s32[6,1], c: s32[7]", count=4)


@pytest.mark.parametrize("returned, count", [(False, 1), (True, 2)])
def test_a_mask_that_is_returned_is_left_to_the_return(returned, count):
    g = gq.parse(f"""graph(x: f32[2,6,7], r: s32[6,1], c: s32[7]) {{
        %0 = less_equal(c, r)
        %1 = select(%0, x, x)
        %2 = logical_not(%0)
        return %1, %2{", %0" * returned} }}""")
    assert duplicate_masks(g) == count
    assert len(g.nodes_of({"less_equal"})) == 1 + count


def test_masks_join_the_partition_of_their_user():
    g = gq.parse(f"""graph({INPUTS}) {{
        %z = constant(value=f32[]{{0}})
        %i = constant(value=f32[]{{-inf}})
        %0 = less_equal(c, r)
        %1 = select(%0, %z, %i)
        %2 = select(m, %z, %1)
        %3 = add(x, %2)
        %4 = softmax(%3, axis=-1)
        return %4
    }}""")
    model, x = gq.compile(g, strict=True), gq.testing.random_inputs(g)
    x |= {"r": np.arange(6, dtype=np.int32)[:, None], "c": np.arange(7, dtype=np.int32)}
    assert "row partition (less_equal, select, select, add, softmax)" in model.explain()
    np.testing.assert_allclose(model(x), gq.reference(g, x), rtol=1e-6)
