"""Patterns and the matcher: what matches, what does not and why."""
from functools import partial

import numpy as np
import pytest
from graphs import graph_of

from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.rewrite.match import Matcher
from graphq.rewrite.pattern import ANY, PatternBuilder, Var
from graphq.rewrite.rule import Rewrite

A, B, C, X, Y = map(Var, "abcxy")
P = PatternBuilder()


graph = partial(graph_of, inputs="x: f32[4,4], y: f32[4,4], z: f32[4,4]")


def match(pattern, text, **kwargs):
    """The variables (as text) of the first match at the last node, or the reason why there is none."""
    g = graph(text, **kwargs)
    matcher = Matcher(pattern)
    for m in matcher.matches(g, g.nodes[-1]):
        return {k: g.label(v) for k, v in m.values.items()}
    return matcher.reason()


def matched(pattern, text, **kwargs):
    """The matched nodes' results, in graph order."""
    g = graph(text, **kwargs)
    m = next(Matcher(pattern).matches(g, g.nodes[-1]), None)
    return None if m is None else sorted(g.label(n.output) for n in m.nodes)


# -- operands -------------------------------------------------------------------------------------------------


def test_variables_take_any_value():
    assert match(P.add(A, B), "%0 = add(x, y)\n return %0") == {"a": "x", "b": "y"}
    assert match(P.add(P.relu(A), B), "%0 = relu(x)\n %1 = add(%0, y)\n return %1") == {"a": "x", "b": "y"}


def test_a_repeated_variable_is_one_value():
    assert match(P.add(A, A), "%0 = add(x, x)\n return %0") == {"a": "x"}
    assert match(P.add(A, A), "%0 = add(x, y)\n return %0") == "'a' would be two different values"
    text = "%0 = relu(x)\n %1 = add(%0, {})\n return %1"
    assert match(P.add(P.relu(A), A), text.format("x")) == {"a": "x"}
    assert "two different" in match(P.add(P.relu(A), A), text.format("y"))


@pytest.mark.parametrize("op,commutes", [("add", True), ("multiply", True), ("maximum", True), ("minimum", True),
                                         ("subtract", False), ("divide", False)])
def test_commutativity_is_a_fact_of_the_op(op, commutes):
    p = getattr(P, op)(P.relu(A), B)
    assert match(p, f"%0 = relu(x)\n %1 = {op}(%0, y)\n return %1") == {"a": "x", "b": "y"}
    swapped = match(p, f"%0 = relu(x)\n %1 = {op}(y, %0)\n return %1")
    assert swapped == ({"a": "x", "b": "y"} if commutes else "expected relu, found input y: f32[4,4]")


def test_commutative_choices_backtrack():
    p = P.add(P.multiply(A, B), P.relu(A))
    text = "%0 = multiply(y, x)\n %1 = relu(x)\n %2 = add(%1, %0)\n return %2"
    assert match(p, text) == {"a": "x", "b": "y"}


def test_counts_of_operands():
    inputs = "x: f32[4,4], y: f32[4,4], z: f32[4]"
    two, three = "%0 = matmul(x, y)\n return %0", "%0 = matmul(x, y, z)\n return %0"
    assert match(P.matmul(A, B), two, inputs=inputs) == match(P.matmul(A, B, None), two, inputs=inputs) \
        == {"a": "x", "b": "y"}
    assert match(P.matmul(A, B, C), three, inputs=inputs) == {"a": "x", "b": "y", "c": "z"}
    assert match(P.matmul(A, B), three, inputs=inputs).endswith("has 3 operands, the pattern 2")
    assert match(P.matmul(A, B, C), two, inputs=inputs).endswith("has 2 operands, the pattern 3")
    both = P.any_of(P.matmul(A, B, C), P.matmul(A, B))
    assert match(both, two, inputs=inputs) == {"a": "x", "b": "y"}


def test_any_operands():
    for call in ("matmul(x, y)", "matmul(%0, %0)"):
        assert matched(P.matmul(...), f"%0 = relu(x)\n %1 = {call}\n return %1") == ["%1"]
    assert matched(P.relu(P.any_of("add", "abs")(...)), "%0 = abs(x)\n %1 = relu(%0)\n return %1") == ["%0", "%1"]
    with pytest.raises(GraphError, match="got Ellipsis"):
        P.add(..., A)


def test_other_outputs_than_the_first_do_not_match():
    reason = match(P.relu(P.softmax(A, attrs=ANY)), "%0, %1 = softmax(x, keep_stats=true)\n %2 = relu(%1)\n return %2")
    assert reason == "%1 is output 1 of %0, %1 = softmax(x) : f32[4,4], f32[4,1]"
    assert match(P.softmax(A, attrs=ANY), "%0, %1 = softmax(x, keep_stats=true)\n return %0") == ""


def test_each_result_of_an_inner_node_counts_as_used_outside():
    text = "%0, %1 = softmax(x, keep_stats=true)\n %2 = relu(%0)\n return %1, %2"
    reason = match(P.relu(P.softmax(A, attrs=ANY)), text)
    assert reason == "%0, %1 = softmax(x) : f32[4,4], f32[4,1] is also an output of the graph"


def test_one_pattern_object_is_one_value():
    once = P.relu(A)
    p = P.add(once, P.tanh(once))
    assert matched(p, "%0 = relu(x)\n %1 = tanh(%0)\n %2 = add(%0, %1)\n return %2") == ["%0", "%1", "%2"]
    twins = "%0 = relu(x)\n %1 = relu(x)\n %2 = tanh(%1)\n %3 = add(%0, %2)\n return %3"
    assert match(p, twins) == "%1 and %0 would have to be one value"
    assert matched(P.add(P.relu(A), P.tanh(P.relu(A))), twins) == ["%0", "%1", "%2", "%3"]


# -- attributes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given,in_text,reason", [
    ({}, "", None), ({}, ", axis=1", None), ({}, ", axis=0", "attribute 'axis' is 0, not 1"),
    ({"axis": 0}, ", axis=0", None), ({"axis": 0}, "", "attribute 'axis' is 1, not 0"),
    ({"axis": ANY}, ", axis=0", None),
    ({"axis": ANY}, ', axis=0, mode="inf_as_zero"', "attribute 'mode' is 'inf_as_zero', not 'none'"),
    ({"attrs": ANY}, ', axis=0, mode="inf_as_zero"', None),
    ({"attrs": ANY, "axis": 1}, ', mode="inf_as_zero"', None),
    ({"attrs": ANY, "axis": 1}, ", axis=0", "attribute 'axis' is 0, not 1"),
    ({"dtype": "bf16"}, ", dtype=bf16", None), ({"dtype": "bf16"}, "", "attribute 'dtype' is None, not bf16"),
])
def test_attributes(given, in_text, reason):
    got = match(P.softmax(A, **given), f"%0 = softmax(x{in_text})\n return %0")
    assert got == {"a": "x"} if reason is None else got.endswith(reason)


def test_required_attributes_may_have_any_value():
    text = "%0 = clamp(x, min=0, max=6)\n return %0"
    assert match(P.clamp(A), text) == match(P.clamp(A, max=6, min=0.0), text) == {"a": "x"}
    assert match(P.clamp(A, max=5), text).endswith("attribute 'max' is 6.0, not 5.0")
    assert match(P.static_reshape(A, shape=[16]), "%0 = static_reshape(x, shape=[16])\n return %0") == {"a": "x"}


def test_constants_by_value():
    p = P.add(A, P.constant(value=np.ones(4, np.float32)))
    text = "%0 = constant(value=f32[4]{{1, 1, 1, {}}})\n %1 = add(x, %0)\n return %1"
    assert match(p, text.format(1)) == {"a": "x"}
    assert "attribute 'value'" in match(p, text.format(2))
    integers = "%0 = constant(value=s32[4]{1, 1, 1, 1})\n %1 = add(z, %0)\n return %1"
    assert "attribute 'value'" in match(p, integers, inputs="z: s32[4]")
    shared = text.format(1).replace("return %1", "%2 = multiply(%1, %0)\n return %2")
    assert match(P.multiply(p, B), shared) == {"a": "x", "b": "%0"}  # a constant may have other users


@pytest.mark.parametrize("build,message", [
    (lambda: P.rellu(A), "unknown op 'rellu'"), (lambda: P.relu(A, alpha=1), "pattern: relu has no attribute 'alpha'"),
    (lambda: P.softmax(A, axis="x"), "attribute 'axis' must be of type int"),
    (lambda: P.softmax(A, attrs={"axis": 1}), "attrs= takes only ANY"),
    (lambda: P.add(A, 1), "an operand must be a variable or a pattern, got 1"),
    (lambda: P.any_of("relu", "rellu"), "unknown op"), (lambda: P.any_of(A, "relu"), "got 'relu'"),
    (lambda: P.repeat(["rellu"], A, max=1), "unknown op"), (lambda: P.repeat(["relu"], "a", max=1), "got 'a'"),
    (lambda: P.optional("rellu", A), "unknown op"),
])
def test_bad_patterns(build, message):
    with pytest.raises(GraphError, match=message):
        build()
    assert not hasattr(P, "_private")


# -- any_of, optional -----------------------------------------------------------------------------------------


def test_any_of_ops():
    p = P.any_of("relu", "tanh")(P.any_of("add", "subtract")(A, B))
    assert match(p, "%0 = subtract(x, y)\n %1 = tanh(%0)\n return %1") == {"a": "x", "b": "y"}
    reason = match(p, "%0 = divide(x, y)\n %1 = tanh(%0)\n return %1")
    assert reason == "expected add or subtract, found divide (%0): f32[4,4]"
    assert match(p, "%0 = add(x, y)\n %1 = exp(%0)\n return %1") == ""  # another op at the root is no near miss
    with pytest.raises(GraphError, match="softmax|relu has no attribute 'axis'"):
        P.any_of("softmax", "relu")(A, axis=1)


def test_any_of_takes_the_first_that_fits():
    p = P.tanh(P.any_of(P.relu(A), B))
    assert match(p, "%0 = relu(x)\n %1 = tanh(%0)\n return %1") == {"a": "x"}
    assert match(p, "%0 = exp(x)\n %1 = tanh(%0)\n return %1") == {"b": "%0"}


def test_optional():
    p = P.quantize(P.optional("relu", P.optional("add", P.exp(A), B)), attrs=ANY)
    end = "quantize(%{}, dtype=u8, scales=[0.1])\n return %q"
    assert match(p, "%0 = exp(x)\n %q = " + end.format(0)) == {"a": "x"}
    assert match(p, "%0 = exp(x)\n %1 = relu(%0)\n %q = " + end.format(1)) == {"a": "x"}
    assert match(p, "%0 = exp(x)\n %1 = add(y, %0)\n %q = " + end.format(1)) == {"a": "x", "b": "y"}
    assert match(p, "%0 = exp(x)\n %1 = add(%0, y)\n %2 = relu(%1)\n %q = " + end.format(2)) == {"a": "x", "b": "y"}
    assert "expected" in match(p, "%0 = tanh(x)\n %1 = relu(%0)\n %q = " + end.format(1))


# -- repeat ---------------------------------------------------------------------------------------------------

CHAIN = P.repeat(["relu", "tanh", "add", "multiply"], P.exp(A), max=3)


@pytest.mark.parametrize("text,nodes", [
    ("%0 = exp(x)", "0"),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%1)", "012"),
    ("%0 = exp(x)\n %1 = add(y, %0)", "01"),
    # a diamond, wholly inside
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%0)\n %3 = add(%1, %2)", "0123"),
    # the other operand comes from elsewhere, through ops of the chain: a side branch stays outside
    ("%0 = exp(x)\n %1 = relu(y)\n %2 = add(%0, %1)", "02"),
    # both operands are one value
    ("%0 = exp(x)\n %1 = multiply(%0, %0)", "01"),
    # the side branch ends in an op that would match the beginning; the first operand is tried first
    ("%0 = exp(x)\n %1 = exp(y)\n %2 = add(%0, %1)", "02"),
])
def test_repeat(text, nodes):
    last = len(text.splitlines()) - 1
    assert matched(CHAIN, f"{text}\n return %{last}") == [f"%{k}" for k in nodes]


@pytest.mark.parametrize("text,reason", [
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = relu(%1)\n %3 = relu(%2)\n %4 = relu(%3)\n return %4",
     "more than 3 operations in a row"),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%1)\n %3 = abs(%1)\n %4 = add(%2, y)\n return %4, %3",
     "%1 = relu(%0) : f32[4,4] is also used by %3 = abs(%1) : f32[4,4]"),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%1)\n return %2, %1",
     "%1 = relu(%0) : f32[4,4] is also an output of the graph"),
    ("%0 = exp(x)\n %1 = relu(%0)\n return %1, %0", "%0 = exp(x) : f32[4,4] is also an output of the graph"),
    ("%0 = exp(x)\n %1 = abs(%0)\n %2 = relu(%1)\n return %2", ""),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = abs(%0)\n %3 = relu(%1)\n return %3, %2",
     "%0 = exp(x) : f32[4,4] is also used by %2 = abs(%0) : f32[4,4]"),
])
def test_repeat_refuses(text, reason):
    g = graph(text)
    matcher = Matcher(CHAIN)
    root = g.outputs[0].node
    assert next(matcher.matches(g, root), None) is None
    assert matcher.reason() == reason


def test_repeat_where():
    p = P.repeat(["relu", "tanh"], P.exp(A), max=3, where=lambda n: "no tanh today" if n.op.name == "tanh" else None)
    assert matched(p, "%0 = exp(x)\n %1 = relu(%0)\n return %1") == ["%0", "%1"]
    reason = match(p, "%0 = exp(x)\n %1 = tanh(%0)\n %2 = relu(%1)\n return %2")
    assert reason == "%1 = tanh(%0) : f32[4,4]: no tanh today"


def test_repeat_from_a_variable():
    p = P.abs(P.repeat(["relu", "tanh"], A, max=2))
    assert match(p, "%0 = relu(x)\n %1 = tanh(%0)\n %2 = abs(%1)\n return %2") == {"a": "%1"}
    assert match(P.repeat(["relu"], A, max=2), "%0 = relu(x)\n return %0") == {"a": "x"}


def test_repeat_without_a_beginning():
    p = P.repeat(["relu", "tanh", "add"], max=3)
    assert matched(p, "%0 = relu(x)\n %1 = tanh(y)\n %2 = add(%0, %1)\n return %2") == ["%0", "%1", "%2"]
    assert matched(p, "%0 = relu(x)\n %1 = tanh(%0)\n %2 = relu(%1)\n %3 = relu(%2)\n return %3") == ["%1", "%2", "%3"]
    assert matched(p, "%0 = relu(x)\n %1 = tanh(%0)\n return %1, %0") == ["%1"]
    assert matched(p, "%0 = exp(x)\n %1 = tanh(%0)\n return %1") == ["%1"]
    assert matched(p, "%0 = exp(x)\n return %0") is None
    several = "%0, %1 = softmax(x, axis=0, keep_stats=true)\n %2 = relu(%0)\n return %2"
    assert matched(P.repeat(["relu", "softmax"], max=3), several) == ["%2"]  # only of one result
    # a node joins only when all of its users have
    shared = "%0 = relu(x)\n %1 = tanh(%0)\n %2 = relu(%1)\n %3 = add(%2, %0)\n return %3"
    assert matched(p, shared) == ["%1", "%2", "%3"]


def test_long_chains_stay_linear():
    g = Graph()
    v = x = g.input("x", dtype="f32", shape=(4,))
    for _ in range(500):
        v = g.add(g.relu(v), x)
    g.output(v)

    class Chain(Rewrite):
        visits = 0

        def where(self, node):
            Chain.visits += 1

        def pattern(self, g, x):
            return g.repeat(["relu", "add"], g.exp(x), max=5, where=self.where)

        def replace(self, g, x):
            raise AssertionError

    assert Chain()(g) == 0 and Chain.visits < 1000 * 12
