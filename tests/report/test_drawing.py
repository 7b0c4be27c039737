"""Drawings of outlines: every box has its text, a box with others inside as a title above them."""
from xml.etree import ElementTree

import pytest

from graphq.ir.outline import Box, Outline
from graphq.report.drawing import LONGEST, draw, shortened

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
