"""Outlines: each box with its id, lines, node and place, and each edge once.

Drawings as text: what has a box, where edges lead, and that names from models stay names.
"""
import re

import numpy as np
import pytest

import graphq as gq
from graphq.ir.outline import outline


def shown(boxes):
    return [(b.id, b.kind, b.lines, *([shown(b.inside)] if b.inside else [])) for b in boxes]


def test_inputs_operations_and_outputs(g, x):
    y = g.input("y", dtype="f32", shape=(3,))
    s = g.add(x, g.add(y, y))
    g.output(g.relu(s), name="r")
    g.output(s, name="s")
    made = outline(g)
    assert shown(made.boxes) == [
        ("i0", "input", ("x", "f32[2,3]")), ("i1", "input", ("y", "f32[3]")), ("n0", "operation", ("add", "f32[3]")),
        ("n1", "operation", ("add", "f32[2,3]")), ("n2", "operation", ("relu", "f32[2,3]")),
        ("o0", "output", ("r", "f32[2,3]")), ("o1", "output", ("s", "f32[2,3]"))]
    assert made.edges == (("i1", "n0"), ("i0", "n1"), ("n0", "n1"), ("n1", "n2"), ("n2", "o0"), ("n1", "o1"))
    assert [b.value for b in made.boxes if b.value is not None] == [x, y, *g.outputs]
    assert [b.node for b in made.boxes if b.node is not None] == list(g.nodes)


def test_what_constants_decide_has_no_box_unless_it_is_returned(g, x):
    w = g.constant(np.ones(3, np.float32))
    g.output(g.add(x, g.square(w)), name="y")
    returned = g.square(g.constant(np.ones(2, np.float32)))
    g.output(returned, name="z")
    made = outline(g)
    assert [b.id for b in made.walk()] == ["i0", "n2", "n4", "o0", "o1"]
    assert made.edges == (("i0", "n2"), ("n2", "o0"), ("n4", "o1"))


def test_the_body_of_a_partition_stands_in_its_box():
    model = gq.compile(gq.parse("""graph(x: u8[2,3], v: f32[2,3]) {
      %s = sign(v)
      %d = dequantize(x, scales=[0.1])
      %y = add(%d, %s)
      %q = quantize(%y, dtype=u8, scales=[0.1])
      %d2 = dequantize(%q, scales=[0.1])
      %c = sign(%d2)
      return %c
    }"""), threads=1)
    made = outline(model.graph)
    (part,) = (b for b in made.boxes if b.kind == "partition")
    node = part.node
    assert part.lines[0] == f"{node.attrs['anchor']} partition" and part.lines[1] == str(node.output.type)
    inside = [b.id for b in part.inside]
    assert all(i.startswith(part.id + "n") for i in inside)
    assert [b.node for b in part.inside] == list(node.attrs["body"].nodes)
    assert ("i0", inside[0]) in made.edges and part.id not in {end for edge in made.edges for end in edge}
    assert [b.id for b in made.walk()].index(part.id) + 1 == [b.id for b in made.walk()].index(inside[0])
    after = next(b.id for b in made.boxes if b.node is not None and next(b.node.operands) is node.output)
    assert [e for e in made.edges if e[1] == after] == [(inside[-1], after)]
    flat = outline(model.graph, bodies=False)
    assert [b.id for b in flat.boxes] == [b.id for b in made.boxes] and not any(b.inside for b in flat.boxes)
    assert {("i0", part.id), (part.id, after)} <= set(flat.edges)


def test_bodies_of_branches_stand_in_groups():
    g = gq.Graph()
    c, x = g.input("c", dtype="boolean", shape=()), g.input("x", dtype="f32", shape=(2,))
    bodies = []
    for name in ("relu", "abs"):
        body = gq.Graph(name)
        body.output(getattr(body, name)(body.input("a", dtype="f32", shape=(2,))), name="b")
        bodies.append(body)
    g.output(g.if_else(c, x, then_body=bodies[0], else_body=bodies[1]), name="y")
    made = outline(g)
    group = made.boxes[2]
    title = group.lines[0]
    assert shown([group]) == [("n0b", "group", (title,), [
        ("n0", "operation", (title, "f32[2]")),
        ("n0b0", "group", ("then_body",), [("n0b0i0", "input", ("a", "f32[2]")),
                                             ("n0b0n0", "operation", ("relu", "f32[2]")),
                                             ("n0b0o0", "output", ("b", "f32[2]"))]),
        ("n0b1", "group", ("else_body",), [("n0b1i0", "input", ("a", "f32[2]")),
                                             ("n0b1n0", "operation", ("abs", "f32[2]")),
                                             ("n0b1o0", "output", ("b", "f32[2]"))])])]
    assert made.edges == (("i0", "n0"), ("i1", "n0"), ("n0b0i0", "n0b0n0"), ("n0b0n0", "n0b0o0"),
                          ("n0b1i0", "n0b1n0"), ("n0b1n0", "n0b1o0"), ("n0", "o0"))
    assert [b.id for b in outline(g, bodies=False).boxes] == ["i0", "i1", "n0", "o0"]


TEXT = """graph net(x: u8[1,4], y: f32[4]) {
  %w = constant(value=s8[4,4]{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}) : s8[4,4]
  %0 = dequantize(x, scales=[0.1], zps=[3])
  %1 = dequantize(%w, scales=[0.1])
  %2 = matmul(%0, %1)
  %3 = tanh(%2)
  %4 = quantize(%3, dtype=u8, scales=[0.2], zps=[0])
  %5 = sin(y)
  return %4 as q, %5 as s, %w as weights
}"""

HOSTILE = ['"', "\\", '\\"', "</script><script>alert(1)</script>", "a\nb", "a\\nb", "<b>&amp;", "#quot;", "%%{init}%%",
           "end", "]", "`x`", "{x}", "; n0 -> n1", "\x1b[31m", "\\N\\G", "日本", "<table>", "]:::x", "\u2028"]


def titles(graph, **options):
    return [(box.id, box.lines[0]) for box in outline(graph, **options).walk()]


def test_constants_and_what_they_decide_have_no_box():
    g = gq.parse(TEXT)
    ids = dict(titles(g))
    assert ids == {"i0": "x", "i1": "y", "n0": "constant", "n1": "dequantize", "n2": "dequantize", "n3": "matmul",
                   "n4": "tanh", "n5": "quantize", "n6": "sin", "o0": "q", "o1": "s", "o2": "weights"}
    edges = outline(g).edges
    assert ("n0", "o2") in edges and ("n2", "n3") in edges  # a constant that is returned has one
    g.set_outputs(g.outputs[:2], g.output_names[:2])
    assert "n0" not in dict(titles(g)) and "n2" not in dict(titles(g))
    assert outline(g).edges == (("i0", "n1"), ("n1", "n3"), ("n3", "n4"), ("n4", "n5"), ("i1", "n6"),
                                ("n5", "o0"), ("n6", "o1"))


def test_partitions_hold_their_bodies_and_edges_go_through():
    g = gq.compile(gq.parse(TEXT)).graph
    (matmul,) = (b for b in outline(g).boxes if b.lines[0] == "matmul partition")
    assert [b.lines[0] for b in matmul.inside] == ["dequantize", "dequantize", "matmul", "tanh", "quantize"]
    made = outline(g)
    leaves = {b.id for b in made.walk() if not b.inside}
    assert {x for edge in made.edges for x in edge} <= leaves
    assert ("i0", matmul.inside[0].id) in made.edges and (matmul.inside[-1].id, "o0") in made.edges
    closed = outline(g, bodies=False)
    assert ("i0", matmul.id) in closed.edges and (matmul.id, "o0") in closed.edges
    assert all(not b.inside for b in closed.walk())


def test_bodies_of_branches_are_groups():
    g = gq.parse("""graph(c: boolean[], x: f32[3]) {
      %0 = if_else(c, x, then_body=graph(a: f32[3]) {
        %r = relu(a)
        return %r
      }, else_body=graph(a: f32[3]) {
        return a
      }) : f32[3]
      return %0 as y
    }""")
    (group,) = (b for b in outline(g).boxes if b.kind == "group")
    inner, *bodies = group.inside
    assert inner.lines[0] == "if_else" and [b.lines[0] for b in bodies] == ["then_body", "else_body"]
    assert {("i0", inner.id), ("i1", inner.id), (inner.id, "o0"), (f"{bodies[0].id}i0", f"{bodies[0].id}n0"),
            (f"{bodies[1].id}i0", f"{bodies[1].id}o0")} <= set(outline(g).edges)
    assert len(outline(g, bodies=False).boxes) == 4


def test_graphviz_reads_partitions_as_clusters():
    pygraphviz = pytest.importorskip("pygraphviz")
    g = gq.compile(gq.parse(TEXT)).graph
    drawn, made = pygraphviz.AGraph(string=g.to_dot()), outline(g)
    assert set(drawn.edges()) == set(made.edges)
    assert [sorted(c.nodes()) for c in drawn.subgraphs()] == \
        [sorted(x.id for x in b.inside) for b in made.walk() if b.kind == "partition"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_in_dot(name):
    """Every quoted string ends where it should: outside of strings there are words of ours alone."""
    g = gq.Graph(name)
    g.output(g.relu(g.input(name, dtype="f32", shape=[2])), name=name + "!")
    text = g.to_dot()
    rest = re.sub(r'"(?:[^"\\\n]|\\.)*"', "S", text)
    words = set(re.findall(r"\w+", rest))
    assert words == {"digraph", "S", "graph", "fontname", "monospace", "fontsize", "10", "node", "i0", "n0", "o0",
                     "shape", "box", "style", "rounded", "label"}
    assert text.count("->") - name.count("->") * 3 == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_graphviz_reads_the_names(name):
    pygraphviz = pytest.importorskip("pygraphviz")
    g = gq.Graph(name)
    g.output(g.relu(g.input(name, dtype="f32", shape=[2])))
    drawn = pygraphviz.AGraph(string=g.to_dot())
    assert sorted(drawn.nodes()) == ["i0", "n0", "o0"] and drawn.number_of_edges() == 2
    label = drawn.get_node("i0").attr["label"]
    shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in name)
    assert label == (shown + "\nf32[2]").replace("\\", "\\\\").replace("\n", "\\n")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_in_mermaid(name):
    g = gq.Graph(name)
    g.output(g.relu(g.input(name, dtype="f32", shape=[2])))
    lines = g.to_mermaid().splitlines()
    assert lines[0] == "flowchart TD" and len(lines) == 6
    label = re.fullmatch(r'  i0\(\["(.*)<br/>f32\[2\]"\]\)', lines[1])
    assert label and not set('<>"`{};\\') & set(re.sub(r"#\d+;", "", label[1]))
    assert re.sub(r"#(\d+);", lambda c: chr(int(c[1])), label[1]) == name


def test_large_constants_do_not_show():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=[1000])
    g.output(g.add(x, np.arange(1000, dtype=np.float32)))
    assert len(g.to_dot()) < 700
