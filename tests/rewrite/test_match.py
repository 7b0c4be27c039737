"""Which nodes a rewrite visits: all that its pattern can match, and few others."""
import numpy as np
import pytest

from graphq.ir import Graph
from graphq.ir.text import parse
from graphq.rewrite.match import Matcher, roots
from graphq.rewrite.pattern import ANY, PatternBuilder, Var

A, B = map(Var, "ab")
P = PatternBuilder()
PATTERNS = {
    "any": A,
    "one op": P.relu(A),
    "one of ops": P.any_of("relu", "tanh")(A),
    "nested": P.relu(P.add(A, B)),
    "an operand of any op": P.add(A, P.relu(B)),
    "two operands": P.add(P.exp(A), P.relu(B)),
    "optional": P.relu(P.optional("tanh", A)),
    "alternatives": P.any_of(P.relu(P.exp(A)), P.add(A, P.tanh(B))),
    "chain": P.repeat(["relu", "add"], P.exp(A), max=4),
    "chain without a beginning": P.repeat(["relu", "add"], max=4),
    "chain within": P.tanh(P.repeat(["relu", "add"], P.exp(A), max=4)),
    "any operands": P.add(...),
}


def random_graph(seed):
    rng, g = np.random.default_rng(seed), Graph()
    values = [g.input(name, dtype="f32", shape=(2,)) for name in "xy"]
    for _ in range(30):
        op = rng.choice(["relu", "tanh", "exp", "add"])
        operands = [values[max(0, len(values) - 1 - int(rng.integers(4)))] for _ in range(2 if op == "add" else 1)]
        values.append(getattr(g, op)(*operands))
    for v in values:
        if not v.uses:
            g.output(v)
    return g


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_roots_leave_out_no_match(pattern):
    for seed in range(30):
        g = random_graph(seed)
        matched = {n for n in g.nodes if any(True for _ in Matcher(pattern).matches(g, n))}
        few, more = (g.nodes if (found := roots(pattern, g, near=near)) is None else list(found)
                     for near in (False, True))
        assert len(few) == len(set(few)) and len(more) == len(set(more))
        assert matched <= set(few) <= set(more)


@pytest.mark.parametrize("pattern, few, more", [
    ("one op", "135", "135"),
    ("nested", "3", "135"),
    ("two operands", "2", "2"),
    ("chain", "023", "023"),
    ("chain within", "4", "4"),
])
def test_roots_are_few(pattern, few, more):
    g = parse("""graph(x: f32[4], y: f32[4]) {
                   %0 = exp(x)
                   %1 = relu(y)
                   %2 = add(%0, %1)
                   %3 = relu(%2)
                   %4 = tanh(%3)
                   %5 = relu(%4)
                   return %5
                 }""")
    for near, wanted in ((False, few), (True, more)):
        assert "".join(sorted(str(g.nodes.index(n)) for n in roots(PATTERNS[pattern], g, near=near))) == wanted


def misses(pattern, text, parts):
    """How many nodes the nearest miss of the last node has, and its reason."""
    g = parse(text)
    matcher = Matcher(pattern, parts=parts)
    assert not list(matcher.matches(g, g.nodes[-1]))
    return len(matcher.missed), matcher.reason()


def test_misses_of_parts_count_where_they_are_asked_for():
    text = "graph(x: f32[4], y: f32[4]) {\n %0 = tanh(x)\n %1 = relu(%0)\n return %1\n}"
    assert misses(P.relu(P.add(A, B)), text, parts=False) == (0, "")
    count, reason = misses(P.relu(P.add(A, B)), text, parts=True)
    assert count == 1 and "add" in reason and "tanh" in reason
    used = "graph(x: f32[4]) {\n %0 = tanh(x)\n %1 = relu(%0)\n return %0, %1\n}"
    whole = (2, "%0 = tanh(x) : f32[4] is also an output of the graph")
    assert misses(P.relu(P.tanh(A)), used, parts=False) == misses(P.relu(P.tanh(A)), used, parts=True) == whole


def test_one_variable_is_one_value():
    text = "graph(x: f32[4], y: f32[4]) {\n %0 = add(x, y)\n return %0\n}"
    assert misses(P.add(A, A), text, parts=True) == (1, "'a' would be two different values")
    g = parse(text.replace("(x, y)", "(x, x)"))
    (match,) = Matcher(P.add(A, A)).matches(g, g.nodes[0])
    assert match.values["a"] is g.inputs[0]


def test_nodes_of_a_match_are_a_tuple_that_is_asked_for_operations():
    g = parse("graph(x: f32[2]) {\n %a = exp(x)\n %b = relu(%a)\n %c = relu(%b)\n return %c\n}")
    (match,) = Matcher(P.relu(P.relu(P.exp(A)))).matches(g, g.nodes[-1])
    assert match.nodes == tuple(reversed(g.nodes)) and match.nodes("relu") == tuple(g.nodes[:0:-1])
    assert match.nodes("exp") == (match.node("exp"),) and match.nodes("add") == ()
    assert match.plus(g.nodes[0]).nodes("exp") == (g.nodes[0],)


def test_patterns_match_the_first_result_only():
    pattern = P.abs(P.top_k(A, attrs=ANY))
    text = "graph(x: f32[4]) {{\n %a, %b = top_k(x, k=2, axis=0)\n %c = {}\n return %c\n}}"
    g = parse(text.format("abs(%a)"))
    assert len(list(Matcher(pattern, several_results=True).matches(g, g.nodes[-1]))) == 1
    count, reason = misses(P.cast(P.top_k(A, attrs=ANY), attrs=ANY), text.format("cast(%b, dtype=f32)"), parts=True)
    assert count == 2 and reason.startswith("%b is output 1 of %a, %b = top_k(x")


def test_the_first_of_equal_misses_is_told():
    text = "graph(x: f32[4], y: f32[4]) {\n %0 = exp(x)\n %1 = tanh(y)\n %2 = add(%0, %1)\n return %2\n}"
    count, reason = misses(P.add(A, P.relu(B)), text, parts=True)
    assert count == 1 and reason == "expected relu, found tanh (%1): f32[4]"
