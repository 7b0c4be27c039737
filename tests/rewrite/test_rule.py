"""Rewrite as a pass: when it applies, its near misses, and what is no rewrite."""
import sys

import pytest

from graphq.errors import GraphError, VerifyError
from graphq.ir.text import parse, to_text
from graphq.ir.verify import verify
from graphq.passes import PIPELINE, run_passes
from graphq.rewrite.fixpoint import rounds, tolerance_of
from graphq.rewrite.rule import Rewrite
from graphq.testing import check_pass


def graph(text):
    return parse(f"graph(x: f32[4,4], y: f32[4,4]) {{\n{text}\n}}")


class FuseBias(Rewrite):
    """add(matmul(a, b), bias) -> matmul(a, b, bias)"""

    def pattern(self, g, a, b, bias):
        return g.add(g.matmul(a, b), bias)

    def check(self, b, bias):
        n = b.shape[-1:]
        return None if bias.shape == n else f"bias must have shape {n}, got {bias.type}"

    def replace(self, g, a, b, bias):
        return g.matmul(a, b, bias)


MATMUL = """graph(x: f32[4,8], w: f32[8,16], b: f32[16]) {
  %0 = matmul(x, w)
  %1 = add(%0, b)
  return %1
}"""


def test_results_move_only_where_that_is_said():
    assert tolerance_of(FuseBias()) == 0 and tolerance_of(lambda graph: 0) == 0
    assert tolerance_of(rounds(0.25)(lambda graph: 0)) == 0.25


@pytest.mark.parametrize("order", ["%0, b", "b, %0"])
def test_the_example_of_the_docstring(order):
    check_pass(FuseBias(), count=1, before=MATMUL.replace("%0, b", order), after="""
        graph(x: f32[4,8], w: f32[8,16], b: f32[16]) {
          %0 = matmul(x, w, b)
          return %0
        }""")


@pytest.mark.parametrize("old,new,reason", [
    ("return %1", "return %1, %0", "%0 = matmul(x, w) : f32[4,16] is also an output of the graph"),
    ("return %1", "%2 = relu(%0)\n return %1, %2",
     "%0 = matmul(x, w) : f32[4,16] is also used by %2 = relu(%0) : f32[4,16]"),
    ("w)", "w, accumulation_mode=\"any\")", "attribute 'accumulation_mode' is 'any', not 'strict'"),
    ("b: f32[16]", "b: f32[4,16]", "bias must have shape (16,), got f32[4,16]"),
    ("matmul(x, w)", "matmul(x, w, b)", "%0 = matmul(x, w, b) : f32[4,16] has 3 operands, the pattern 2"),
])
def test_refusals(old, new, reason):
    text = MATMUL.replace(old, new)
    check_pass(FuseBias(), before=text)
    g = parse(text)
    count, (refusal, *others) = FuseBias().apply(g)
    assert count == 0 and others == []
    assert refusal.rewrite == "FuseBias" and refusal.node == "%1 = add(%0, b) : f32[4,16]"
    assert refusal.reason.endswith(reason) and refusal.depth == 2 and FuseBias().name == "FuseBias"


def test_no_near_miss_without_a_likeness():
    assert FuseBias().apply(parse("graph(x: f32[4]) {\n %0 = relu(x)\n return %0\n}")) == (0, [])


def test_nothing_is_made_where_no_node_can_be_a_root(monkeypatch):
    rule = sys.modules["graphq.rewrite.rule"]
    monkeypatch.setattr(rule, "Matcher", lambda *args, **options: pytest.fail("a matcher is made"))
    only_relu = "graph(x: f32[4]) {\n %0 = relu(x)\n return %0\n}"
    alone = "graph(x: f32[4,4], y: f32[4,4]) {\n %0 = add(x, y)\n return %0\n}"  # an add, but no matmul
    for text in (only_relu, alone):
        g = parse(text)
        assert FuseBias()(g) == 0 and FuseBias().apply(g, parts=False) == (0, [])
    assert FuseBias().apply(parse(only_relu)) == (0, [])
    with pytest.raises(pytest.fail.Exception, match="a matcher is made"):  # the add may be a near miss
        FuseBias().apply(parse(alone))


def test_near_misses_are_recorded_only_if_asked():
    g = parse(MATMUL.replace("b: f32[16]", "b: f32[4,16]"))
    count, refusals = FuseBias().apply(g, explain=False)
    assert (count, refusals) == (0, []) and len(FuseBias().apply(g)[1]) == 1


def test_only_candidates_are_tried():
    class OfX(FuseBias):
        def candidate(self, node):
            return any(v.name == "b" for v in node.operands)

        def check(self, bias):
            return "refused"

    text = MATMUL.replace("return %1", "%2 = matmul(x, w)\n  %3 = add(%2, c)\n  return %1, %3")
    _, (miss,) = OfX().apply(parse(text.replace("b: f32[16])", "b: f32[16], c: f32[16])")))
    operands = {v.name for n in miss.nodes for v in n.operands}
    assert miss.reason == "refused" and "b" in operands and "c" not in operands


def test_a_check_may_refuse_without_a_report():
    class Never(FuseBias):
        def check(self):
            return ""

    assert Never().apply(parse(MATMUL)) == (0, [])


def test_one_refusal_for_each_reason():
    g = graph("%0 = matmul(x, y)\n %1 = relu(%0)\n %2 = tanh(%1)\n return %2")

    class Chain(Rewrite):
        def pattern(self, g, a, b):
            return g.repeat(["relu", "tanh"], g.matmul(g.dequantize(a), b), max=3)

        def replace(self, g, a, b):
            raise AssertionError

    (refusal,) = Chain().apply(g)[1]
    assert refusal.node == "%0 = matmul(x, y) : f32[4,4]"
    assert refusal.reason == "expected dequantize, found input x: f32[4,4]"


def test_rewrites_go_on_until_nothing_matches():
    class Once(Rewrite):
        def pattern(self, g, x):
            return g.relu(g.relu(x))

        def replace(self, g, x):
            return g.relu(x)

    g = graph("%0 = relu(x)\n" + "\n".join(f"%{k} = relu(%{k - 1})" for k in range(1, 9)) + "\n return %8")
    assert Once()(g) == 8 and len(g.nodes) == 1
    verify(g)


def test_checks_take_what_they_name():
    seen = {}

    class All(Rewrite):
        def pattern(self, g, x, y):
            return g.any_of(g.add(x, y), g.relu(x))

        def check(self, g, match, y, x, limit=3):
            seen.update(g=g, match=match, x=x, y=y, limit=limit)
            return "seen"

        def replace(self, g, **variables):
            raise AssertionError

    g = graph("%0 = relu(x)\n return %0")
    assert All()(g) == 0
    assert seen["g"] is g and seen["match"].root is g.nodes[0] and seen["x"] is g.inputs[0]
    assert seen["y"] is None and seen["limit"] == 3 and seen["match"].node("relu") is g.nodes[0]


def test_what_check_notes_replace_is_given_once_a_match():
    class Noted(Rewrite):
        def pattern(self, g, x):
            return g.relu(x)

        def check(self, match, notes):
            assert not notes
            notes["found"] = match.root
            return "even" if match.root.output.name == "a" else None

        def replace(self, g, x, match, notes):
            assert notes == {"found": match.root}
            return g.abs(x)

    g = graph("%a = relu(x)\n %b = relu(%a)\n %c = relu(%b)\n return %c")
    assert Noted()(g) == 2 and [n.op.name for n in g.nodes] == ["relu", "abs", "abs"]


def rewrite(pattern=lambda self, g, x: g.relu(x), replace=lambda self, g, x: x, **methods):
    return type("Mine", (Rewrite,), {"pattern": pattern, "replace": replace, **methods})()


@pytest.mark.parametrize("bad,message", [
    (rewrite(check=lambda self, z: None),
     "Mine.check takes 'z', which the pattern does not have; it has g, match, notes, x"),
    (rewrite(replace=lambda self, g, bias: None), "Mine.replace takes 'bias', which the pattern does not have"),
    (rewrite(pattern=lambda self, g, match: g.relu(match)), "the name 'match' is not free for a variable"),
    (rewrite(check=lambda self: False), "Mine.check must return a reason or None, got False"),
    (rewrite(replace=lambda self, g, x: None), r"Mine at %0 = relu\(x\) : .*: replace must return a value, got None"),
    (rewrite(replace=lambda self, g, match: match.root.output), "replace returned the value that it replaces"),
    (rewrite(replace=lambda self, g, x: g.type_cast(x, dtype="bf16")),
     r"Mine at %1 = relu\(x\) : f32\[4,4\]: replace_uses: %1: f32\[4,4\] may not become %0: bf16\[4,4\]"),
    (rewrite(replace=lambda self, g, match: g.abs(match.root.output)), "is defined after the place of the new node"),
    (rewrite(replace=lambda self, g, x: g.softmax(x, axis=7)), r"Mine at .*: softmax\(x: f32\[4,4\]"),
    (rewrite(replace=lambda self, g, x: g.relu(x)), "Mine was applied 1.. times to 1 nodes: it undoes itself"),
    (rewrite(replace=lambda self, g, x: g.relu(g.relu(x))), "it undoes itself"),
    (type("Empty", (Rewrite,), {})(), "Empty has no method 'pattern'"),
    (type("Half", (Rewrite,), {"pattern": lambda self, g, x: g.relu(x)})(), "Half has no method 'replace'"),
])
def test_bad_rewrites(bad, message):
    with pytest.raises(GraphError, match=message):
        bad(graph("%0 = relu(x)\n return %0"))


def test_rewrites_that_undo_themselves_on_a_larger_graph():
    swap = rewrite(pattern=lambda self, g, x, y: g.subtract(x, y), replace=lambda self, g, x, y: g.subtract(x, y))
    g = graph("%0 = subtract(x, y)\n" + "\n".join(f"%{k} = relu(%{k - 1})" for k in range(1, 60)) + "\n return %59")
    with pytest.raises(GraphError, match="times to 60 nodes: it undoes itself"):
        swap(g)


def test_a_rewrite_may_return_an_operand():
    g = graph("%0 = relu(x)\n %1 = relu(%0)\n return %1, %1 as again")
    assert rewrite()(g) == 2 and to_text(g).endswith("return x as out0, x as again\n}")


def test_dead_roots():
    g = graph("%0 = relu(x)\n return y")
    assert rewrite()(g) == 1 and g.nodes == []
    verify(g)


# -- own passes in the pipeline -------------------------------------------------------------------------------


def test_own_passes_run_with_the_others():
    g = parse(MATMUL)
    calls = []

    def spy(graph):
        calls.append(len(graph.nodes))
        return 0

    refusals = run_passes(g, [spy, FuseBias(), spy, *PIPELINE])
    assert calls == [2, 1] and refusals[0].rewrite == "FuseMatmul"
    assert refusals[0].reason == "expected dequantize or dynamic_dequantize, found input x: f32[4,8]"


@pytest.mark.parametrize("bad,message", [
    (FuseBias, "a pass is a function or an instance of a Rewrite, got <class"), ("fuse", "got 'fuse'"),
    (lambda g: None, "pass <lambda> must return the number of its changes, got None")])
def test_what_is_no_pass(bad, message):
    with pytest.raises(GraphError, match=message):
        run_passes(parse(MATMUL), [bad])


def test_the_verifier_names_the_pass():
    def break_it(graph):
        graph.nodes[0].output.uses.clear()
        return 1

    with pytest.raises(VerifyError, match="after pass break_it: %0: recorded uses differ"):
        run_passes(parse(MATMUL), [break_it])


def test_changes_that_a_pass_does_not_count_are_verified():
    """New nodes at once, other changes at the end at the latest."""
    def add_nodes(graph):
        graph.relu(graph.inputs[0]).uses.append(None)
        return 0

    def break_it(graph):
        graph.nodes[0].output.uses.clear()
        return 0

    with pytest.raises(VerifyError, match="after pass add_nodes"):
        run_passes(parse(MATMUL), [add_nodes, FuseBias()])
    def nothing(graph):
        return 0

    with pytest.raises(VerifyError, match="after pass nothing: %0: recorded uses differ"):
        run_passes(parse(MATMUL), [break_it, nothing])


def test_debug_prints_what_changed(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHQ_DEBUG", "passes")
    run_passes(parse(MATMUL), [FuseBias(), FuseBias()])
    err = capsys.readouterr().err
    assert err.startswith("# FuseBias: 1\ngraph(x: f32[4,8]") and err.count("#") == 1
    monkeypatch.delenv("GRAPHQ_DEBUG")
    run_passes(parse(MATMUL), [FuseBias()])
    assert capsys.readouterr().err == ""


def test_verification_can_be_asked_for(monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)

    def break_it(graph):
        graph.nodes[0].output.uses.clear()
        return 1

    run_passes(parse(MATMUL), [break_it])
    monkeypatch.setenv("GRAPHQ_DEBUG", "verify")
    with pytest.raises(VerifyError, match="after pass break_it"):
        run_passes(parse(MATMUL), [break_it])
