"""What lane-wise expressions can be made of, asked before a partition is made: reasons, and what is not looked at."""
import pytest

import graphq as gq
from graphq.kernels.families import FAMILIES
from graphq.kernels.family.checks import check_lanes
from graphq.kernels.family.unsupported import Unsupported

DENSE = "graph(x: f32[4,8], w: f32[8,3], b: f32[3], c: {}) {{\n %0 = matmul(x, w, b)\n {}\n}}"


def reason(text, out=(4, 3), own=(0, 1), result=None, anchored=False):
    """Why no expression is made of a body whose first node is the anchor, if `own` says which operands it reads."""
    body = gq.parse(text)
    anchor = body.nodes[0] if own else None
    try:
        check_lanes(body, out, anchor, own=own, result=result and body.nodes[result].output, anchored=anchored)
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
    ("f32[3]", "%1 = less(%0, c)\n return %1", "no lane-wise rule for less"),
    ("f32[3]", "%1 = quantize(%0, dtype=f8_e4m3, scales=[0.5])\n return %1", "kernels do not quantize to f8_e4m3"),
    ("f32[3]", "%1 = add(c, b)\n return %1", "the result f32[3] has not the shape [4, 3]"),
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
