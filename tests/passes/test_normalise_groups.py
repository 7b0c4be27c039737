"""Group normalisation becomes layer normalisation of reshaped rows."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.text import parse
from graphq.passes.normalise_groups import NormaliseGroupsAsRows
from graphq.testing import check_pass, random_inputs

INPUTS = "x: f32[2,4,3,5], v: f32[4], w: f32[4]"
CLOSE = dict(rtol=1e-5, atol=1e-5)


def test_channels_first():
    check_pass(NormaliseGroupsAsRows(), count=1, rtol=1e-5, atol=1e-5, before=f"""graph({INPUTS}) {{
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
    check_pass(NormaliseGroupsAsRows(), count=1, rtol=1e-5, atol=1e-5, before="""graph(x: f32[2,3,5,4]) {
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
def test_what_stays(statement, inputs):
    results = "%0" if "keep_stats" in statement else "%0, %1, %2"
    g = parse(f"graph({inputs}) {{ {results} = {statement}\n return {results} }}")
    assert NormaliseGroupsAsRows()(g) == 0


@pytest.mark.parametrize("groups", [1, 2, 12])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("affine", [True, False])
def test_compiled(level, groups, data_format, affine):
    shape = (2, 12, 5, 7) if data_format == "NCX" else (2, 5, 7, 12)
    g = gq.Graph()
    x, v, w = g.input("x", dtype="f32", shape=shape), *(g.input(n, dtype="f32", shape=(12,)) for n in "vw")
    y = g.group_norm(x, v, w, groups=groups, keep_stats=False, use_affine=affine, data_format=data_format)
    g.output(g.relu(y), name="y")
    model, inputs = gq.compile(g, isa=level, strict=True), random_inputs(g)
    got = model(**inputs)
    assert got.tobytes() == model.formula(**inputs).tobytes()
    np.testing.assert_allclose(got, gq.reference(g, inputs), **CLOSE)
