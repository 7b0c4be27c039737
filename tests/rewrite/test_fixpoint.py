"""What a run of passes leaves: which node of the graph as it was each node came from.

Fixpoint: several passes as one, which passes it has, and its near misses.
"""
from functools import partial

import numpy as np
import pytest
from graphs import graph_of

import graphq as gq
from graphq.errors import GraphError
from graphq.ir.text import to_text
from graphq.passes import PIPELINE, DropRepeatedRelu, MergeTransposes, canonicalize, run_passes, without
from graphq.passes.move_quantization import TransposeBeforeDequantize
from graphq.rewrite.fixpoint import Fixpoint, History, apply, find_pass, pass_name
from graphq.rewrite.rule import ANY, Rewrite

TEXT = """graph(x: u8[2,3]) {
  %d = dequantize(x, scales=[0.5])
  %t = static_transpose(%d, order=[1,0])
  %y = relu(%t)
  return %y
}"""


class Doubled(Rewrite):
    """relu(x) -> multiply(relu(x), 1), once"""

    def pattern(self, g, x):
        return g.relu(x)

    def check(self, g):
        return "done" if g.nodes_of(["multiply"]) else None

    def replace(self, g, x):
        return g.multiply(g.relu(x), np.float32(1))


def test_a_new_node_came_from_the_matched_one_of_its_operation_or_from_the_root():
    graph = gq.parse(TEXT)
    History(graph)
    first = {n.op.name: n for n in graph.nodes}
    assert TransposeBeforeDequantize()(graph) == 1 and Doubled()(graph) == 1
    assert {n.op.name: n.origin for n in graph.nodes} == {
        "static_transpose": first["static_transpose"], "dequantize": first["dequantize"], "relu": first["relu"],
        "constant": first["relu"], "multiply": first["relu"]}


def test_what_is_made_of_a_new_node_came_from_the_first():
    graph = gq.parse(TEXT.replace("%y = relu(%t)", "%u = static_transpose(%t, order=[1,0])\n  %y = relu(%u)"))
    History(graph)
    (dequantize,) = graph.nodes_of(["dequantize"])
    assert TransposeBeforeDequantize()(graph) == 2
    assert [n.origin for n in graph.nodes_of(["dequantize"])] == [dequantize]


def test_after_the_first_fusion_nodes_came_from_those_before_it():
    graph = gq.parse(TEXT)
    history = History(graph)
    after = history.fork()
    assert after is not graph and history.fork() is after
    assert [n.origin for n in after.nodes] == graph.nodes
    assert Doubled()(after) == 1
    assert {n.origin for n in after.nodes if n.op.name in ("relu", "multiply")} == {*graph.nodes_of(["relu"])}


def test_without_a_history_no_node_is_kept():
    graph = gq.parse(TEXT)
    assert Doubled()(graph) == 1 and TransposeBeforeDequantize()(graph) == 1
    assert all(n.origin is None for n in graph.nodes)


graph = partial(graph_of, inputs="x: f32[4,4]")


class AbsOfRelu(Rewrite):
    """abs(relu(x)) -> relu(x)"""

    def pattern(self, g, x):
        return g.abs(g.relu(x))

    def replace(self, g, x):
        return g.relu(x)


RELUS = "%0 = relu(x)\n %1 = abs(%0)\n %2 = relu(%1)\n %3 = abs(%2)\n return %3"


def test_passes_run_again_until_none_changes_the_graph():
    g = graph(RELUS)
    pair = Fixpoint("pair", DropRepeatedRelu(), AbsOfRelu())
    assert apply(pair, g) == (3, [])
    assert to_text(g) == to_text(graph("%0 = relu(x)\n return %0"))
    assert pair(g) == 0


def test_it_says_what_it_is_made_of():
    assert repr(Fixpoint("pair", DropRepeatedRelu(), len)) == "Fixpoint('pair', DropRepeatedRelu, len)"
    assert pass_name(canonicalize) == "canonicalize" and "DropMultiplyByOne" in repr(canonicalize)
    assert Fixpoint("none")(graph(RELUS)) == 0


def test_passes_are_left_out_by_name():
    fewer = without(PIPELINE, "RowsLast", "CubeAsProducts")
    assert [pass_name(p) for p in fewer] == [pass_name(p) for p in PIPELINE if pass_name(p) != "RowsLast"]
    for step in fewer:
        if pass_name(step) == "canonicalize":
            assert [p for p in canonicalize.passes if p not in step.passes] == \
                [p for p in canonicalize.passes if pass_name(p) == "CubeAsProducts"]
    assert "canonicalize" not in {pass_name(p) for p in without(PIPELINE, "canonicalize")}
    with pytest.raises(GraphError, match="no pass is named 'FuseNothing'"):
        without(PIPELINE, "FuseNothing")


def test_passes_are_found_by_name_in_others_too():
    inner, outer = Fixpoint("inner", AbsOfRelu(), len), Doubled()
    passes = (Fixpoint("first", len), outer, Fixpoint("second", DropRepeatedRelu(), inner))
    for name, wanted in (("Doubled", outer), ("inner", inner), ("AbsOfRelu", inner.passes[0]),
                         ("DropRepeatedRelu", passes[2].passes[0]), ("second", passes[2]), ("len", len)):
        assert find_pass(passes, name) is wanted
    assert find_pass(PIPELINE, "canonicalize") is canonicalize
    with pytest.raises(GraphError, match="no pass is named 'AbsOfReul'; did you mean AbsOfRelu?"):
        find_pass(passes, "AbsOfReul")


def test_a_pass_that_is_left_out_does_not_run():
    text, inputs = "%0 = pow(x, beta=3)\n return %0", "x: f32[4]"
    one = (canonicalize,)
    for passes, ops in ((one, ["square", "multiply"]), (without(one, "CubeAsProducts"), ["pow"])):
        g = graph(text, inputs=inputs)
        run_passes(g, passes)
        assert [n.op.name for n in g.nodes] == ops


def test_near_misses_are_whole_matches_in_the_graph_as_it_is_at_the_end():
    class ReluOfAbs(Rewrite):
        """relu(abs(x)) -> abs(x), where x is a matrix of 3 rows"""

        def pattern(self, g, x):
            return g.relu(g.abs(x, attrs=ANY))

        def check(self, x):
            return None if x.shape[0] == 3 else f"x is {x.type}"

        def replace(self, g, x):
            return g.abs(x)

    g = graph("%0 = abs(x)\n %1 = relu(%0)\n %2 = relu(%1)\n %3 = sigmoid(%2)\n %4 = relu(%3)\n return %4")
    count, (miss,) = Fixpoint("both", ReluOfAbs(), DropRepeatedRelu()).apply(g)
    assert count == 1 and miss[:4] == ("ReluOfAbs", "%1 = relu(%0) : f32[4,4]", "x is f32[4,4]", 2)
    assert [n.op.name for n in miss.nodes] == ["relu", "abs"]
    alone = {r.reason for r in ReluOfAbs().apply(g)[1]}
    assert alone > {miss.reason} and any(reason.startswith("expected abs, found sigmoid") for reason in alone)


def test_an_inner_value_with_another_user_is_a_near_miss():
    g = graph("%0 = static_transpose(x, order=[1,0])\n %1 = static_transpose(%0, order=[1,0])\n return %1, %0")
    count, (miss,) = Fixpoint("one", MergeTransposes()).apply(g)
    assert count == 0 and miss.rewrite == "MergeTransposes" and miss.reason.endswith("is also an output of the graph")


def test_what_is_no_pass_inside():
    with pytest.raises(GraphError, match="pass <lambda> must return the number of its changes, got None"):
        Fixpoint("bad", lambda g: None)(graph(RELUS))


def test_exceptions_name_the_passes():
    def fails(g):
        raise ValueError("no")

    with pytest.raises(ValueError) as e:
        run_passes(graph(RELUS), [Fixpoint("outer", fails)])
    assert e.value.__notes__ == ["in pass fails", "in pass outer"]
