"""Partitions: what a body is, and which nodes can be one."""
from contextlib import nullcontext

import networkx as nx
import numpy as np
import pytest
from dependencies import dependencies

import graphq as gq
from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.ir.text import parse, to_text
from graphq.ir.verify import verify
from graphq.rewrite.partition import carve, is_convex


def graph(text):
    return parse(f"graph(x: f32[2,4], y: f32[4], z: f32[2,4] constant) {{\n{text}\n}}")


def pick(g, *ops):
    return [n for n in g.nodes if n.op.name in ops]


def test_carve():
    g = graph("%0 = relu(x)\n %a = add(%0, y)\n %q = multiply(%a, z)\n %3 = exp(%q)\n return %3")
    body, operands, results = carve(g, pick(g, "add", "multiply"))
    assert [[g.label(v) for v in values] for values in (operands, results)] == [["%0", "y", "z"], ["%q"]]
    assert to_text(body) == """graph body(i0: f32[2,4], y: f32[4], z: f32[2,4] constant) {
  %a = add(i0, y) : f32[2,4]
  %q = multiply(%a, z) : f32[2,4]
  return %q as out0
}"""
    verify(body)
    assert len(g.nodes) == 4  # extract changes nothing


def test_extract_takes_nodes_in_any_order_and_once():
    g = graph("%0 = relu(x)\n %1 = tanh(%0)\n return %1")
    a, b = g.nodes
    assert to_text(carve(g, [b, a, b])[0]) == to_text(carve(g, [a, b])[0])


def test_constants_stay_outside():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    g.output(g.add(g.relu(x), np.ones(2, np.float32)))
    body, operands, _ = carve(g, pick(g, "relu", "add"))
    assert [v.property for v in body.inputs] == ["undef", "constant"] and operands[1].data is not None
    inner, _, _ = carve(g, g.nodes)
    assert [n.op.name for n in inner.nodes] == ["relu", "constant", "add"]


def test_names_of_inputs_do_not_clash():
    g = parse("""graph(i0: f32[2], i2: f32[2]) {
      %0 = relu(i0)
      %1 = relu(i2)
      %i1 = add(%0, i0)
      %i3 = add(%i1, %1)
      return %i3
    }""")
    body, operands, _ = carve(g, pick(g, "add"))
    assert [v.name for v in body.inputs] == ["i2", "i0", "i4"]  # i1 and i3 are results inside
    verify(body)


def test_an_operand_used_twice_is_one_input():
    g = graph("%0 = add(x, x)\n %1 = multiply(%0, x)\n return %1")
    body, operands, _ = carve(g, g.nodes)
    assert len(body.inputs) == 1 and [len(v.uses) for v in body.inputs] == [3]


def test_a_partition_and_its_reference():
    g = graph("%0 = relu(x)\n %1 = add(%0, y)\n %2 = exp(%1)\n return %2, x as same")
    x = np.full((2, 4), -1, np.float32)
    inputs = {"x": x, "y": np.arange(4, dtype=np.float32), "z": x}
    want = gq.reference(g, inputs)
    nodes = pick(g, "relu", "add")
    with g.before(pick(g, "exp")[0]):
        body, operands, _ = carve(g, nodes)
        new = g.partition(*operands, body=body, anchor="eltwise")
    g.replace_uses(nodes[-1].output, new)
    assert g.prune() == 2 and [n.op.name for n in g.nodes] == ["partition", "exp"]
    verify(g)
    got = gq.reference(g, inputs)
    assert all(np.array_equal(got[k], want[k]) for k in want)
    assert to_text(parse(to_text(g))) == to_text(g) and new.node.attrs["anchor"] == "eltwise"


@pytest.mark.parametrize("text,count", [
    ("%0 = relu(x)\n %1 = tanh(%0)\n return %0, %1", 2),
    ("%0 = relu(x)\n %1 = tanh(%0)\n %2 = exp(%0)\n return %1, %2", 2),
    ("%0, %1 = softmax(x, keep_stats=true)\n return %0, %1", 1)])
def test_several_results(text, count):
    g = graph(text)
    body, _, results = carve(g, g.nodes[:count])
    assert [g.label(v) for v in results] == ["%0", "%1"] and len(body.outputs) == 2
    verify(body)


def test_a_partition_without_results_or_nodes():
    g = graph("%0 = relu(x)\n %1 = tanh(%0)\n return x")
    assert carve(g, [])[1:] == ([], [])
    assert carve(g, g.nodes)[2] == [g.nodes[1].output]  # nothing uses it: the last node's result


def test_foreign_and_removed_nodes():
    g, h = graph("%0 = relu(x)\n return x"), graph("%0 = relu(x)\n return %0")
    node = g.nodes[0]
    g.prune()
    for bad in (node, h.nodes[0]):
        with pytest.raises(GraphError, match="a partition of graph 'graph' cannot have this relu: it is not a node"):
            carve(g, [bad])


def test_convexity():
    g = graph("%0 = relu(x)\n %1 = softmax(%0)\n %2 = add(%0, %1)\n return %2")
    assert not is_convex(pick(g, "relu", "add")) and is_convex(g.nodes)
    assert is_convex(pick(g, "relu", "softmax"))
    with pytest.raises(GraphError, match=r"not convex: a path leaves these 2 nodes and enters them again through "
                       r"%1 = softmax\(%0\) : f32\[2,4\]$"):
        carve(g, pick(g, "relu", "add"))


def test_nodes_between_that_lie_on_no_path():
    g = graph("%0 = relu(x)\n %1 = exp(y)\n %2 = tanh(%0)\n %3 = add(%2, %1)\n return %3")
    assert is_convex(pick(g, "relu", "tanh"))
    body, operands, _ = carve(g, pick(g, "relu", "tanh", "add"))
    assert len(operands) == 2 and len(body.nodes) == 3


def test_convexity_against_networkx_on_random_graphs():
    """Convex exactly when no descendant of a member that is an ancestor of a member lies outside."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        g = Graph()
        values = [g.input("x", dtype="f32", shape=(2,))]
        for _ in range(10):
            a, b = (values[k] for k in rng.integers(max(0, len(values) - 4), len(values), 2))
            values.append(g.add(a, b))
        members = sorted(rng.choice(10, size=rng.integers(2, 6), replace=False))
        nodes = [g.nodes[k] for k in members]
        dag = dependencies(g.nodes)
        below, above = (set().union(*(f(dag, n) for n in nodes)) for f in (nx.descendants, nx.ancestors))
        convex = not (below & above) - set(nodes)
        assert is_convex(nodes) == convex
        with nullcontext() if convex else pytest.raises(GraphError, match="not convex: a path leaves"):
            carve(g, nodes)
        seen.add(convex)
    assert seen == {True, False}


def test_operands_must_be_what_the_body_takes():
    g = graph("%0 = relu(x)\n return %0")
    body, _, _ = carve(g, g.nodes)
    y = g.inputs[1]
    for operands in ([y], [], [y, y]):
        with pytest.raises(GraphError, match=r"partition\(.*operands are \(.*\), the body takes \(f32\[2,4\]\)"):
            g.partition(*operands, body=body, anchor="eltwise")
    with pytest.raises(GraphError, match="attribute 'body' must be of type Graph"):
        g.partition(y, body="relu", anchor="eltwise")
    with pytest.raises(GraphError, match="the body 'empty' has no outputs"):
        g.partition(body=Graph("empty"), anchor="eltwise")


def test_a_body_may_have_several_results():
    body = parse("graph body(a: f32[2,4]) {\n %0 = relu(a)\n %1 = exp(a)\n return %0, %1, a\n}")
    g = graph("return x")
    out = g.partition(g.inputs[0], body=body, anchor="any")
    g.set_outputs(out, ["a", "b", "c"])
    verify(g)
    x = np.full((2, 4), -1, np.float32)
    y = gq.reference(g, x=x, y=x[0], z=x)
    assert y["a"].max() == 0 and y["b"].max() == np.float32(np.exp(-1.0)) and np.array_equal(y["c"], x)
