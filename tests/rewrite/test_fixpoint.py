"""Fixpoint: several passes as one, which passes it has, and its near misses."""
from functools import partial

import pytest
from graphs import graph_of

from graphq.errors import GraphError
from graphq.ir.text import to_text
from graphq.passes import PIPELINE, DropRepeatedRelu, MergeTransposes, canonicalise, run_passes, without
from graphq.rewrite.fixpoint import Fixpoint, apply, pass_name
from graphq.rewrite.rule import ANY, Rewrite

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
    assert pass_name(canonicalise) == "canonicalise" and "DropMultiplyByOne" in repr(canonicalise)
    assert Fixpoint("none")(graph(RELUS)) == 0


def test_passes_are_left_out_by_name():
    fewer = without(PIPELINE, "RowsLast", "CubeAsProducts")
    assert [pass_name(p) for p in fewer] == [pass_name(p) for p in PIPELINE if pass_name(p) != "RowsLast"]
    for step in fewer:
        if pass_name(step) == "canonicalise":
            assert [p for p in canonicalise.passes if p not in step.passes] == \
                [p for p in canonicalise.passes if pass_name(p) == "CubeAsProducts"]
    with pytest.raises(GraphError, match="no pass is named 'FuseNothing'"):
        without(PIPELINE, "FuseNothing")


def test_a_pass_that_is_left_out_does_not_run():
    text, inputs = "%0 = pow(x, beta=3)\n return %0", "x: f32[4]"
    one = (canonicalise,)
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
