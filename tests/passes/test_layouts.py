"""How each operation computes on channels-last tensors, behind a pool; rules are those that operations name."""

import numpy as np
import pytest

from graphq.ir.interpret import reference
from graphq.ir.op import OPS
from graphq.ir.parse import parse
from graphq.ir.verify import verify
from graphq.passes import channels_last
from graphq.passes.layouts import RULES
from graphq.testing import check_round_trip, random_inputs

POOLED = """%p = max_pool(x, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], kernel=[2,2], data_format="NCX")
"""


@pytest.mark.parametrize("text, changed, transposes", [
    ("%y = gelu(%p)", 2, 2),
    ("%y = type_cast(%p, dtype=bf16)", 2, 2),
    ("%y = clamp(%p, min=-1, max=1)", 2, 2),
    ("%y = reorder(%p)", 2, 2),
    ('%y = bias_add(%p, c, data_format="NCX")', 2, 2),
    ('%y = prelu(%p, c, data_format="NCX")', 2, 2),
    ("%y = prelu(%p, w1, per_channel_broadcast=false)", 2, 2),
    ("%y = prelu(%p, c11)", 2, 2),
    ('%y = batch_norm_inference(%p, c, c, c, v, epsilon=1, data_format="NCX")', 2, 2),
    ('%y, %m, %d = group_norm(%p, c, c, groups=2, data_format="NCX")', 2, 2),
    ("%y = add(%p, s)", 2, 2),
    ("%y = add(w1, %p)", 2, 2),
    ("%y = subtract(%p, c11)", 2, 2),
    ("%y = multiply(nc11, %p)", 2, 2),
    ("%y = maximum(%p, one)", 2, 2),
    ("%y = add(%p, %p)", 2, 2),
    ("%g = greater_equal(%p, s)\n %y = select(%g, %p, w1)", 3, 2),
    ('%y = quantize(%p, dtype=s8, qtype="per_channel", scales=[1,2,3,4])', 2, 2),
    ('%y = quantize(%p, dtype=s8, qtype="per_channel", axis=-1, scales=[1,2,3,4,5])', 2, 2),
    ('%y = dynamic_quantize(%p, v, dtype=u8, qtype="per_channel")', 2, 2),
    ("%y = dynamic_quantize(%p, s, dtype=u8)", 2, 2),
    ("%y = concat(%p, %p, axis=-3)", 1, 2),
    ("%q = concat(%p, %p, %p, axis=2)\n %y = reduce_max(%q, axes=[2])", 3, 2),
    ("%y = softmax(%p, axis=1)", 2, 2),
    ("%y, %t = softmax(%p, axis=-2, keep_stats=true)", 2, 2),
    ("%y = softmax(%p, axis=-1)", 1, 2),  # along the last axis in the given layout, as kernels work
    ("%y = log_softmax(%p, axis=2)", 2, 2),
    ("%y = log_softmax(%p)", 1, 2),
    ("%y = gen_index(%p, axis=1)", 2, 2),
    ("%y = reduce_max(%p, axes=[1], keep_dims=true)", 2, 1),
    ("%y = reduce_sum(%p)", 2, 2),
    ("%y = reduce_mean(%p, axes=[2,3])", 2, 1),
    ("%y = reduce_mean(%p, axes=[-1,-2], keep_dims=true)", 2, 1),
    ("%y = reduce_min(%p, axes=[1])", 2, 1),
    ("%y = reduce_l2(%p, axes=[2])", 2, 2),
    ("%y = reduce_sum(%p, axes=[0])", 1, 2),
    ("%y = static_reshape(%p, shape=[2,4,-1])", 2, 2),
    ("%0 = static_reshape(%p, shape=[2,4,20])\n %y = static_transpose(%0, order=[0,2,1])", 2, 1),
    ("%y = static_reshape(%p, shape=[2,80])", 1, 2),
    ("%y = dropout(%p, seed, seed, s)", 1, 2),
    ("%y = static_transpose(%p, order=[0,3,2,1])", 1, 3),
    ("%y = add(%p, chw)", 1, 2),
])
def test_operations_after_an_anchor(text, changed, transposes):
    """Behind a pool, whose source is reordered, and the result at the end where the layout reaches it."""
    inputs = ("x: f32[2,4,5,6], c: f32[4], v: f32[4], s: f32[], w1: f32[1], c11: f32[4,1,1], nc11: f32[2,4,1,1], "
              "chw: f32[4,4,5], one: f32[1,1,1,1], seed: s64[]")
    g = parse(f"graph({inputs}) {{\n{POOLED} {text}\n return %y\n}}")
    out = g.copy()
    assert channels_last(out) == changed
    verify(out)
    check_round_trip(out)
    data = random_inputs(g) | {"v": np.array([0.5, 1, 2, 3], np.float32), "s": np.array(0.25, np.float32)}
    got, wanted = (reference(x, data).astype(np.float64) for x in (out, g))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert sum(n.op.name == "static_transpose" for n in out.nodes) == transposes


def test_rules_are_those_that_operations_name():
    assert {x.layout for x in OPS.values()} - {None} == RULES.keys()
