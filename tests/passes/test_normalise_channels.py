"""Local response normalisation becomes a pool of squares across channels, and elementwise operations."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.text import parse
from graphq.passes.normalise_channels import NormaliseChannelsAsPool
from graphq.passes.pipeline import run_passes
from graphq.testing import check_pass, random_inputs

POOL = "kernel=[3], strides=[1], pads_begin=[1], pads_end=[1], exclude_pad=false, in_order=true"


def test_channels_first():
    check_pass(NormaliseChannelsAsPool(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,4,3,5]) {
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


def test_channels_last():
    check_pass(NormaliseChannelsAsPool(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,3,5,4]) {
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
    ("x: f32[2,?,5]", "size=3", "no channels that are known"),
    ("x: f32[0,4,5]", "size=3", "no channels that are known"),
    ("x: f32[2,5,4]", "size=5", "its window of 5 is wider than 4 channels"),
    ("x: f32[2,4,5]", 'size=5, data_format="NCX"', "wider than 4 channels"),
    ("x: f32[2,5,4]", "size=3, bias=0", "a number below zero may be wanted: bias 0"),
    ("x: f32[2,5,4]", "size=3, alpha=-0.1", "alpha -0.1"),
    ("x: f16[2,5,4]", "size=3", "f16 would be rounded after each operation"),
])
def test_what_stays(inputs, attrs, reason):
    g = parse(f"graph({inputs}) {{ %0 = lrn(x, {attrs})\n return %0 }}")
    (refusal,) = run_passes(g, [NormaliseChannelsAsPool()])
    assert reason in str(refusal) and [n.op.name for n in g.nodes] == ["lrn"]


@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (1, 96, 6, 7), (3, 4, 9), (2, 5, 2, 3, 4), (3, 8)], ids=str)
@pytest.mark.parametrize("attrs", [{}, {"alpha": 2.0, "beta": 0.5, "bias": 0.1}, {"alpha": 0.3, "beta": 1.0},
                                   {"alpha": 3.0, "beta": 1.3, "bias": 0.01}], ids=str)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_compiled(level, shape, attrs, data_format):
    """Bit for bit the formula, and near the reference, in kernels alone."""
    shape = shape if data_format == "NCX" else (shape[0], *shape[2:], shape[1])
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=shape)
    g.output(g.lrn(x, size=4, **attrs, data_format=data_format), name="y")
    model, inputs = gq.compile(g, isa=level, strict=True), random_inputs(g)
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
