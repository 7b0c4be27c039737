"""Layouts: boxes of the sizes that were asked for, in rows by their edges, which lead from border to border."""
import pytest

from graphq.ir.outline import Box, Outline
from graphq.report.drawing import draw
from graphq.report.layout import lay_out

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
    assert 'data-e="x y"' in svg and 'class="b input" data-n="x"' in svg and 'class="b output" data-n="y"' in svg
