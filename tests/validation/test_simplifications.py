"""Candidates of each way to make a graph simpler: which there are, in which order, and what each gives."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphqError
from graphq.validation import reduce as kinds


def texts(kind, text):
    """What the candidates give, without the graph's name; None for one that is no graph."""
    found = []
    for candidate in kind(gq.parse(text) if isinstance(text, str) else text):
        try:
            found.append(gq.to_text(candidate()))
        except GraphqError:
            found.append(None)
    return found


def graph(inputs, *lines, returned):
    return f"graph({inputs}) {{\n" + "".join(f"  {x}\n" for x in lines) + f"  return {returned}\n}}"


TWO = graph("x: f32[2,3], y: f32[3]", "%0 = relu(x)", "%1 = abs(y)", returned="%0, %1")
THREE = graph("x: f32[2]", "%0 = relu(x)", "%1 = abs(x)", "%2 = tanh(x)", returned="%0, %1, %2")


def ops(texts):
    return [None if t is None else [line.split("= ")[1].split("(")[0] for line in t.splitlines() if " = " in line]
            for t in texts]


def test_fewer_outputs():
    assert texts(kinds.fewer_outputs, TWO) == [
        graph("x: f32[2,3]", "%0 = relu(x) : f32[2,3]", returned="%0"),
        graph("y: f32[3]", "%0 = abs(y) : f32[3]", returned="%0 as out1")]
    assert ops(texts(kinds.fewer_outputs, THREE)) == [
        ["relu"], ["abs"], ["tanh"], ["abs", "tanh"], ["relu", "tanh"], ["relu", "abs"]]
    assert texts(kinds.fewer_outputs, graph("x: f32[2]", "%0 = relu(x)", returned="%0")) == []


def test_fewer_nodes():
    text = graph("x: f32[2,2], y: f32[2]", "%0 = add(x, y)", "%1 = matmul(%0, x)", "%2 = relu(%1)", returned="%2")
    made = ops(texts(kinds.fewer_nodes, text))
    # the add is x or an input; the matmul is %0 or x or an input; the relu is %1, or gone
    assert made[:2] == [["matmul", "relu"]] * 2 and made[2:4] == [["add", "relu"], ["relu"]]
    assert sorted(map(str, made[4:6])) == sorted(map(str, [["add", "relu"], ["add", "matmul"]])) and len(made) == 7


def test_fewer_inputs():
    text = graph("x: f32[2], y: f32[3], z: f32[2], w: f32[2]", "%0 = subtract(x, z)", "%1 = subtract(%0, w)",
                 "%2 = relu(y)", returned="%1, %2")
    made = [t.splitlines() for t in texts(kinds.fewer_inputs, text)]
    assert [(t[0][6:-3], t[1].split(" : ")[0].strip(), t[2].split(" : ")[0].strip()) for t in made] == [
        ("x: f32[2], y: f32[3], w: f32[2]", "%0 = subtract(x, x)", "%1 = subtract(%0, w)"),
        ("x: f32[2], y: f32[3], z: f32[2]", "%0 = subtract(x, z)", "%1 = subtract(%0, x)"),
        ("x: f32[2], y: f32[3], z: f32[2]", "%0 = subtract(x, z)", "%1 = subtract(%0, z)")]


def first_lines(found):
    return [None if t is None else t.splitlines()[0][6:-3] for t in found]


def test_smaller_sizes():
    made = first_lines(texts(kinds.smaller_sizes, graph("x: f32[8,4], y: f32[4]", "%0 = add(x, y)", returned="%0")))
    rows = [f"x: f32[{n},4], y: f32[4]" for n in (1, 2, 3, 4)]
    assert made == [*rows, *(f"x: f32[8,{n}], y: f32[{n}]" for n in (1, 2, 3)),
                    *rows, "x: f32[8,1], y: f32[4]", None, None, "x: f32[8,4], y: f32[1]", None, None]
    made = first_lines(texts(kinds.smaller_sizes, graph("x: f32[?,2]", "%0 = relu(x)", returned="%0")))
    assert made == [*(f"x: f32[{n},2]" for n in (1, 2, 3, 8)), "x: f32[?,1]", *(f"x: f32[{n},2]" for n in (1, 2, 3, 8)),
                    "x: f32[?,1]"]
    summed = graph("x: f32[?,2]", "%0 = reduce_sum(x, axes=[0])", returned="%0")  # only the input is open
    assert first_lines(texts(kinds.smaller_sizes, summed)) == made
    assert texts(kinds.smaller_sizes, graph("x: f32[1]", "%0 = relu(x)", returned="%0")) == []


def test_constants_and_lists_of_attributes_are_cut():
    text = graph("x: f32[3]", "%0 = constant(value=f32[3]{1.0,2.0,3.0})", "%1 = add(x, %0)",
                 "%2 = quantize(%1, dtype=u8, qtype=\"per_channel\", axis=0, scales=[0.5,1.0,2.0])", returned="%2")
    made = texts(kinds.smaller_sizes, text)[1]
    assert "x: f32[2]" in made and "{1.0, 2.0}" in made and "scales=[0.5, 1.0]" in made
    reshaped = texts(kinds.smaller_sizes, graph("x: f32[4,2]", "%0 = static_reshape(x, shape=[2,4])", returned="%0"))
    assert "shape=[2, 3]" in reshaped[2] and "x: f32[3,2]" in reshaped[2]


def test_simpler_attributes():
    line = '%0 = quantize(x, dtype=u8, qtype="per_channel", axis=1, scales=[0.5,2.0], zps=[3,4])'
    text = graph("x: f32[2,2]", line, returned="%0")
    made = texts(kinds.simpler_attributes, text)
    assert "scales=[0.5], zps=[3]" in made[0] and "per_channel" not in made[0]
    assert any(t and "scales=[1.0, 1.0]" in t for t in made)
    assert any(t and "zps" not in t and "scales=[0.5" in t for t in made[1:])
    constant = graph("x: f32[2]", "%0 = constant(value=f32[2]{5.0,6.0})", "%1 = elu(x, alpha=3.0)", "%2 = add(%0, %1)",
                     returned="%2")
    made = texts(kinds.simpler_attributes, constant)
    assert "{1.0, 1.0}" in made[0] and "{0.0, 0.0}" in made[1]
    assert any("alpha=1.0" in t for t in made)


def test_no_names():
    g = gq.parse(graph("a: f32[2], b: f32[2]", "%s = add(a, b)", "%t = relu(%s)", returned="%t, %s"))
    g.nodes[0].meta["fact"] = 1
    (candidate,) = kinds.no_names(g)
    made = candidate()
    assert [v.name for v in made.inputs] == ["x0", "x1"] and [*made.output_names] == ["out0", "out1"]
    assert [n.meta for n in made.nodes] == [{}, {}] and [n.op.name for n in made.nodes] == ["add", "relu"]
    assert made.outputs[1] is made.nodes[0].output and all("%s" not in line for line in gq.to_text(made).splitlines())


def test_smaller_bodies():
    model = gq.compile(gq.parse(graph("x: u8[2,3]", "%d = dequantize(x, scales=[0.1])",
                                      "%w = constant(value=f32[3]{1.0,2.0,4.0})", "%y = add(%d, %w)",
                                      "%q = quantize(%y, dtype=u8, scales=[0.2])", returned="%q")), threads=1)
    (node,) = model.graph.nodes_of(("partition",))
    made = [candidate() for candidate in kinds.smaller_bodies(model.graph)]
    body = [n.op.name for n in node.attrs["body"].nodes]
    assert [[n.op.name for n in g.nodes_of(("partition",))[0].attrs["body"].nodes] for g in made] == [
        body[:k] + body[k + 1:] for k in range(len(body))]
    first = made[0]
    assert [str(v.type) for v in first.inputs] == ["f32[2,3]"] and "constant" in [n.op.name for n in first.nodes]
    value = next(n.attrs["value"] for n in first.nodes if n.op.name == "constant")
    assert np.array_equal(value, np.float32([1, 2, 4])) and list(first.output_names) == ["out0"]


@pytest.mark.parametrize("size, smaller", [(1, []), (2, [1]), (3, [1, 2]), (5, [1, 2, 3]), (9, [1, 2, 3, 4])])
def test_smaller(size, smaller):
    assert kinds._smaller(size) == smaller
