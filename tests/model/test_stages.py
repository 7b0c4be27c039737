"""Graphs cut where shapes depend on data or bodies run: what goes where, and that the parts together are the whole."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.model.staged import stages
from graphq.plan.plan import STAGES, in_one_plan

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


def ops(graph):
    return [n.op.name for n in graph.nodes]


def test_what_goes_where():
    g = gq.parse("""graph(x: f32[3], q: u8[3], axes: s32[1], y: f32[3]) {
      %a = square(x)
      %d = dequantize(q, scales=[0.5])
      %t = static_reshape(%d, shape=[1,3])
      %u = static_reshape(y, shape=[3,1])
      %s = reduce_sum(%a, axes)
      %0 = add(%s, %t)
      %1 = add(%a, %0)
      %z = relu(%u)
      %w = constant(value=f32[1]{2.0})
      %2 = multiply(%1, %w)
      return %2, %z as z, %s, %w as w
    }""")
    parts = stages(g)
    assert [ops(part) for part in parts[:3]] == [
        ["square", "static_reshape", "relu", "constant"], ["reduce_sum"],
        ["constant", "dequantize", "static_reshape", "add", "add", "multiply"]]
    assert [[v.name for v in part.inputs] for part in parts[:3]] == [["x", "y"], ["a", "axes"], ["q", "s", "a"]]
    assert [[*part.output_names] for part in parts[:3]] == [["a", "z"], ["s"], ["value 3"]]
    assert parts.outputs == ("value 3", "z", "s", "w") and parts.constants["w"].tolist() == [2]
    assert parts.head.meta[STAGES] == {"a": g.describe(g.nodes[4])}
    assert parts.cut.meta[STAGES] == {"a": g.describe(g.nodes[0]), "s": g.describe(g.nodes[5])}
    assert parts.tail.meta[STAGES] == {"s": g.describe(g.nodes[4]), "a": g.describe(g.nodes[0])}


def test_values_without_names_get_free_ones():
    g = gq.parse("""graph(x: f32[3], axes: s32[1]) {
      %0 = square(x)
      %1 = reduce_sum(%0, axes)
      %2 = add(%1, %0)
      return %2 as y
    }""")
    g.rename(g.inputs[0], "value 1")
    parts = stages(g)
    assert [*parts.head.output_names] == ["value 2"] and [*parts.cut.output_names] == ["value 3"]
    assert [v.name for v in parts.tail.inputs] == ["value 3", "value 2"]


def test_what_only_the_tail_uses_is_computed_before_the_cut():
    g = gq.parse("""graph(x: f32[3], axes: s32[1]) {
      %a = tanh(x)
      %s = reduce_sum(x, axes)
      %0 = add(%s, %a)
      return %0
    }""")
    assert [ops(part) for part in stages(g)[:3]] == [["tanh"], ["reduce_sum"], ["add"]]


def test_a_dequantize_that_the_head_reads_too_stays_there():
    g = gq.parse("""graph(q: u8[3], axes: s32[1]) {
      %d = dequantize(q, scales=[0.5])
      %a = square(%d)
      %s = reduce_sum(%a, axes)
      %0 = add(%s, %d)
      return %0
    }""")
    assert [ops(part) for part in stages(g)[:3]] == [["dequantize", "square"], ["reduce_sum"], ["add"]]
    whole = gq.parse("graph(x: f32[3]) {\n %0 = square(x)\n return %0\n}")
    assert in_one_plan(whole) and not in_one_plan(gq.parse("graph(x: f32[?]) {\n %0 = square(x)\n return %0\n}"))
