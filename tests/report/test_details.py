"""Records of a page's boxes: of a report by hand, each row and link."""
from dataclasses import replace

import pytest

from graphq.report.details import CLASSES, compiled_records, css_class, source_records
from graphq.report.profile import StepTime
from graphq.report.records import Cause, GraphNode, Operation, PartitionRecord, Report, StepRecord, Tensor


def tensor(label, type="f32[2]"):
    return Tensor(label, type, "f32", (2,), 8)


def operation(op, inputs, *outputs, **attributes):
    return Operation(op, f"{op} of floats", "text", inputs, tuple(map(tensor, outputs)), attributes)


CAUSE = Cause(1, "node", "%s", "sin", "Fuse", "check", None, None, "no kernel", "quantize", ("%t",))
BODY = (operation("dequantize", ("a",), "%d", scales="[0.1]"), operation("quantize", ("%d",), "%q"))
REPORT = Report(
    "net", "avx2", 2, True, inputs=(tensor("x", "u8[2]"), tensor("z")), outputs={"out": "%q", "more": "%t"}, nodes=(
        GraphNode(0, "constant", operation("constant", (), "%c")),
        GraphNode(1, "reference", operation("sin", ("x", None, "%c", "%gone"), "%s", "%t", axis="1"), None, (0,),
                  note="a note"),
        GraphNode(2, "partition", operation("partition", ("%s",), "%q"),
                  PartitionRecord("eltwise", "integer", BODY, {}, ("%q",), ("a tie", "and one more")), (1, 2),
                  macs=12_345),
        GraphNode(3, "view", operation("static_reshape", ("%q",), "%r"), None, (3,))),
    steps=(StepRecord(0, 1, "sin", "reference"), StepRecord(1, 2, "k1", "native", 4, True),
           StepRecord(2, 2, "k2", "native", 1, False), StepRecord(3, 3, "copy", "python")),
    causes=(CAUSE, replace(CAUSE, id=None), replace(CAUSE, reason="more", edit="")),
    source=(operation("constant", (), "%c"), operation("sin", ("x", "z"), "%s", "%t", axis="1"),
            operation("neg", ("%t",), "%n"), operation("dequantize", ("%s",), "%q")),
    became={"%s": 1, "%t": 1, "%n": None, "%q": 2})


def test_boxes_after_the_passes():
    times = {0: StepTime(0, "sin", 0.001, 0), 1: StepTime(1, "k1", 0.002, 3_000_000), 2: StepTime(2, "k2", 0.001, 0)}
    records = compiled_records(REPORT, times, "after7", "before7", {"%s": "n9", "%t": "n8"})
    ends = {"i0": {"t": "input", "r": [["value", "x : u8[2]"]]}, "i1": {"t": "input", "r": [["value", "z : f32[2]"]]},
            "o0": {"t": "output", "r": [["name", "out"], ["value", "%q"]]},
            "o1": {"t": "output", "r": [["name", "more"], ["value", "%t"]]}}
    assert records == {
        "n1": {"t": "sin of floats", "s": 0.25, "go": [["before7", "n9", "as written"]], "r": [
            ["results", "%s : f32[2]\n%t : f32[2]"], ["operands", "x : u8[2]\n%c : f32[2]\n%gone"],
            ["attributes", "axis = 1"], ["runs as", "NumPy reference"], ["kernel", "0: sin"], ["time", "1 ms, 25.0%"],
            ["why", "no kernel", "why"], ["edit", "quantize", "edit"], ["why", "more", "why"],
            ["note", "a note", "why"]]},
        "n2": {"t": "eltwise partition", "s": 0.75, "r": [
            ["result", "%q : f32[2]"], ["operands", "%s : f32[2]"], ["runs as", "partition in integers"],
            ["operations", "dequantize, quantize"], ["ties", "a tie\nand one more"],
            ["kernels", "1: k1, 4 blocks\n2: k2, 1 blocks in one thread"], ["time", "3 ms, 75.0%, 2 GOPS"],
            ["MACs", "12,345"]]},
        "n2n0": {"t": "dequantize of floats", "go": [["after7", "n2", "in the eltwise partition"]], "r": [
            ["result", "%d : f32[2]"], ["operands", "a"], ["attributes", "scales = [0.1]"]]},
        "n2n1": {"t": "quantize of floats", "go": [["after7", "n2", "in the eltwise partition"]], "r": [
            ["result", "%q : f32[2]"], ["operands", "%d"]]},
        "n3": {"t": "static_reshape of floats", "r": [
            ["result", "%r : f32[2]"], ["operands", "%q : f32[2]"], ["runs as", "no step of its own"],
            ["kernel", "3: copy"]]}, **ends}


def test_boxes_without_a_profile_or_with_one_that_took_no_time():
    records = compiled_records(REPORT, {}, "after0", "before0", {})
    assert not any("s" in r for r in records.values())
    assert "time" not in {row[0] for r in records.values() for row in r["r"]}
    still = compiled_records(REPORT, {0: StepTime(0, "sin", 0.0, 5)}, "after0", "before0", {})
    assert ["time", "0 ms, 0.0%"] in still["n1"]["r"] and "s" not in still["n1"]


def test_boxes_of_the_graph_as_written():
    records, kinds, places = source_records(REPORT, "after3")
    assert places == {"%s": "n1", "%t": "n1", "%n": "n2", "%q": "n3"} and kinds == {"n1": "reference", "n3": "integer"}
    assert list(records) == ["n1", "n2", "n3", "i0", "i1", "o0", "o1"]
    assert records["n1"] == {"t": "sin of floats", "go": [["after3", "n1", "became part of the sin of floats"]], "r": [
        ["results", "%s : f32[2]\n%t : f32[2]"], ["operands", "x : u8[2]\nz : f32[2]"], ["attributes", "axis = 1"],
        ["why", "more", "why"]]}
    assert records["n2"] == {"t": "neg of floats", "r": [
        ["result", "%n : f32[2]"], ["operands", "%t : f32[2]"],
        ["became", "nothing that runs: computed when compiled, or merged with an equal operation"]]}
    assert records["n3"]["go"] == [["after3", "n2", "became part of the eltwise partition"]]


@pytest.mark.parametrize("role, op, kind", [
    ("native", "softmax", "native"), ("native", "static_transpose", "reorder"), ("reference", "sin", "reference"),
    ("reference", "static_transpose", "reference"), ("view", "static_reshape", "plain"), ("constant", "c", "plain")])
def test_classes(role, op, kind):
    assert css_class(GraphNode(0, role, operation(op, (), "%a"))) == kind and kind in CLASSES


@pytest.mark.parametrize("kind", ["integer", "quantized", "float"])
def test_classes_of_partitions(kind):
    node = GraphNode(0, "partition", operation("partition", (), "%a"), PartitionRecord("eltwise", kind, (), {}, ()))
    assert css_class(node) == kind


def test_a_cause_is_at_all_operations_that_it_holds_for():
    report = replace(REPORT, causes=(replace(CAUSE, also=("%n",)),))
    assert [["why", "no kernel", "why"] in record["r"] for record in source_records(report, "after")[0].values()] \
        == [True, True, False, False, False, False, False]


def test_an_operation_became_what_any_of_its_results_became():
    report = replace(REPORT, became={**REPORT.became, "%s": None})
    assert source_records(report, "after")[0]["n1"]["go"] == [["after", "n1", "became part of the sin of floats"]]
