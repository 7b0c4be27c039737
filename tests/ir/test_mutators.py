"""The mutators of a graph, the order of its nodes, and what its values are called meanwhile."""
import numpy as np
import pytest
from graphs import ops

from graphq.errors import GraphError
from graphq.ir import Graph, Use
from graphq.ir.verify import verify

# -- add_checked ----------------------------------------------------------------------------------------------


def test_a_checked_node_needs_operands_of_the_graph_and_a_free_name(g, x):
    a = g.relu(x, name="a")
    (b,) = g.add_checked(a.node.op, [a], a.node.attrs, [a.type], name="b")
    g.set_outputs([b], ["out"])
    assert b.node.inputs == (a,) and (b.name, b.type) == ("b", a.type) and a.uses == [Use(b.node, 0)]
    verify(g)
    with pytest.raises(GraphError, match="relu 'b': the name 'b' is taken"):
        g.add_checked(a.node.op, [x], a.node.attrs, [a.type], name="b")
    with pytest.raises(GraphError, match="relu: .*belongs to another graph"):
        Graph("other").add_checked(a.node.op, [x], a.node.attrs, [a.type])
    with g.before(a.node), pytest.raises(GraphError, match="relu: %b is defined after the place of the new node"):
        g.add_checked(a.node.op, [b], a.node.attrs, [a.type])
    assert ops(g) == ["relu", "relu"]
    verify(g)


# -- replace_uses, prune, before ------------------------------------------------------------------------------


def test_replace_uses_of_all(g, x):
    a, b = g.relu(x), g.tanh(x)
    c = g.add(a, a)
    g.set_outputs([a, c], ["a", "c"])
    g.replace_uses(a, b)
    assert c.node.inputs == (b, b) and g.outputs == [b, c]
    assert a.uses == [] and x.uses == [Use(a.node, 0), Use(b.node, 0)]
    assert set(b.uses) == {Use(c.node, 0), Use(c.node, 1), Use(None, 0)}
    verify(g)


def test_replace_uses_of_some(g, x):
    a, b = g.relu(x, name="a"), g.tanh(x)
    c = g.subtract(a, a)
    g.output(c)
    g.replace_uses(a, b, [Use(c.node, 1)])
    assert c.node.inputs == (a, b) and a.uses == [Use(c.node, 0)] and (a.name, b.name) == ("a", None)
    g.replace_uses(a, a)
    verify(g)


def test_the_name_goes_with_the_last_use(g, x):
    a, b = g.relu(x, name="a"), g.tanh(x)
    g.set_outputs([a], ["a"])
    g.replace_uses(a, b)
    assert (a.name, b.name) == (None, "a")
    g.prune()
    assert g._names == {"x", "a"}
    g.replace_uses(b, x)  # an input keeps its own
    assert x.name == "x" and g.output_names == ["a"]
    verify(g)


def test_replace_uses_refuses_another_type(g, x):
    y = g.relu(x)
    g.output(y, name="y")
    for new in (g.static_reshape(x, shape=[3, 2]), g.type_cast(x, dtype="bf16")):
        with pytest.raises(GraphError, match=rf"replace_uses: %y: f32\[2,3\] may not become %\d: {new.dtype}"):
            g.replace_uses(y, new)
    verify(g)


def test_replace_uses_takes_a_type_that_says_more_if_results_keep_theirs():
    g = Graph("open")
    x, less = (g.input(name, dtype="f32", shape=(None, None, d)) for name, d in (("x", None), ("less", 5)))
    y = g.matmul(x, np.ones((3, 4), np.float32))
    g.output(g.relu(y), name="y")
    with g.before(y.node):
        more = g.multiply(x, np.ones(3, np.float32))
    uses = [Use(y.node, 0)]
    g.replace_uses(x, more, uses)
    assert y.node.inputs[0] is more and str(more.type) == "f32[?,?,3]"
    verify(g)
    with pytest.raises(GraphError, match=r"f32\[\?,\?,3\] may not become"):
        g.replace_uses(more, x, uses)  # which says less
    with pytest.raises(GraphError, match=r"x: f32\[\?,\?,\?\] may not become less: f32\[\?,\?,5\]"):
        g.replace_uses(x, less)  # which does not fit the other operands


def test_replace_uses_refuses_a_type_that_changes_results():
    g = Graph("open")
    x, more = (g.input(name, dtype="f32", shape=shape) for name, shape in (("x", (None, 3)), ("more", (2, 3))))
    y = g.relu(x)
    g.set_outputs([y, x], ["y", "x"])
    for uses in ([Use(y.node, 0)], [Use(None, 1)]):
        with pytest.raises(GraphError, match=r"replace_uses: x: f32\[\?,3\] may not become more: f32\[2,3\]"):
            g.replace_uses(x, more, uses)
    assert y.node.inputs == (x,) and g.outputs == [y, x]
    verify(g)


def test_replace_uses_refuses_cycles_and_bad_order(g, x):
    a = g.relu(x)
    b = g.tanh(a)
    c = g.exp(b)
    g.output(c, name="c")
    with pytest.raises(GraphError, match=r"%1 = tanh\(%0\) : f32\[2,3\] does not come after %1.*a cycle"):
        g.replace_uses(a, b)
    with pytest.raises(GraphError, match="does not come after %c"):
        g.replace_uses(a, c)
    verify(g)


def test_replace_uses_refuses_foreign_uses(g, x):
    a, b = g.relu(x), g.tanh(x)
    with pytest.raises(GraphError, match="is not a use of %0"):
        g.replace_uses(a, b, [Use(b.node, 0)])


def test_prune_takes_what_nothing_uses(g, x):
    a = g.relu(x, name="a")
    b = g.add(a, a)
    g.tanh(b)
    kept = g.exp(x)
    g.output(kept, name="y")
    assert g.prune() == 3 and ops(g) == ["exp"] and x.uses == [Use(kept.node, 0)]
    assert a.node.removed and g.prune() == 0
    g.relu(x, name="a")  # its name is free again
    verify(g)


def test_prune_from_a_node_upwards(g, x):
    a = g.relu(x)
    b = g.tanh(a)
    other = g.exp(x)
    used = g.abs(a)
    g.output(used, name="y")
    assert g.prune([b.node]) == 1 and ops(g) == ["relu", "exp", "abs"]
    assert g.prune([a.node]) == 0 and g.prune([other.node]) == 1
    verify(g)


def test_prune_many(g, x):
    v = x
    for _ in range(100):
        v = g.relu(v)
    assert g.prune() == 100 and g.nodes == [] and x.uses == []


def test_removed_values_cannot_be_used(g, x):
    y = g.relu(x)
    g.prune()
    with pytest.raises(GraphError, match=r"tanh: the result of relu, f32\[2,3\], was removed from the graph"):
        g.tanh(y)
    with pytest.raises(GraphError, match="is not, or no longer, a node"), g.before(y.node):
        g.tanh(x)
    with pytest.raises(GraphError, match="removed"):
        g.output(y)


def test_before_inserts_in_order(g, x):
    c = g.exp(x)
    with g.before(c.node) as same:
        a = same.relu(x)
        b = g.add(a, 1.0)
        with g.before(b.node):
            g.abs(x)
    g.tanh(c)
    assert ops(g) == ["relu", "constant", "abs", "add", "exp", "tanh"]
    verify(g)


def test_many_insertions_at_one_place(g, x):
    last = g.exp(x)
    with g.before(last.node):
        v = x
        for _ in range(200):
            v = g.relu(v)
    assert ops(g) == ["relu"] * 200 + ["exp"]
    verify(g)


def test_before_refuses_later_operands(g, x):
    a = g.relu(x)
    b = g.tanh(a)
    for v in (a, b):
        with pytest.raises(GraphError, match="is defined after the place of the new node"), g.before(a.node):
            g.exp(v)
    g.exp(b)
    assert ops(g) == ["relu", "tanh", "exp"]


def test_before_a_node_of_another_graph(g, x):
    other = Graph("other")
    y = other.relu(other.input("x", dtype="f32"))
    with pytest.raises(GraphError, match=r"%0 = relu\(x\) : f32\[\*\] is not, or no longer, a node of graph 'test'"), \
            g.before(y.node):
        g.relu(x)


def test_users_are_in_graph_order(g, x):
    a, b = g.relu(x), g.tanh(x)
    with g.before(a.node):
        c = g.exp(x)
    assert x.users == [c.node, a.node, b.node]


def test_rename(g, x):
    y = g.relu(x, name="y")
    g.rename(y, "z")
    g.rename(y, "z")
    g.tanh(x, name="y")
    with pytest.raises(GraphError, match="rename: the name 'x' is taken"):
        g.rename(y, "x")
    assert y.name == "z"
    verify(g)


# -- labels ---------------------------------------------------------------------------------------------------


def test_labels_follow_changes(g, x):
    a, b = g.relu(x), g.relu(x)
    assert [g.label(v) for v in (x, a, b)] == ["x", "%0", "%1"]
    assert g.describe(b.node) == "%1 = relu(x) : f32[2,3]" and repr(b.node) == "<node %1 = relu(x) : f32[2,3]>"
    g.rename(a, "a")
    assert [g.label(v) for v in (a, b)] == ["%a", "%0"]
    with g.before(a.node):
        g.exp(x)
    assert g.label(b) == "%1" and repr(b) == "<value %1: f32[2,3]>"
    g.output(b)
    g.prune()
    assert g.label(b) == "%out0" and g.label(a) == "%a"
    w = g.input("w", dtype="f32", shape=(3, 1))
    assert g.describe(g.matmul(x, w, None).node) == "%0 = matmul(x, w) : f32[2,1]"


def test_str_is_short_and_repr_shorter(g, x):
    g.output(g.add(x, np.arange(12, dtype=np.float32).reshape(4, 1, 3)), name="y")
    assert "{0.0, 1.0, 2.0, 3.0, 4.0, 5.0, ... 6 more}" in str(g)
    assert repr(g) == "<graph test: 1 inputs, 2 nodes, 1 outputs>"
