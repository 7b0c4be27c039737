"""What a pass changed: every kind of change is seen, nothing else is, and the parts around it grow to the whole."""
import numpy as np
import pytest
from networks import relu_or_tanh

import graphq as gq
from graphq.validation.subgraphs import Snapshot, detached

TEXT = """graph(x: f32[4], y: f32[4]) {
  %c = constant(value=f32[1]{2})
  %0 = add(x, %c)
  %1 = relu(%0)
  %2 = clamp(%1, min=-1, max=1)
  %3 = multiply(%2, y)
  %4 = tanh(%3)
  %5 = concat(%4, %1, axis=0)
  return %5 as out, %2 as between
}"""


def node(g, op):
    found, = g.nodes_of((op,))
    return found


def operands(op, *numbers):
    def change(g):
        n = node(g, op)
        values = [n.inputs[k] for k in numbers]
        with g.before(n):
            out = g.add_node(n.op, values, n.attrs)[0]
        g.replace_uses(n.output, out)
        g.prune([n])
    return change


def attribute(op, **attrs):
    def change(g):
        node(g, op).attrs = {**node(g, op).attrs, **attrs}
    return change


def uses(op, other):
    return lambda g: g.replace_uses(node(g, op).output, node(g, other).output)


def outputs(order, names=("out", "between")):
    return lambda g: g.set_outputs([[*g.outputs, node(g, "tanh").output][k] for k in order], list(names))


CHANGES = {
    "operands swapped": operands("multiply", 1, 0), "an attribute": attribute("clamp", max=1.5),
    "the type of an attribute": attribute("clamp", max=np.float64(1)), "a use": uses("clamp", "relu"),
    "the order of outputs": outputs((1, 0)), "the names of outputs": outputs((0, 1), ("out", "other")),
    "another output": outputs((0, 2)), "one output less": outputs((0,), ("out",)),
    "one node more": lambda g: g.relu(g.inputs[0]), "the same operands": operands("multiply", 0, 1),
    "one input more": lambda g: g.input("z", dtype="f32", shape=(4,)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name):
    g = gq.parse(TEXT)
    snapshot = Snapshot(g)
    assert not snapshot.changed(g) and not snapshot.removed and not snapshot.touched
    CHANGES[name](g)
    assert snapshot.changed(g)
    assert gq.to_text(snapshot.graph) == gq.to_text(gq.parse(TEXT))  # out of reach


@pytest.mark.parametrize("name, removed, touched", [
    ("operands swapped", {"multiply"}, {"multiply", "tanh"}), ("an attribute", set(), {"clamp"}),
    ("a use", set(), {"multiply", "relu", "clamp"}), ("the order of outputs", set(), {"concat", "clamp"}),
    ("another output", set(), {"tanh", "clamp"}), ("the names of outputs", set(), set())])
def test_what_is_removed_and_what_is_touched(name, removed, touched):
    g = gq.parse(TEXT)
    snapshot = Snapshot(g)
    CHANGES[name](g)
    snapshot.changed(g)
    assert {n.op.name for n in snapshot.removed} == removed and {n.op.name for n in snapshot.touched} == touched


def test_parts_grow_to_the_whole():
    g = gq.parse(TEXT)
    snapshot = Snapshot(g)
    CHANGES["operands swapped"](g)
    snapshot.changed(g)
    found = [sorted(n.op.name for n in part.nodes) for part in snapshot.regions()]
    assert found[0] == ["multiply"] and found[1] == ["multiply", "tanh"]
    assert all(set(a) < set(b) for a, b in zip(found, found[1:], strict=False))
    assert found[2] == ["clamp", "concat", "multiply", "tanh"]
    assert found[-1] == sorted(n.op.name for n in snapshot.graph.nodes) and "constant" not in found[2]


def test_equal_arrays_and_graphs_as_attributes_are_no_change():
    g = gq.parse(TEXT)
    snapshot = Snapshot(g)
    constant = node(g, "constant")
    value = constant.attrs["value"]
    constant.attrs = {**constant.attrs, "value": value.copy()}
    assert not snapshot.changed(g)
    for other in (value + 1, value.astype(np.float16), np.repeat(value, 2), -value, value.view(np.int32),
                  value[:, None]):
        constant.attrs = {**constant.attrs, "value": other}
        assert snapshot.changed(g)


def test_bodies_are_detached_and_compared():
    g = relu_or_tanh()
    copy = detached(g)
    own, other = node(g, "if_else").attrs, node(copy, "if_else").attrs
    assert own["then_body"] is not other["then_body"] and gq.to_text(g) == gq.to_text(copy)
    snapshot = Snapshot(g)
    assert not snapshot.changed(g)
    inner = own["then_body"].nodes[0]
    own["then_body"].replace_uses(inner.output, own["then_body"].tanh(inner.inputs[0]))
    assert snapshot.changed(g)


@pytest.mark.parametrize("what", ["an attribute", "the order of operands", "the output", "the operation"])
def test_all_that_a_body_holds_is_compared(what):
    body = gq.Graph("body")
    x, y = (body.input(name, dtype="f32", shape=(4,)) for name in "xy")
    difference = body.subtract(x, y)
    limited = body.clamp(difference, min=0.0, max=1.0)
    body.set_outputs([limited], ["z"])
    other = body.copy()
    g = gq.Graph()
    g.output(g.if_else(g.input("c", dtype="boolean", shape=()), *(g.input(n, dtype="f32", shape=(4,)) for n in "ab"),
                       then_body=body, else_body=other))
    snapshot = Snapshot(g)
    assert not snapshot.changed(g)
    body = g.nodes[0].attrs["then_body"]
    first, second = body.nodes
    if what == "an attribute":
        second.attrs = {**second.attrs, "max": 2.0}
    elif what == "the output":
        body.set_outputs([first.output], ["z"])
    else:
        with body.before(first):
            new = body.subtract(*body.inputs[::-1]) if what == "the order of operands" else body.add(*body.inputs)
        body.replace_uses(first.output, new)
        body.prune([first])
    assert len(body.nodes) == 2 and snapshot.changed(g)
