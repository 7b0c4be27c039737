"""Graphs cut where shapes depend on data or bodies run: what goes where, and that the parts together are the whole."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.plan.stages import in_one_plan, stages

BRANCHES = """then_body=graph(a: f32[3]) {\n %0 = exp(a)\n return %0\n}, else_body=graph(a: f32[3]) {\n %0 = relu(a)
    return %0\n}"""
GRAPHS = {  # text; operations of the cut
    "a body of known shapes": (f"""graph(x: f32[3], c: boolean[]) {{\n %0 = abs(x)\n %1 = if_else(c, %0, {BRANCHES})
        %2 = add(%1, %0)\n %3 = tanh(x)\n return %2, %3, %1\n}}""", {"if_else"}),
    "a body after a body": (f"""graph(x: f32[3], c: boolean[]) {{\n %1 = if_else(c, x, {BRANCHES})\n %2 = square(%1)
        %3 = if_else(c, %2, {BRANCHES})\n return %3\n}}""", {"if_else"}),
    "shapes of data": ("""graph(x: f32[3], axes: s32[1]) {\n %0 = square(x)\n %1 = reduce_sum(%0, axes)
        %2 = add(%1, %0)\n return %2, %0\n}""", {"reduce_sum"}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_parts_are_the_whole(name):
    text, cut = GRAPHS[name]
    g = gq.parse(text)
    assert not in_one_plan(g)
    parts = stages(g)
    assert in_one_plan(parts.head) and {n.op.name for n in parts.cut.nodes} <= cut and parts.cut.nodes
    feeds = {"x": np.float32([-1.5, 0, 2]), "c": np.asarray(True), "axes": np.int32([0])}
    values = dict(feeds)
    for part in parts[:3]:
        if part.outputs:
            out = gq.reference(part, {v.name: values[v.name] for v in part.inputs})
            values |= named_outputs(part.output_names, out)
    want = named_outputs(g.output_names, gq.reference(g, {v.name: feeds[v.name] for v in g.inputs}))
    for got, expected in zip((values[n] for n in parts.outputs), want.values(), strict=True):
        np.testing.assert_array_equal(got, expected)
