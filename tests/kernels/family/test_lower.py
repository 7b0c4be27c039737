"""Refusals: texts with types and axes, and the same in other words.

What lane-wise expressions can be made of: reasons, and what is not looked at. Fusions lower a body to know what kernels
refuse, and the plan takes what they made if nothing changed since then.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import FAMILIES, family_named, lower_partition
from graphq.kernels.family import lower
from graphq.kernels.family.epilogue import EpilogueBuilder, translate
from graphq.kernels.family.unsupported import Axes, Unsupported, called_axes
from graphq.kernels.lanes.expression import acc
from graphq.passes import Fuse
from graphq.rewrite.partition import carve


@pytest.fixture
def value():
    return gq.Graph().input("x", dtype="u8", shape=(2, 3, 4))


def test_axes(value):
    assert called_axes([]) == "no axes" and called_axes([1]) == "axis 1" and called_axes([0, 2, 3]) == "axes 0, 2 and 3"
    assert str(Axes(value, (-1,))) == "axis 2" and str(Axes(value, (2, -3))) == "axes 0 and 2"
    assert str(Axes(gq.Graph().input("y", dtype="u8", shape=()), (0,))) == "axis 0"


def test_mentions_are_filled_in(value):
    e = Unsupported("{own} of {source}", "move {own}", 1, own=Axes(value, (1,)), source=value)
    assert (str(e), e.edit, e.operand) == ("axis 1 of u8[2,3,4]", "move axis 1", 1)
    told = e.told(lambda mention: "A" if isinstance(mention, Axes) else "B")
    assert (str(told), told.edit, told.operand) == ("A of B", "move A", 1)


def test_without_mentions_the_text_stays():
    e = Unsupported("takes {3}")
    assert (str(e), e.edit, e.operand, e.mentions) == ("takes {3}", "", None, {})
    assert str(e.told(str)) == "takes {3}"


DENSE = "graph(x: f32[4,8], w: f32[8,3], b: f32[3], c: {}) {{\n %0 = matmul(x, w, b)\n {}\n}}"


def reason(text, out=(4, 3), own=(0, 1), result=None, anchored=False):
    """Why no expression is made of a body whose first node is the anchor, if `own` says which operands it reads."""
    body = gq.parse(text)
    anchor = body.nodes[0] if own else None
    try:
        translate(EpilogueBuilder(out, anchored), body, anchor and (anchor, lambda args: acc("f32")), own=own,
                  result=result and body.nodes[result].output)
    except Unsupported as e:
        return str(e)
    return None


@pytest.mark.parametrize("c, chain", [
    ("f32[3]", "%1 = add(%0, c)\n return %1"), ("f32[4,1]", "%1 = multiply(c, %0)\n return %1"),
    ("f32[]", "%1 = clamp(%0, min=0, max=1)\n return %1"), ("boolean[4,3]", "%1 = select(c, %0, b)\n return %1"),
    ("s32[4,3]", "%1 = cast(c, dtype=f32)\n %2 = add(%0, %1)\n return %2"),
    ("u8[4,3]", "%1 = dequantize(c, scales=[0.5])\n %2 = add(%0, %1)\n return %2"),
    ("f32[]", "%1 = quantize(%0, dtype=s8, scales=[0.5])\n return %1")])
def test_what_an_anchor_reads_by_itself_need_not_fit_its_result(c, chain):
    text = DENSE.format(c, chain)
    assert reason(text) is None
    assert reason(text, own=(0,)) == "an operand of shape [8, 3] does not broadcast into the result [4, 3]"
    assert reason(text, own=(1,)) == "an operand of shape [4, 8] does not broadcast into the result [4, 3]"


@pytest.mark.parametrize("c, chain, said", [
    ("f32[2,4,3]", "%1 = add(%0, c)\n return %1",
     "an operand of shape [2, 4, 3] does not broadcast into the result [4, 3]"),
    ("f64[4,3]", "%1 = cast(c, dtype=f32)\n %2 = add(%0, %1)\n return %2", "kernels do not load f64"),
    ("s64[4,3]", "%1 = cast(c, dtype=f32)\n %2 = add(%0, %1)\n return %2", "kernels do not load s64"),
    ("boolean[4,3]", "%1 = cast(c, dtype=f32)\n %2 = add(%0, %1)\n return %2", "kernels do not cast boolean to f32"),
    ("f32[3]", "%1 = softmax(%0)\n return %1", "no lane-wise rule for softmax"),
    ("f32[3]", "%1 = static_transpose(%0, order=[1,0])\n return %1", "no lane-wise rule for static_transpose"),
    ("f32[3]", "%1 = less(%0, c)\n return %1", "kernels do not store boolean"),
    ("boolean[3]", "%1 = equal(c, c)\n %2 = select(%1, %0, %0)\n return %2", "kernels do not compare booleans"),
    ("f32[3]", "%1 = cast(%0, dtype=u16)\n return %1", "kernels do not cast f32 to u16"),
    ("f32[3]", "%1 = add(c, b)\n return %1", "the result f32[3] does not have the shape [4, 3]"),
])
def test_reasons(c, chain, said):
    assert reason(DENSE.format(c, chain)) == said


def test_a_part_of_a_body_is_all_that_is_looked_at():
    text = DENSE.format("f32[3]", "%1 = add(%0, c)\n %2 = softmax(%1)\n return %2")
    assert "softmax" in reason(text) and reason(text, result=1) is None


@pytest.mark.parametrize("anchored, dtype, scale, refused", [
    (True, "u8", "1e-39", True), (False, "u8", "1e-39", False), (True, "u16", "1e-39", False),
    (True, "s8", "1e-37", False)])
def test_scales_without_a_reciprocal(anchored, dtype, scale, refused):
    chain = f"%1 = quantize(%0, dtype={dtype}, scales=[{scale}])\n return %1"
    assert (reason(DENSE.format("f32[]", chain), anchored=anchored) is not None) == refused


BODIES = {
    "convolution": "graph(x: f32[1,6,6,4], w: f32[3,4,3,3], b: f32[3]) {\n %0 = convolution(x, w, b, strides=[1,1], "
                   "pads_begin=[0,0], pads_end=[0,0], dilations=[1,1], data_format=\"NXC\", weights_format=\"OIX\")\n "
                   "return %0\n}",
    "matmul": DENSE.format("f32[3]", "%1 = add(%0, c)\n return %1"),
    "pool": "graph(x: f32[1,6,6,4]) {\n %0 = max_pool(x, strides=[2,2], kernel=[2,2], pads_begin=[0,0], "
            "pads_end=[0,0], data_format=\"NXC\")\n %1 = relu(%0)\n return %1\n}",
    "row": "graph(x: f32[4,8]) {\n %0 = reduce_sum(x, axes=[1], keep_dims=true)\n %1 = relu(%0)\n return %1\n}",
    "eltwise": "graph(x: f32[4,8], y: f32[8]) {\n %0 = add(x, y)\n return %0\n}",
}


@pytest.mark.parametrize("name", BODIES)
def test_families_compute_floats_that_the_graph_gives_them(name):
    """Whatever shape the anchor's own operands have."""
    family = next(f for f in FAMILIES if f.name == name)
    body = gq.parse(BODIES[name])
    constants = [None] * len(body.inputs)
    assert family.refuses(body, constants) is None
    assert family.lower(body, constants).out == body.outputs[0].shape


def test_constants_of_now_count():
    """A partition whose constant operand becomes another is lowered with that one."""
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    g.output(g.relu(g.add(x, np.array([0, 1, 2], np.float32))))
    assert Fuse("eltwise", floats=True)(g) == 1
    node, data = g.nodes[-1], np.array([0, 1, 3], np.float32)
    with g.before(node):
        g.replace_uses(node.inputs[1], g.constant(data))
    zeros = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(lower_partition(node).formula([zeros, data]), np.broadcast_to(data, (2, 3)))


def test_a_quantize_whose_reciprocal_is_no_f32_is_refused_after_an_anchor():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.5])
    w = g.dequantize(g.constant(np.ones((8, 8), np.int8)), scales=[0.5])
    g.output(g.quantize(g.matmul(x, w), dtype="u8", scales=[1e-39]))
    body, operands, _ = carve(g, [n for n in g.nodes if n.op.name != "constant"])
    reason = family_named("matmul").refuses(body, [v.data for v in operands])
    assert str(reason) == "1/scale of a quantize is not a finite f32"
    with pytest.raises(Unsupported, match="1/scale of a quantize"):
        family_named("matmul").lower(body, [v.data for v in operands])


def test_a_model_lowers_each_layer_once(monkeypatch):
    """With a bias in s32 and a quantized operand of the chain, whose constants fold and become one."""
    g = gq.Graph()
    x = y = g.input("x", shape=(4, 8), dtype="u8")
    made = []
    monkeypatch.setattr(lower, "translate", lambda *args, **kws: made.append(args) or translate(*args, **kws))
    for _ in range(3):
        w = g.dequantize(g.constant(np.ones((8, 8), np.int8)), scales=[0.5])
        bias = g.dequantize(g.constant(np.arange(8, dtype=np.int32)), scales=[0.01])
        half = g.dequantize(g.constant(np.array([1], np.uint8)), scales=[0.5])
        z = g.multiply(g.matmul(g.dequantize(y, scales=[0.02]), w, bias), half)
        y = g.quantize(z, dtype="u8", scales=[0.1])
    g.output(y)
    model = gq.compile(g)
    assert len(made) == 3 == sum(n.op.name == "partition" for n in model.graph.nodes)
    data = np.arange(32, dtype=np.uint8).reshape(x.type.dims)
    np.testing.assert_array_equal(model(data), model.formula(data))
    assert model.coverage().share == 1
