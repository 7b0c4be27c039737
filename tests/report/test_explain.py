"""Causes that are alike, and the share of the time that each has.

`explain()`: the summary, one value, all of it, JSON, and graphs in stages.
"""
import re
from dataclasses import fields

import numpy as np
import pytest
from moved_obstacles import ALL
from onnx import helper, numpy_helper

import graphq as gq
from graphq.errors import InputError
from graphq.ir.node import ONNX_NAME
from graphq.report import explain, records
from graphq.report.explain import alike, shared, timed
from graphq.report.profile import Profile, StepTime
from graphq.report.records import Cause, GraphNode, Operation, PartitionRecord, Report, StepRecord


def cause(value, reason="why", edit="do", share=None, id=None, also=(), check="c"):
    return Cause(id, "node", value, "add", "Fuse", check, None, None, reason, edit, also, share)


def test_names_and_types_do_not_tell_causes_apart():
    a = cause("%a", 'reads %x : f32[2,?] of %"y z"')
    b = cause("%b", 'reads %u.1 : u8[3] of %3')
    c = cause("%c", "reads %x : f32[2,?] with %y")
    assert alike([a, c, b]) == [[a, b], [c]]
    others = [cause("%d", a.reason, edit="other"), cause("%e", a.reason, check="other")]
    assert alike([a, *others]) == [[a], [others[0]], [others[1]]]
    assert alike([cause("%a", edit="quantize %x"), cause("%b", edit="quantize %y")]) == [
        [cause("%a", edit="quantize %x"), cause("%b", edit="quantize %y")]]


def test_the_largest_share_comes_first():
    small, large, two = cause("%a", "A", share=0.2), cause("%b", "B", share=0.5), cause("%c", "A", share=0.4)
    assert alike([small, large]) == [[large], [small]] and alike([small, large, two]) == [[small, two], [large]]
    assert shared([small, two]) == pytest.approx(0.6) and shared([cause("%a")]) is None
    assert shared([small, cause("%d")]) == 0.2 and shared([large, cause("%x", share=0.75)]) == 1.0


def report(*causes, became):
    def node(id, steps, kind=None):
        operation = Operation("add", "add", "t", (), (), {})
        partition = None if kind is None else PartitionRecord("eltwise", kind, (), {}, ())
        return GraphNode(id, "partition" if kind else "reference", operation, partition, steps)

    return Report("net", "avx2", 1, True, causes=causes, became=became, nodes=(
        node(0, (0,)), node(1, (1, 2), "float"), node(2, (3,), "integer")),
        steps=tuple(StepRecord(k, None, "k", "native") for k in range(4)))


PROFILE = Profile(tuple(StepTime(k, "k", s, 0) for k, s in enumerate((0.1, 0.2, 0.3, 0.4))))


def shares(*causes, became, profile=PROFILE):
    return [c.share for c in timed(report(*causes, became=became), profile).causes]


def test_a_cause_has_the_time_of_what_its_operations_became():
    became = {"%a": 0, "%b": 1, "%c": 2, "%d": None}
    assert shares(cause("%b", id=0), cause("%b"), became=became) == pytest.approx([0.6, 0])
    assert shares(cause("%x", also=("%b", "%d")), cause("%a", id=0), became=became) == pytest.approx([0.5, 0.1])
    assert shares(cause("%c", id=2), became=became) == [0]  # in integers
    assert shares(cause("%d"), became=became) == [0]
    nothing = Profile(tuple(StepTime(k, "k", 0.0, 0) for k in range(4)))
    assert shares(cause("%a", id=0), became=became, profile=nothing) == [0.0]


def test_a_profile_of_another_model():
    with pytest.raises(InputError, match="the profile has 3 steps, the plan of graph 'net' 4: it is not of this model"):
        timed(report(became={}), Profile(PROFILE.steps[:3]))


SCALES = 'dtype=u8, scales=[0.2], zps=[7]'
TEXT = f"""graph two(x: u8[3,4], r: f32[3,2]) {{
  %w = constant(value=s8[4,2]{{1, -2, 3, 4, 5, -6, 7, 8}})
  %dw = dequantize(%w, scales=[0.1])
  %dx = dequantize(x, scales=[0.1], zps=[3])
  %y = matmul(%dx, %dw)
  %0 = quantize(%y, {SCALES})
  %z = add(%y, r)
  %s = sign(%z)
  return %0, %z as sums, %s
}}"""


@pytest.fixture(scope="module")
def model():
    return gq.compile(gq.parse(TEXT), threads=1)


def test_the_summary_comes_first(model):
    lines = model.explain().splitlines()
    assert lines[0].startswith("graph two: 3 partitions (1 integer), 1 operation outside")
    assert lines[1].startswith("coverage: 100% of 24 multiply-accumulates")
    assert lines[2] == "partitions: 2 eltwise (2 in floats), 1 matmul (1 in integers)"
    assert lines[3] == "could be in an integer partition, and why it is not:"
    assert lines[4] == "  %0 = quantize(%y) : u8[3,2]"
    assert lines[5].startswith("    why:  %y has a second user in f32: %z = add(%y, r)")
    assert lines[6] == "    edit: quantize before the fork: let it read the dequantized %0 (quantize) instead of %y"


@pytest.mark.parametrize("name", ["y", "%y"])
def test_a_value_in_an_integer_partition(model, name):
    first, where, step = model.explain(name).splitlines()
    assert first == "%y = matmul(%dx, %dw) : f32[3,2]"
    assert where == "  in the matmul partition (dequantize, dequantize, matmul) : f32[3,2], in integers"
    assert step.startswith("  0: matmul_u8s8")


def test_a_value_outside(model):
    assert model.explain("0").splitlines()[2].endswith("let it read the dequantized %0 (quantize) instead of %y")
    first, outside, why, edit, *_ = model.explain("z").splitlines()
    assert (first, outside) == ("%z = add(%y, r) : f32[3,2]", "  outside with %0 = quantize(%y) : u8[3,2]")
    assert why.startswith("  why:  %y has a second user in f32") and edit.startswith("  edit: quantize before the fork")
    assert model.explain("sums") == model.explain("z")  # the name of an output
    assert "in no partition: its NumPy reference" in model.explain("s")


def test_inputs_and_constants(model):
    assert model.explain("r").splitlines() == ["r : f32[3,2] is an input of the graph",
                                               "  used by %z = partition(%y, r) : f32[3,2]"]
    assert "a constant" in model.explain("w")
    folded = gq.compile(gq.parse("graph(x: f32[2]) {\n %a = constant(value=f32[2]{1, 2})\n %b = exp(%a)\n"
                                 " %c = add(x, %b)\n return %c\n}"), threads=1)
    assert "computed when the model was compiled" in folded.explain("b")


def test_names_of_onnx_nodes_and_all_labels_that_are_printed():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["mid"], "fc1"), helper.make_node("Relu", ["mid"], ["r"], "act"),
             helper.make_node("Gemm", ["r", "w", "b"], ["out"], "fc2")]
    arrays = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (4, 4)), ("b", (4,)))]
    x, out = (helper.make_tensor_value_info(name, 1, (3, 4)) for name in ("x", "out"))
    model = gq.compile(gq.load_onnx(helper.make_model(helper.make_graph(nodes, "g", [x], [out], arrays))), threads=1)
    assert model.explain("fc1") == model.explain("mid") and model.explain("fc2") == model.explain("out")
    with pytest.raises(gq.GraphError, match="no value 'fc3'; did you mean fc"):
        model.explain("fc3")
    first, *_ = model.explain().splitlines()
    assert first.startswith("nothing in this model is quantized: graphq quantize MODEL --data SAMPLES -o QUANTIZED")


@pytest.mark.parametrize("obstacle", ["a softmax along the height", "a dense layer behind a mean of pixels"])
def test_every_label_that_is_printed_can_be_asked_for(obstacle):
    model = gq.compile(gq.parse(ALL[obstacle][0]), threads=1)
    labels = set(re.findall(r"%\w+", model.explain(full=True)))
    assert len(labels) > 5 and all(model.explain(label) for label in labels)


def test_a_view_says_what_makes_it():
    model = gq.compile(gq.parse("graph(x: f32[4,6]) {\n %y = relu(x)\n %f = static_reshape(%y, shape=[24])\n"
                                " %i = static_reshape(x, shape=[24])\n return %f, %i\n}"), threads=1)
    assert "a view of the result of the eltwise partition (relu) : f32[4,6], in floats: it takes no step" in \
        model.explain("f")
    assert "a view of an input or a constant: it takes no step" in model.explain("i")


def test_causes_that_are_alike_are_one_entry_with_their_share_of_the_time():
    lines = "".join(f"%y{k} = matmul(%y{k - 1}, %w)\n" for k in range(1, 12))
    model = gq.compile(gq.parse("graph(x: f32[8,64]) {\n %w = constant(value=f32[64,64]{"
                                + ", ".join(["0.01"] * 4096) + "})\n %y0 = relu(x)\n" + lines + "return %y11\n}"),
                       threads=1)
    profile = model.profile(np.ones((8, 64), np.float32), runs=2)
    text = model.explain(profile=profile)
    (entry,) = [x for x in text.splitlines() if "of the time: %y" in x and "matmul" in x]
    assert "and 10 more like it: %y2, %y3, %y4, %y5, %y6, %y7, %y8, %y9, 2 more" in text
    shares = [c["share"] for c in model.explain(profile=profile, format="json")["causes"]]
    assert len(shares) == 11 and 0 < sum(shares) <= 1.0001 and min(shares) > 0
    other = gq.compile(gq.parse("graph(x: f32[8,64]) {\n %y = relu(x)\n return %y\n}"), threads=1)
    with pytest.raises(gq.InputError, match="the profile has 11 steps|the profile has 12 steps"):
        other.explain(profile=profile)


def test_unknown_names_and_formats(model):
    with pytest.raises(gq.GraphError, match="graph 'two' has no value 'nix'; there are w, dw, dx, y, "):
        model.explain("nix")
    with pytest.raises(gq.GraphError, match="graph 'two' has no value 'sum'; did you mean sums"):
        model.explain("sum")
    with pytest.raises(gq.GraphError, match="format must be 'text' or 'json', got 'xml'"):
        model.explain(format="xml")
    with pytest.raises(gq.GraphError, match="the name of a value, got 3"):
        model.explain(3)


def test_json_is_all_of_the_report(model):
    data, report = model.explain(format="json"), model.explanation()
    assert data["schema"] == "graphq.explain/2" and set(data) == {f.name for f in fields(records.Report)}
    assert [n["operation"]["op"] for n in data["nodes"]] == [n.op.name for n in model.graph.nodes]
    product = next(n for n in data["nodes"] if n["partition"] and n["partition"]["kind"] == "integer")
    assert [x["op"] for x in product["partition"]["body"]] == ["dequantize", "dequantize", "matmul"]
    assert set(product["partition"]["inputs"].values()) == {"x", "%w"} and product["macs"] == 24
    assert [data["steps"][k]["node"] for k in product["steps"]] == [product["id"]]
    assert product["kernels"][0].startswith("matmul_u8s8") and data["became"]["%y"] == product["id"]
    (cause,) = data["causes"]
    assert (cause["value"], cause["blocking_value"]) == ("%0", "%y") and cause["edit"] == report.causes[0].edit
    assert data["outputs"] == {"out0": "%0", "sums": "%z", "s": "%s"}
    assert data["inputs"][0] == {"label": "x", "type": "u8[3,4]", "dtype": "u8", "shape": [3, 4], "nbytes": 12}
    assert data["coverage"]["share"] == 1.0 and [s["op"] for s in data["source"]][-1] == "sign"


def test_json_of_one_value(model):
    report = model.explain(format="json")
    found = {name: model.explain(name, format="json") for name in ("y", "0", "x", "sums", "s")}
    assert all(set(data) == {f.name for f in fields(records.ValueRecord)} for data in found.values())
    assert {data["schema"] for data in found.values()} == {"graphq.explain.value/1"}
    assert (found["y"]["graph"], found["y"]["value"], found["y"]["cause"]) == ("two", "%y", None)
    node = found["y"]["node"]
    assert node == report["nodes"][node["id"]] and found["y"]["steps"] == [report["steps"][k] for k in node["steps"]]
    assert found["y"]["operation"] == next(op for op in report["source"] if op["op"] == "matmul")
    assert found["0"]["cause"] == report["causes"][0] and found["sums"] == model.explain("z", format="json")
    assert found["sums"]["cause"] == report["causes"][0] and found["s"]["node"]["role"] == "reference"
    assert [(s["runs"], s["parallel"], s["blocks"]) for s in found["s"]["steps"]] == [("reference", False, None)]
    assert found["x"]["input"] == report["inputs"][0] and found["x"]["node"] is None
    assert found["x"]["users"] == [node["operation"]["text"]]


def test_one_value_has_the_evidence_of_its_kernels(model):
    data = model.explain("y", kernels=True, format="json")
    assert data["steps"][0]["evidence"]["macs"] == 24
    assert "GOPS" in model.explain("y", kernels=True) and "GOPS" not in model.explain("y")


def test_json_of_measured_kernels(model):
    steps = model.explain(kernels=True, format="json")["steps"]
    assert steps[0]["evidence"]["macs"] == 24 and steps[0]["evidence"]["seconds"] > 0


def test_the_report_leaves_the_model_as_it_was(model):
    before = gq.to_text(model.graph)
    assert model.explain() == model.explain() and gq.to_text(model.graph) == before


@pytest.mark.parametrize("rows", [3, None])
def test_no_pass_runs_for_a_report(rows):
    runs = []

    def counted(graph):
        runs.append(graph)
        return 0

    text = TEXT if rows else TEXT.replace("x: u8[3,4], r: f32[3,2]", "x: u8[?,4], r: f32[?,2]")
    model = gq.compile(gq.parse(text), threads=1, passes=(counted, *gq.passes.PIPELINE))
    model(x=np.zeros((3, 4), np.uint8), r=np.zeros((3, 2), np.float32))
    before = len(runs)
    assert "%y has a second user in f32" in model.explain() and before == len(runs) > 0


def test_long_sections_are_cut_unless_all_is_asked_for():
    chain = "\n".join(f" %a{k} = sign(%a{k - 1})" for k in range(1, 40))
    model = gq.compile(gq.parse(f"graph(x: f32[3]) {{\n %a0 = sign(x)\n{chain}\n return %a39\n}}"), threads=1)
    short, full = model.explain(), model.explain(full=True)
    assert "... 32 more operations: explain(full=True)" in short and "%a20 = sign" not in short
    assert "%a20 = sign" in full and "more operations" not in full


def test_reports_of_open_shapes_and_of_stages():
    text = TEXT.replace("x: u8[3,4], r: f32[3,2]", "x: u8[?,4], r: f32[?,2]")
    model = gq.compile(gq.parse(text), threads=1)
    model(x=np.zeros((5, 4), np.uint8), r=np.zeros((5, 2), np.float32))
    data = model.explain(format="json")
    assert data["sizes"] == {"x.0": 5, "r.0": 5} and data["coverage"]["total"] == 40
    assert "%y has a second user in f32" in model.explain()
    staged = gq.compile(gq.parse("""graph(x: u8[4,4], w: s8[4,2]) {
      %d = dequantize(x, scales=[0.1])
      %v = dequantize(w, scales=[0.1])
      %u = wildcard(%d, dtypes=[f32])
      %t = tanh(%d)
      return %u, %t
    }"""), threads=1)
    data = staged.explain(format="json")
    assert list(data["parts"]) == ["head", "cut"] and "wildcard" in staged.explain("u")


def test_every_name_of_a_graph_in_stages_is_found():
    """Inputs that no part reads, outputs whose values have other names or none, ONNX nodes of the cut."""
    graph = gq.parse("""graph(x: f32[4], unread: f32[2], "a b": u8[3]) {
      %kept = relu("a b")
      %cut = wildcard(x, dtypes=[f32])
      %2 = tanh(%cut)
      return %2, %kept
    }""".replace('relu("a b")', 'dequantize("a b", scales=[0.5])'))
    next(n for n in graph.nodes if n.op.name == "wildcard").meta = {ONNX_NAME: "node 1"}
    graph.set_outputs(graph.outputs, ["last", "other name"])
    staged = gq.compile(graph, threads=1)
    assert staged.explain("unread") == "unread : f32[2] is an input of the graph"
    assert staged.explain("a b").startswith('"a b" : u8[3] is an input of the graph\n  used by')
    assert staged.explain("node 1").startswith("%cut = wildcard(x)")
    assert staged.explain("other name").startswith("%kept = dequantize")
    with pytest.raises(gq.GraphError, match="did you mean unread"):
        staged.explain("unread1")


def test_a_value_that_open_sizes_replace_is_found():
    ends = [helper.make_tensor_value_info("x", 1, ["n"]), helper.make_tensor_value_info("y", 1, None)]
    nodes = [helper.make_node("Expand", ["x", "to"], ["same"]), helper.make_node("Tanh", ["same"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.array([7]), "to")])
    model = gq.compile(gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), threads=1)
    model(np.zeros(7, np.float32))
    assert model.explain("same").startswith("%same = onnx_node Expand(x) : f32[7]")


def test_a_later_stage_that_reads_a_value_is_no_output_of_the_graph():
    staged = gq.compile(gq.parse(TEXT.replace("%z = add(%y, r)", "%z = wildcard(%y, dtypes=[f32])")), threads=1)
    _, why, edit, *_ = staged.explain("0").splitlines()
    assert "a later stage also reads %y in f32: %z = wildcard(%y)" in why
    assert "quantize %y before the fork" in edit


def test_constants_that_follow_from_open_sizes_have_no_numbers():
    nodes = [helper.make_node("Shape", ["x"], ["s"], start=0, end=1), helper.make_node("Squeeze", ["s"], ["n"]),
             helper.make_node("Range", ["zero", "n", "one"], ["r"]), helper.make_node("Cast", ["r"], ["f"], to=1),
             helper.make_node("Add", ["x", "f"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    numbers = [numpy_helper.from_array(np.array(k), name) for k, name in enumerate(("zero", "one"))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], numbers)
    model = gq.compile(gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), threads=1)
    constant = next(n["operation"] for n in model.explain(format="json")["nodes"] if n["role"] == "constant")
    assert constant["outputs"][0]["shape"] == [None] and constant["attributes"]["value"] == "?"


def test_near_misses_come_deepest_first_and_once():
    misses = [records.NearMiss(*x) for x in (
        ("%a", "One", "why", 1), ("%b", "Two", "why", 3), ("%a", "Three", "other", 2), ("%b", "One", "why", 1),
        ("%b", "Two", "why", 0))]
    report = records.Report("net", "avx2", 1, True, near_misses=tuple(misses))
    assert explain.as_text(report, full=True).splitlines()[1:-1] == [
        "near misses:", "  %b", "    Two, One: why", "  %a", "    Three: other", "    One: why"]
    assert "near misses" not in explain.as_text(report)


@pytest.mark.parametrize("count, shown", [(explain.LONG, explain.LONG), (explain.LONG + 1, explain.SHOWN)])
def test_long_sections_are_cut(count, shown):
    report = records.Report("net", "avx2", 1, True, steps=tuple(
        records.StepRecord(k, None, "copy", "native", 1 + k, k % 2 > 0) for k in range(count)))
    for full in (False, True):
        plan = explain.as_text(report, full=full).splitlines()[1:]
        lines = count if full else shown
        assert plan[0] == f"plan: {count} steps" and plan[1] == "  0: copy  (1 block, serial)"
        assert plan[2] == "  1: copy  (2 blocks, parallel)"
        assert len(plan) == 1 + lines + (lines < count)
        assert lines == count or plan[-1] == f"  ... {count - shown} more steps: explain(full=True)"


def made(number, role, label, *inputs, note=""):
    result = records.Tensor(label, "f32[2]", "f32", (2,), 8)
    return GraphNode(number, role, Operation("op", "op", f"{label} = op", inputs, (result,), {}), None, note=note)


def test_a_few_long_entries_are_not_cut():
    nodes = tuple(made(k, "reference", f"%{k}", note="one\ntwo\nthree") for k in range(explain.SHOWN))
    assert 4 * len(nodes) > explain.LONG
    text = explain.as_text(Report("net", "avx2", 1, True, nodes=nodes))
    assert f"%{explain.SHOWN - 1} = op" in text and "explain(full=True)" not in text


@pytest.mark.parametrize("role, said", [("native", "of %a"), ("constant", "of an input or a constant")])
def test_a_view_of_a_view_is_of_what_makes_it(role, said):
    report = Report("net", "avx2", 1, True, nodes=(
        made(0, role, "%a"), made(1, "view", "%b", "%a"), made(2, "view", "%c", "%b")), became={"%c": 2})
    text = explain.value_text(explain.about(report, "c", gq.Graph()))
    assert f"a view {said}: it takes no step" in text


def test_what_is_outside_for_one_cause_is_named_up_to_a_number():
    def shown(count):
        cause = records.Cause(None, "line", "%v", "add", "Fuse", "check", None, None, "why", "do",
                              tuple(f"%{k}" for k in range(count)), 0.25)
        return explain.as_text(records.Report("net", "avx2", 1, False, causes=(cause,))).splitlines()

    names = ", ".join(f"%{k}" for k in range(explain.ALSO))
    assert shown(0)[0] == explain.UNQUANTIZED and shown(0)[2:6] == [
        "could be in an integer partition, and why it is not:", "  25.0% of the time: line",
        "    why:  why", "    edit: do"]
    assert shown(explain.ALSO)[6] == f"    also: {names}"
    assert shown(explain.ALSO + 2)[6] == f"    also: {names}, 2 more"


def test_names_that_are_no_identifiers_are_found_and_printed_as_they_are():
    g = gq.Graph()
    g.output(g.relu(g.input("a b", dtype="f32", shape=(2, 3))), name="größe 1")
    model = gq.compile(g, threads=1)
    assert model.explain("a b").startswith('"a b" : f32[2,3] is an input')
    assert model.explain("größe 1").startswith('%"größe 1" = relu("a b")')
    assert gq.to_text(gq.parse(gq.to_text(g))) == gq.to_text(g)
