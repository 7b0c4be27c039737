"""Axes of operations along rows move to the end, by views where that is enough.

Group normalization becomes layer normalization of reshaped rows. Local response normalization becomes a pool of squares
across channels, and elementwise operations.
"""
import numpy as np
import pytest
from all_pairs import all_pairs
from levels import WIDTHS

import graphq as gq
from graphq.ir.text import parse
from graphq.passes.normalizations import NormalizeChannelsAsPool, NormalizeGroupsAsRows, RowsLast
from graphq.passes.pipeline import run_passes
from graphq.testing import check_pass, check_same_numbers, random_inputs


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


INPUTS = "x: f32[2,4,3,5], v: f32[4], w: f32[4]"
CLOSE = dict(rtol=1e-5, atol=1e-5)


def test_channels_first():
    check_pass(NormalizeGroupsAsRows(), count=1, rtol=1e-5, atol=1e-5, before=f"""graph({INPUTS}) {{
        %y = group_norm(x, v, w, groups=2, keep_stats=false, epsilon=0.1, data_format="NCX")
        return %y }}""", after=f"""
      graph({INPUTS}) {{
        %0 = static_reshape(x, shape=[2, 2, 30])
        %1 = layer_norm(%0, keep_stats=false, use_affine=false, epsilon=0.1)
        %2 = static_reshape(%1, shape=[2, 4, 3, 5])
        %3 = static_reshape(v, shape=[4, 1, 1])
        %4 = static_reshape(w, shape=[4, 1, 1])
        %5 = multiply(%2, %3)
        %y = add(%5, %4)
        return %y
      }}""")


def test_channels_last():
    check_pass(NormalizeGroupsAsRows(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,3,5,4]) {
        %y = group_norm(x, groups=2, keep_stats=false, use_affine=false)
        return %y }""", after="""
      graph(x: f32[2,3,5,4]) {
        %0 = static_reshape(x, shape=[2, 15, 2, 2])
        %1 = static_transpose(%0, order=[0, 2, 1, 3])
        %2 = static_reshape(%1, shape=[2, 2, 30])
        %3 = layer_norm(%2, keep_stats=false, use_affine=false)
        %4 = static_reshape(%3, shape=[2, 2, 15, 2])
        %5 = static_transpose(%4, order=[0, 2, 1, 3])
        %y = static_reshape(%5, shape=[2, 3, 5, 4])
        return %y
      }""")


@pytest.mark.parametrize("statement,inputs", [
    ("group_norm(x, v, w, groups=2, data_format=\"NCX\")", INPUTS),
    ("group_norm(x, groups=2, keep_stats=false, use_affine=false)", "x: bf16[2,3,4]"),
    ("group_norm(x, groups=2, keep_stats=false, use_affine=false)", "x: f32[0,3,4]"),
    ("group_norm(x, groups=2, keep_stats=false, use_affine=false)", "x: f32[?,3,4]"),
])
def test_what_stays_of_normalize_groups(statement, inputs):
    results = "%0" if "keep_stats" in statement else "%0, %1, %2"
    g = parse(f"graph({inputs}) {{ {results} = {statement}\n return {results} }}")
    assert NormalizeGroupsAsRows()(g) == 0


@pytest.mark.parametrize("width, groups, data_format, affine", all_pairs(
    WIDTHS, [1, 2, 12], ["NCX", "NXC"], [True, False]), indirect=["width"])
def test_compiled_of_normalize_groups(width, groups, data_format, affine):
    shape = (2, 12, 5, 7) if data_format == "NCX" else (2, 5, 7, 12)
    g = gq.Graph()
    x, v, w = g.input("x", dtype="f32", shape=shape), *(g.input(n, dtype="f32", shape=(12,)) for n in "vw")
    y = g.group_norm(x, v, w, groups=groups, keep_stats=False, use_affine=affine, data_format=data_format)
    g.output(g.relu(y), name="y")
    model, inputs = gq.compile(g, isa=width, strict=True), random_inputs(g)
    got = model(**inputs)
    assert got.tobytes() == model.formula(**inputs).tobytes()
    np.testing.assert_allclose(got, gq.reference(g, inputs), **CLOSE)


POOL = "kernel=[3], strides=[1], pads_begin=[1], pads_end=[1], exclude_pad=false, in_order=true"


def test_channels_first_of_normalize_channels():
    check_pass(NormalizeChannelsAsPool(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,4,3,5]) {
        %y = lrn(x, size=3, alpha=0.5, bias=2, data_format="NCX")
        return %y }""", after=f"""
      graph(x: f32[2,4,3,5]) {{
        %0 = static_reshape(x, shape=[2, 4, 15])
        %1 = square(%0)
        %2 = avg_pool(%1, {POOL})
        %3 = constant(value=f32[]{{0.5}})
        %4 = multiply(%2, %3)
        %5 = constant(value=f32[]{{2.0}})
        %6 = add(%4, %5)
        %7 = sqrt(%6)
        %8 = sqrt(%7)
        %9 = multiply(%7, %8)
        %10 = divide(%0, %9)
        %y = static_reshape(%10, shape=[2, 4, 3, 5])
        return %y
      }}""")


def test_channels_last_of_normalize_channels():
    check_pass(NormalizeChannelsAsPool(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,3,5,4]) {
        %y = lrn(x, size=2, beta=1)
        return %y }""", after="""
      graph(x: f32[2,3,5,4]) {
        %0 = static_reshape(x, shape=[2, 15, 4])
        %1 = static_transpose(%0, order=[0, 2, 1])
        %2 = square(%1)
        %3 = avg_pool(%2, kernel=[2], strides=[1], pads_begin=[0], pads_end=[1], exclude_pad=false, in_order=true)
        %4 = constant(value=f32[]{1e-04})
        %5 = multiply(%3, %4)
        %6 = constant(value=f32[]{1.0})
        %7 = add(%5, %6)
        %8 = divide(%1, %7)
        %9 = static_transpose(%8, order=[0, 2, 1])
        %y = static_reshape(%9, shape=[2, 3, 5, 4])
        return %y
      }""")


@pytest.mark.parametrize("inputs,attrs,reason", [
    ("x: f32[2,?,5]", "size=3", "is empty, or its shape is not known"),
    ("x: f32[0,4,5]", "size=3", "is empty, or its shape is not known"),
    ("x: f32[2,5,4]", "size=5", "its window of 5 is wider than 4 channels"),
    ("x: f32[2,4,5]", 'size=5, data_format="NCX"', "wider than 4 channels"),
    ("x: f32[2,5,4]", "size=3, bias=0", "the root of a negative number may be needed: bias 0"),
    ("x: f32[2,5,4]", "size=3, alpha=-0.1", "alpha -0.1"),
    ("x: f16[2,5,4]", "size=3", "f16 would be rounded after each operation"),
])
def test_what_stays_of_normalize_channels(inputs, attrs, reason):
    g = parse(f"graph({inputs}) {{ %0 = lrn(x, {attrs})\n return %0 }}")
    (refusal,) = run_passes(g, [NormalizeChannelsAsPool()])
    assert reason in str(refusal) and [n.op.name for n in g.nodes] == ["lrn"]


@pytest.mark.parametrize("width, shape, attrs, data_format", all_pairs(
    WIDTHS, [(2, 7, 5, 3), (1, 96, 6, 7), (3, 4, 9), (2, 5, 2, 3, 4), (3, 8)],
    [{}, {"alpha": 2.0, "beta": 0.5, "bias": 0.1}, {"alpha": 0.3, "beta": 1.0},
     {"alpha": 3.0, "beta": 1.3, "bias": 0.01}],
    ["NCX", "NXC"]), indirect=["width"])
def test_compiled_of_normalize_channels(width, shape, attrs, data_format):
    """Bit for bit the formula, and near the reference, in kernels alone."""
    shape = shape if data_format == "NCX" else (shape[0], *shape[2:], shape[1])
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=shape)
    g.output(g.lrn(x, size=4, **attrs, data_format=data_format), name="y")
    model, inputs = gq.compile(g, isa=width, strict=True), random_inputs(g)
    got = model(**inputs)
    assert got.tobytes() == model.formula(**inputs).tobytes()
    np.testing.assert_allclose(got, gq.reference(g, inputs), rtol=1e-6, atol=1e-7)


def test_a_bare_number_of_open_images_and_pixels():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 6, None, None))
    g.output(g.lrn(x, size=3, alpha=0.5, data_format="NCX"), name="y")
    model = gq.compile(g)
    for shape in ((1, 6, 3, 5), (4, 6, 9, 2)):
        array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(model(x=array), gq.reference(g, {"x": array}), rtol=1e-6)
    assert "lrn" not in model.explain()
