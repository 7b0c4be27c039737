"""Outlines: each box with its id, lines, node and place, and each edge once."""
import numpy as np

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
      %s = sin(v)
      %d = dequantize(x, scales=[0.1])
      %y = add(%d, %s)
      %q = quantize(%y, dtype=u8, scales=[0.1])
      %d2 = dequantize(%q, scales=[0.1])
      %c = sin(%d2)
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
