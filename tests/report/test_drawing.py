"""Layouts: boxes of the sizes that were asked for, in rows by their edges, which lead from border to border.

Drawings of outlines: every box has its text, a box with others inside as a title above them.
"""
import re
from importlib import resources
from xml.etree import ElementTree

import pytest

import graphq as gq
from graphq.ir.outline import Box, Outline, outline
from graphq.report.drawing import LONGEST, described, draw, lay_out, shortened

pytest.importorskip("pygraphviz")

GROUP = Box("p", "partition", ("title",), inside=(Box("a", "operation", ("a",)), Box("b", "operation", ("b",))))
OUTLINE = Outline((Box("x", "input", ("x",)), GROUP, Box("y", "output", ("y",))), (("x", "a"), ("a", "b"), ("b", "y")))
SIZES = {"x": (40, 20), "p": (90, 14), "a": (60, 36), "b": (80, 24), "y": (100, 18)}


@pytest.fixture(scope="module")
def layout():
    return lay_out(OUTLINE, SIZES)


def test_boxes_have_their_sizes_and_lie_in_the_drawing(layout):
    assert layout.places.keys() == SIZES.keys()
    for id, place in layout.places.items():
        if id != "p":
            assert (place.width, place.height) == pytest.approx(SIZES[id], abs=0.1)
        assert 0 <= place.x <= place.x + place.width <= layout.width + 0.1
        assert 0 <= place.y <= place.y + place.height <= layout.height + 0.1


def test_what_reads_a_box_lies_below_it(layout):
    p = layout.places
    for above, below in OUTLINE.edges:
        assert p[above].y + p[above].height < p[below].y


def test_a_box_holds_those_inside_and_has_room_for_its_title(layout):
    outer = layout.places["p"]
    for inner in (layout.places["a"], layout.places["b"]):
        assert outer.x <= inner.x - 8 + 0.1 and inner.x + inner.width + 8 - 0.1 <= outer.x + outer.width
        assert outer.y + SIZES["p"][1] <= inner.y and inner.y + inner.height + 8 - 0.1 <= outer.y + outer.height
    assert outer.width >= SIZES["p"][0]


def test_edges_lead_from_border_to_border(layout):
    assert list(layout.edges) == list(OUTLINE.edges)
    for (source, target), points in layout.edges.items():
        begin, end = layout.places[source], layout.places[target]
        assert len(points) % 3 == 1
        (x0, y0), (x1, y1) = points[0], points[-1]
        assert y0 == pytest.approx(begin.y + begin.height, abs=1) and y1 == pytest.approx(end.y, abs=1)
        assert begin.x <= x0 <= begin.x + begin.width and end.x <= x1 <= end.x + end.width


def test_drawings_place_boxes_where_the_layout_has_them():
    alone = Outline((Box("x", "input", ("abc", "d")), Box("y", "output", ("e",))), (("x", "y"),))
    svg = draw(alone, lambda box: box.lines, lambda box: box.kind)
    assert svg.count('class="t"') == 2 and svg.index(">abc<") < svg.index(">d<") < svg.index(">e<")
    assert draw(alone, lambda box: (), lambda box: box.kind).count("<rect") == 2  # boxes without text
    assert 'data-e="x y"' in svg and 'class="b input" data-n="x"' in svg and 'class="b output" data-n="y"' in svg


pytest.importorskip("pygraphviz")


def test_boxes_their_texts_and_edges():
    group = Box("p", "partition", ("the matmul",), inside=(Box("a", "operation", ("dequantize",)),
                                                           Box("b", "operation", ("matmul", "f32[2]"))))
    outline = Outline((Box("x", "input", ("x",)), group), (("x", "a"), ("a", "b")))
    svg = ElementTree.fromstring(draw(outline, lambda box: list(box.lines), lambda box: f"kind-{box.id}"))
    groups = [x for x in svg.iter() if "data-n" in x.attrib]
    assert [(x.get("data-n"), "".join(x.itertext()).strip()) for x in groups] == [
        ("p", ""), ("x", "x"), ("a", "dequantize"), ("b", "matmulf32[2]"), ("p", "the matmul")]
    assert {x.get("data-n"): x.get("class") for x in groups[:4]} == {id: f"b kind-{id}" for id in "pxab"}
    assert groups[4].get("class") == "b title"
    assert [x.get("data-e") for x in svg.iter() if "data-e" in x.attrib] == ["x a", "a b"]


def test_long_names_lose_what_they_share():
    names = [f'%"/features/features.{k}/conv/conv.{part}/{op}_output_0_QuantizeLinear_Output"'
             for k in range(12) for part in range(2) for op in ("Conv", "Clip")]
    short = shortened([*names, "matmul", "f32[2,3]"])
    assert short["matmul"] == "matmul" and short["f32[2,3]"] == "f32[2,3]"
    assert len({short[x] for x in names}) == len(names) and max(len(x) for x in short.values()) <= LONGEST
    assert short[names[5]] == "…1/conv/conv.0/Clip_output_0_…"


def test_a_long_part_loses_its_middle_and_what_cannot_be_printed_is_a_mark():
    word = "a" * 30 + "b" * 30
    short = shortened([word, f"graph/{word}c", "x\0y\nz"])
    assert short[word] == f"{'a' * 18}…{'b' * 17}" and short["x\0y\nz"] == "x\ufffdy z"
    assert short[f"graph/{word}c"] == f"…{'a' * 18}…{'b' * 16}c"


def test_titles_stay_legible_where_an_edge_crosses_them():
    """An edge from above enters a box at its middle, below the title: the title is drawn later, with an outline."""
    edges = (("x", "a"), ("a", "b"))
    svg = draw(Outline((Box("x", "input", ("x",)), GROUP), edges), lambda box: box.lines, lambda box: "k")
    assert svg.index('class="b title"') > max(svg.index(f'data-e="{a} {b}"') for a, b in edges)
    style = (resources.files("graphq") / "report" / "picture.css").read_text()
    (rules,) = re.findall(r"\.b\.title text \{(.*?)\}", style)
    assert "paint-order: stroke; stroke: var(--back);" in rules


def test_boxes_name_scales_and_values():
    g = gq.parse("""graph net(x: u8[4,8], v: f32[4,2]) {
      %w = constant(value=s8[8,2]{0}) : s8[8,2]
      %0 = dequantize(x, scales=[0.05], zps=[120])
      %1 = dequantize(%w, qtype="per_channel", axis=1, scales=[0.02, 0.5])
      %y = matmul(%0, %1)
      %q = quantize(%y, dtype=u8, scales=[0.1])
      %n = dequantize(%q, qtype="per_channel", axis=1, scales=[0.02, 0.5], zps=[1, 2])
      return %q, %n
    }""".replace("{0}", "{" + "1, " * 15 + "1}"))
    lines = [described(box) for box in outline(g).boxes]
    assert lines == [
        ("x", "u8[4,8]"), ("v", "f32[4,2]"), ("dequantize", "f32[4,8]", "scale 0.05, zero point 120", "%0"),
        ("matmul", "f32[4,2]", "%y"), ("quantize", "u8[4,2]", "scale 0.1", "%q"),
        ("dequantize", "f32[4,2]", "2 scales, 0.02 to 0.5, zero points", "%n"), ("q", "u8[4,2]"), ("n", "f32[4,2]")]
    made = outline(gq.compile(g).graph)
    (outer,) = (box for box in made.boxes if box.kind == "partition" and box.node.attrs["anchor"] == "matmul")
    assert described(outer) == ("matmul",) and ("dequantize", "f32[4,8]", "scale 0.05, zero point 120") in map(
        described, outer.inside)
    (alone,) = (box for box in outline(outer.node.graph, bodies=False).boxes if box.node is outer.node)
    assert described(alone) == ("matmul partition", "u8[4,2]", "scale 0.1", "%q")
