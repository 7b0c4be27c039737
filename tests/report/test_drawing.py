"""Drawings of outlines: every box has its text, a box with others inside as a title above them."""
from xml.etree import ElementTree

import pytest

pytest.importorskip("pygraphviz")

from graphq.ir.outline import Box, Outline  # noqa: E402
from graphq.report.drawing import draw  # noqa: E402


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
