"""The verifier: each rule broken by hand, also where an earlier call found the graph consistent."""
import numpy as np
import pytest

from graphq.dtypes import f32, s8
from graphq.errors import VerifyError
from graphq.ir import Graph, Node, TensorType, Use, Value
from graphq.ir.interpret import check_order
from graphq.ir.op import OPS
from graphq.ir.verify import verify
from graphq.rewrite.partition import carve

SEEN = {}
"""The nodes that verify found consistent in this process."""


@pytest.fixture
def g():
    """%a = relu(x); %b = tanh(%a); %c = add(%b, x); %c is returned."""
    g = Graph("net")
    x = g.input("x", dtype="f32", shape=(2,))
    a = g.relu(x, name="a")
    b = g.tanh(a, name="b")
    g.output(g.add(b, x, name="c"))
    verify(g, SEEN)
    assert set(g.nodes) <= set(SEEN)
    return g


def node(g, name):
    return next(n for n in g.nodes if n.outputs[0].name == name)


def broken(g, message):
    for consistent in ({}, SEEN):
        with pytest.raises(VerifyError, match=message):
            verify(g, consistent)


def test_order(g):
    g.nodes[0], g.nodes[1] = g.nodes[1], g.nodes[0]
    broken(g, r"%b = tanh\(%a\) : f32\[2\]: operand 0 is used before")
    g.nodes[0].position, g.nodes[1].position = g.nodes[1].position, g.nodes[0].position
    broken(g, r"%b = tanh\(%a\) : f32\[2\]: operand 0 is used before its definition, or removed: a cycle or bad order")


def test_place(g):
    g.nodes[2].position = g.nodes[1].position
    broken(g, "%c = .*its position is out of order")


def test_a_node_twice(g):
    g.nodes.insert(1, g.nodes[0])
    broken(g, "%a = .*its position is out of order")


def test_removed_operand(g):
    del g.nodes[0]
    broken(g, "%b = tanh.*operand 0 is used before its definition, or removed")


def test_cycle(g):
    a, b = node(g, "a"), node(g, "b")
    a.inputs = (b.output,)
    broken(g, "%a = relu.*operand 0 is used before its definition, or removed: a cycle")


def test_value_of_another_graph(g):
    other = Graph("other")
    node(g, "a").inputs = (other.input("x", dtype="f32", shape=(2,)),)
    broken(g, "%a = .*operand 0 is used before its definition")


def test_node_of_another_graph(g):
    node(g, "a").graph = Graph("other")
    broken(g, "of another graph")


def test_removed_flag(g):
    node(g, "b").removed = True
    broken(g, r"%b = tanh\(%a\).*removed")


@pytest.mark.parametrize("change", [
    lambda v: v.uses.clear(), lambda v: v.uses.append(v.uses[0]), lambda v: v.uses.append(Use(None, 0)),
    lambda v: v.uses.__setitem__(0, Use(v.uses[0].node, 1))])
def test_uses(g, change):
    change(node(g, "a").output)
    broken(g, "%a: recorded uses differ")


def test_uses_of_inputs(g):
    g.inputs[0].uses.pop()
    broken(g, "x: recorded uses differ")


def test_operand_changed_by_hand(g):
    node(g, "b").inputs = (g.inputs[0],)
    broken(g, "recorded uses differ")


def test_outputs(g):
    g.outputs[0] = node(g, "a").output
    broken(g, "recorded uses differ")
    g.outputs[0] = Value(g, TensorType(f32, (2,)), None, 0, "ghost")
    broken(g, "output 'c' is not a value of the graph")


@pytest.mark.parametrize("names", [[], ["c", "d"]])
def test_output_names(g, names):
    g.output_names = names
    broken(g, "output names .* do not fit 1 outputs")


def test_output_names_twice(g):
    g.set_outputs([g.outputs[0]] * 2, ["a", "b"])
    g.output_names = ["a", "a"]
    broken(g, "output names .* do not fit 2 outputs")


def test_back_links(g):
    a = node(g, "a")
    a.output.index = 1
    broken(g, "%a = .*output 0 does not point back to its node")
    a.output.index, a.output.node = 0, node(g, "b")
    broken(g, "output 0 does not point back")


def test_types(g):
    node(g, "b").output.type = TensorType(f32, (3,))
    broken(g, r"%b = tanh\(%a\) : f32\[3\]: inferred types are f32\[2\]")


def test_types_that_no_rule_allows(g):
    g.inputs[0].type = TensorType(s8, (2,))
    broken(g, "%a = relu.*'src' must be f32, bf16 or f16, got s8")


def test_names(g):
    node(g, "b").output.name = "a"
    broken(g, "the name 'a' is given to 2 values")


def test_inputs(g):
    x = g.inputs[0]
    x.name = None
    broken(g, "not a named input")
    x.name = "x"
    g.inputs.append(x)
    broken(g, "input x: .*listed twice")
    g.inputs[1] = node(g, "a").output
    broken(g, "input %a: not a named input of graph 'net'")


def test_operand_counts(g):
    a = node(g, "a")
    a.inputs = ()
    g.inputs[0].uses.pop(0)
    broken(g, r"%a = relu\(\).*takes operands \(src\), got 0")


def test_attributes(g):
    y = g.softmax(g.outputs[0], axis=0, name="y").node
    verify(g, SEEN)
    y.attrs = {**y.attrs, "axis": 0.5}
    broken(g, "%y = .*attribute 'axis' must be of type int, got 0.5")
    y.attrs = {**y.attrs, "axis": 7}
    broken(g, "axis must be in")
    y.attrs = {"axis": 0}
    broken(g, "attribute 'mode' is missing")
    y.attrs = {**OPS["softmax"].complete({"axis": 0}), "more": 1}
    broken(g, "has no attribute 'more'")


def test_attributes_in_normal_form(g):
    y = g.quantize(g.outputs[0], dtype="u8", scales=[0.5]).node
    verify(g, SEEN)
    y.attrs = {**y.attrs, "scales": [0.5]}
    broken(g, r"attribute 'scales' is not in normal form: \[0.5\]")


def test_bodies(g):
    body, operands, _ = carve(g, g.nodes[:2])
    g.partition(*operands, body=body, anchor="eltwise")
    verify(g, SEEN)
    body.nodes[1].output.uses.clear()
    broken(g, r"%0 = partition\(x\) : f32\[2\]: in 'body': %b: recorded uses differ")


def test_a_node_added_by_hand(g):
    n = Node(g, OPS["relu"], (g.inputs[0],), {})
    n.outputs = (Value(g, TensorType(f32, (2,)), n, 0),)
    n.position = g.nodes[-1].position + 1
    g.nodes.append(n)
    broken(g, "x: recorded uses differ")


def test_zero_sized_and_unknown_shapes_verify():
    g = Graph()
    x = g.input("x", dtype="f32")
    g.output(g.add(x, np.zeros((0, 3), np.float32)))
    verify(g)
    verify(Graph())


def test_check_order_finds_cycles_and_strays(g):
    check_order(g)
    a = node(g, "a")
    inputs, a.inputs = a.inputs, (node(g, "b").output,)
    with pytest.raises(VerifyError, match="%a = relu.*operand 0 is used before its definition, or removed: a cycle"):
        check_order(g)
    a.inputs = inputs
    c = node(g, "c")
    inputs, c.inputs = c.inputs, (c.inputs[0], Graph().input("z", dtype="f32"))
    with pytest.raises(VerifyError, match="%c = add.*operand 1 is used before its definition"):
        check_order(g)
    c.inputs = inputs
    g.outputs = [Graph().input("z", dtype="f32")]
    with pytest.raises(VerifyError, match="output 'c' is not a value of the graph"):
        check_order(g)
