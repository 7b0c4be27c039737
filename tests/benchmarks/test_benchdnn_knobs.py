"""benchdnn's knobs: their text, what they make of a graph, and what is refused."""
import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from benchdnn_knobs import apply_knobs
from benchdnn_text import InShape, Knobs, parse_knobs, parse_line
from hypothesis import given, settings
from hypothesis import strategies as st

import graphq as gq
from graphq.errors import GraphError, GraphqError, ParseError
from graphq.ir.verify import verify
from graphq.onednn.files import from_graph, load_onednn_json, save_onednn_json

SHARED = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared"))
CASES = SHARED / "onednn_graphs" / "cases.txt"


def one(*arguments):
    (knobs,) = parse_knobs(arguments)
    return knobs


def dense(batch=4, per_channel=True):
    """Ops 0 to 4: dequantize, dequantize of weights, matmul, add, quantize; tensors t0 (x), t1 (w) and t2 (addend)."""
    g = gq.Graph("dense")
    x = g.input("t0", shape=(batch, 8), dtype="u8")
    w = g.input("t1", shape=(8, 3), dtype="s8", property="constant")
    scales, kind = ([1, 2, 3], "per_channel") if per_channel else ([1], "per_tensor")
    y = g.matmul(g.dequantize(x, scales=[0.5], zps=[3]), g.dequantize(w, qtype=kind, axis=1, scales=scales))
    y = g.add(y, g.input("t2", shape=(batch, 3), dtype="f32"), auto_broadcast="none")
    g.output(g.quantize(y, dtype="s8", scales=[0.1]), name="t9")
    return g


def norm_of_sum():
    """Ops 0 and 1: add, softmax with statistics; all f32."""
    g = gq.Graph("sum")
    y = g.add(g.input("t0", shape=(2, 3, 4), dtype="f32"), g.input("t1", shape=(2, 3, 4), dtype="f32"))
    y, stats = g.softmax(y, axis=-1, keep_stats=True)
    g.output(y, name="t4")
    g.output(stats, name="t5")
    return g


# -- the text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "wanted"), [
    ("0:2x3x4", {0: InShape((2, 3, 4))}),
    ("0:2x3x4*acb", {0: InShape((2, 3, 4), "acb")}),
    ("0:*acb+7:16", {0: InShape(None, "acb"), 7: InShape((16,))}),
    ("0:acb", {0: InShape(None, "acb")}),
    ("0:64x0*ab", {0: InShape((64, 0), "ab")}),
    ("1:-", {1: InShape(())}),
    ("1:default+2:1", {2: InShape((1,))}),
    ("default", {}),
    ("", {}),
])
def test_in_shapes(text, wanted):
    assert one(f"--in-shapes={text}").in_shapes == wanted


def test_op_attrs():
    knobs = one("--op-attrs=0:strides:2x2*auto_pad:SAME_UPPER+41:axis:-2")
    assert knobs.op_attrs == {0: {"strides": "2x2", "auto_pad": "SAME_UPPER"}, 41: {"axis": "-2"}}


def test_other_knobs():
    knobs = one("--dt=0:bf16+104:f16", "--op-kind=0:Add", "--mb=20", "--tensor-property=1:constant",
                "--expected-n-partitions=0")
    assert knobs == Knobs(dtypes={0: "bf16", 104: "f16"}, op_kinds={0: "Add"}, mb=20, properties={1: "constant"},
                          expected_partitions=0)
    assert one("--dt=bf16").dtypes == {None: "bf16"}
    assert one() == Knobs()


def test_commas_are_alternatives_in_every_combination():
    runs = parse_knobs(["--in-shapes=,0:2", "--op-kind=0:Add,0:Divide,0:Maximum"])
    assert [(r.in_shapes, r.op_kinds) for r in runs] == [
        (s, {0: k}) for s in ({}, {0: InShape((2,))}) for k in ("Add", "Divide", "Maximum")]
    assert str(runs[-1]) == "--in-shapes=0:2 --op-kind=0:Maximum"


def test_lines():
    (case,) = parse_line("--reset --mb=2 --case=op/f32/add.json")
    assert case.file == "op/f32/add.json" and case.knobs.mb == 2 and str(case) == "--mb=2 --case=op/f32/add.json"
    assert parse_line("  # a comment") == parse_line("") == []


@pytest.mark.parametrize(("argument", "message"), [
    ("--color=red", "unknown knob '--color=red'"),
    ("--mb", "unknown knob"),
    ("--mb=", "--mb: '' is not a number"),
    ("--mb=-1", "--mb: '-1' is not a number"),
    ("--mb=99999999999999999999999", "--mb: .* is not a number"),
    ("--in-shapes=0", "--in-shapes: an item must be ID:VALUE, got '0'"),
    ("--in-shapes=a:2", "--in-shapes: 'a' is not a number"),
    ("--in-shapes=0:2x", "--in-shapes: '' is not a number"),
    ("--in-shapes=0:2x-3", "--in-shapes: '-3' is not a number"),
    ("--in-shapes=0:2x3+0:2x3", "--in-shapes: the id 0 appears twice"),
    ("--in-shapes=0:2x3*aBx16b", "--in-shapes: the order in memory must name each dimension once"),
    ("--in-shapes=0:2x3*acb", "--in-shapes: the order in memory"),
    ("--in-shapes=0:2x3*", "--in-shapes: a '[*]' needs an order"),
    ("--in-shapes=0:", "--in-shapes: a shape is like"),
    ("--in-shapes=0:-*a", "--in-shapes: a scalar has no order"),
    ("--in-shapes=0:" + "x".join("1" * 13), "--in-shapes: a shape has at most 12"),
    ("--op-attrs=0:axis", "--op-attrs: an attribute must be NAME:VALUE, got 'axis'"),
    ("--op-attrs=0:axis:1*axis:2", "--op-attrs: the attribute axis appears twice"),
    ("--op-kind=0:", "--op-kind: an item must be ID:KIND"),
    ("--dt=f128", "--dt: must be one of f32, "),
    ("--dt=0:f128", "--dt: must be one of f32, "),
    ("--tensor-property=0:big", "--tensor-property: must be one of undef"),
    ("--mb=" + ",".join("1" * 10_001), "more than 10000 runs"),
    (7, "a knob must be a string"),
])
def test_bad_text_is_refused_with_the_knob_named(argument, message):
    with pytest.raises(ParseError, match=message):
        parse_knobs([argument])


def test_bad_lines():
    for line, message in (("--mb=1", "needs one --case=FILE"), ("--case=a --case=b", "needs one"),
                          ("--case='a", "quot"), ("--mb=x --case=b.json", "--mb: 'x' is not a number")):
        with pytest.raises(ParseError, match=message):
            parse_line(line)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.sampled_from(["--in-shapes=", "--op-attrs=", "--dt=", "--op-kind=", "--mb=", "--tensor-property=", ""]),
       st.text("0123456789x*:+-,abcd f16AddxNone", max_size=25))
def test_any_text_gives_knobs_or_a_graphq_error(knob, text):
    try:
        runs = parse_knobs([knob + text])
        for knobs in runs[:20]:
            verify(apply_knobs(norm_of_sum(), knobs))
    except GraphqError as e:
        assert knob.strip("=") in str(e)


# -- what they make of a graph --------------------------------------------------------------------------------


def test_shapes_follow_downstream():
    g = apply_knobs(dense(), one("--in-shapes=0:7x16+1:16x2+2:7x2"))
    verify(g)
    assert [str(v.type) for v in g.inputs] == ["u8[7,16]", "s8[16,2]", "f32[7,2]"]
    assert str(g.outputs[0].type) == "s8[7,2]" and g.output_names == ["t9"]
    assert g.nodes[1].attrs["scales"] == (1.0, 2.0)  # per channel: as many as channels


def test_scales_repeat_to_more_channels():
    g = apply_knobs(dense(), one("--in-shapes=1:8x5+2:4x5"))
    assert g.nodes[1].attrs["scales"] == (1.0, 2.0, 3.0, 1.0, 2.0)


def test_the_graph_itself_stays_as_it_was():
    g = dense()
    text = gq.to_text(g)
    assert [v.type for v in apply_knobs(g, Knobs()).outputs] == [v.type for v in g.outputs]
    apply_knobs(g, one("--in-shapes=0:7x8+2:7x3"))
    assert gq.to_text(g) == text


def test_the_order_in_memory_becomes_strides():
    file = from_graph(apply_knobs(norm_of_sum(), one("--in-shapes=0:*acb+1:1x3x4*cab")))
    assert [t.stride for t in file.ops[0].inputs] == [(12, 1, 3), (3, 1, 3)]


def test_order_in_memory_changes_no_numbers():
    g = norm_of_sum()
    h = apply_knobs(g, one("--in-shapes=0:*cba"))
    inputs = gq.testing.random_inputs(g)
    np.testing.assert_array_equal(gq.reference(g, inputs)["t4"], gq.reference(h, inputs)["t4"])


def test_result_is_saved_with_its_shapes(tmp_path):
    g = apply_knobs(dense(), one("--in-shapes=0:7x8+2:7x3"))
    save_onednn_json(g, tmp_path / "g.json")
    h = load_onednn_json(tmp_path / "g.json")
    assert [v.type for n in h.nodes for v in n.outputs] == [v.type for n in g.nodes for v in n.outputs]
    assert all(t.shape is not None for op in from_graph(g).ops for t in (*op.inputs, *op.outputs))


def test_scalars_and_empty_tensors():
    g = norm_of_sum()
    assert apply_knobs(g, one("--in-shapes=1:-")).outputs[0].shape == (2, 3, 4)
    assert apply_knobs(g, one("--in-shapes=0:2x0x4+1:2x0x4")).outputs[0].shape == (2, 0, 4)


def test_attributes_take_the_type_of_the_file_or_the_op():
    g = dense()
    h = apply_knobs(g, one("--op-attrs=2:transpose_b:1*accumulation_mode:f16+4:zps:32+3:auto_broadcast:numpy",
                           "--in-shapes=1:3x8+2:1x3"))
    matmul, add, quantize = h.nodes[2:]
    assert matmul.attrs["transpose_b"] is True and matmul.attrs["accumulation_mode"] == "f16"
    assert add.attrs["auto_broadcast"] == "numpy" and quantize.attrs["zps"] == (32,)
    assert apply_knobs(g, one("--op-attrs=4:scales:0.25")).nodes[4].attrs["scales"] == (0.25,)


def test_kinds():
    g = apply_knobs(norm_of_sum(), one("--op-kind=0:SquaredDifference"))
    assert g.nodes[0].op.name == "squared_difference" and g.nodes[0].meta["id"] == 0


def test_one_type_for_all_floating_point_tensors():
    g = apply_knobs(norm_of_sum(), one("--dt=bf16"))
    assert {str(v.dtype) for v in g.inputs} == {"bf16"}
    assert [str(v.dtype) for v in g.outputs] == ["bf16", "f32"]  # statistics are f32


def test_types_by_id():
    g = apply_knobs(norm_of_sum(), one("--dt=0:f16+1:f16+2:f16+4:f16"))
    assert [str(v.dtype) for v in (*g.inputs, *g.outputs)] == ["f16", "f16", "f16", "f32"]


def test_properties():
    g = apply_knobs(norm_of_sum(), one("--tensor-property=1:constant+0:variable"))
    assert [v.property for v in g.inputs] == ["variable", "constant"]
    scalar = apply_knobs(norm_of_sum(), one("--in-shapes=1:-", "--tensor-property=1:host_scalar"))
    assert scalar.inputs[1].property == "host_scalar"


@pytest.mark.parametrize("batch", [1, 4])
def test_minibatch(batch):
    g = apply_knobs(dense(batch), one("--mb=20"))
    assert [v.shape for v in g.inputs] == [(20, 8), (8, 3), (20, 3)] and g.outputs[0].shape == (20, 3)
    assert apply_knobs(dense(batch), one("--mb=0")).inputs[0].shape == (batch, 8)


def test_minibatch_of_attention_goes_through_reshapes():
    g = gq.Graph()
    q, k = (g.input(n, shape=(2, 3, 5, 4), dtype="f32") for n in ("t0", "t1"))
    y = g.add(g.matmul(q, k, transpose_b=True), g.input("t2", shape=(1, 1, 5, 5), dtype="f32"))
    y = g.static_reshape(g.static_transpose(y, order=[0, 2, 1, 3]), shape=[2, 5, 15], special_zero=False)
    g.output(y, name="t9")
    h = apply_knobs(g, one("--mb=7"))
    assert [v.shape for v in h.inputs] == [(7, 3, 5, 4), (7, 3, 5, 4), (1, 1, 5, 5)]
    assert h.outputs[0].shape == (7, 5, 15)


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argument", "message"), [
    ("--in-shapes=77:2", "--in-shapes: the graph has no tensor 77"),
    ("--in-shapes=9:4x3", "--in-shapes: tensor 9 is no input, op 4 .* computes it"),
    ("--in-shapes=0:*abc", "--in-shapes: tensor 0 is u8.*, the order abc does not fit"),
    ("--in-shapes=0:4x7", r"--in-shapes=0:4x7: .*op 2 'matmul_2' \(MatMul\): .*k must agree"),
    ("--in-shapes=0:999999999x999999999", r"--in-shapes: tensor 0: .*2\*\*48 elements"),
    ("--op-attrs=77:axis:1", "--op-attrs: the graph has no op 77"),
    ("--op-attrs=2:axis:1", r"--op-attrs: op 2 'matmul_2' \(MatMul\): axis: MatMul has no such attribute"),
    ("--op-attrs=2:transpose_b:maybe", "--op-attrs: op 2 .*transpose_b: must be 0, 1, true or false, got 'maybe'"),
    ("--op-attrs=0:axis:x", "--op-attrs: op 0 .*axis: 'x' is not a value of type s64"),
    ("--op-attrs=0:axis:1x2", "--op-attrs: op 0 .*axis: '1x2' is not a value of type s64"),
    ("--op-attrs=0:scales:nan", "--op-attrs: op 0 .*scales: must be a finite f32"),
    ("--op-attrs=0:zps:9999999999999999999", "--op-attrs: op 0 .*zps: must be an integer in"),
    ("--op-attrs=0:qtype:per_row", "--op-attrs=0:qtype:per_row: .*'qtype' must be one of"),
    ("--op-kind=77:Add", "--op-kind: the graph has no op 77"),
    ("--op-kind=3:Addd", "--op-kind=3:Addd: .*'Addd' is not one of oneDNN's"),
    ("--dt=bf16", "--dt: one type for all is for graphs that convert none, this one has op 0"),
    ("--dt=77:bf16", "--dt: the graph has no tensor 77"),
    ("--dt=0:bf16", "--dt=0:bf16: .*op 0 "),
    ("--tensor-property=0:host_scalar", "--tensor-property: tensor 0 is a host_scalar"),
])
def test_knobs_that_do_not_fit_are_refused(argument, message):
    with pytest.raises((GraphError, ParseError), match=message):
        apply_knobs(dense(), one(argument))


def test_among_several_ids_unknown_ones_are_passed_over():
    knobs = one("--in-shapes=0:7x8+2:7x3+77:1")
    assert apply_knobs(dense(), knobs).outputs[0].shape == (7, 3)


def test_one_integer_type_for_all_is_refused():
    with pytest.raises(GraphError, match="--dt: one type for all must be f32, bf16, f16, got s8"):
        apply_knobs(norm_of_sum(), one("--dt=s8"))


def test_graphs_with_data_are_refused():
    g = gq.Graph()
    g.output(g.add(g.input("t0", shape=(2,), dtype="f32"), np.ones(2, np.float32)))
    with pytest.raises(GraphError, match="knobs are for graphs without data"):
        apply_knobs(g, Knobs(mb=2))


# -- oneDNN's own cases ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not CASES.exists(), reason="oneDNN's cases are not here; GRAPHQ_SHARED names their folder")
def test_onednns_cases_apply():
    lines = [cases for line in CASES.read_text().splitlines() if (cases := parse_line(line))]
    assert len(lines) == 1010 and sum(map(len, lines)) == 1153
    loaded, missing = {}, set()
    for case in chain(*lines):
        if case.file not in loaded:
            try:
                loaded[case.file] = load_onednn_json(CASES.parent / case.file)
            except GraphqError as e:
                missing.add(str(e))
                loaded[case.file] = None
        if loaded[case.file] is not None:
            apply_knobs(loaded[case.file], case.knobs)
    assert all("yet" in reason for reason in missing), missing


def test_strides_of_an_order_in_memory():
    from graphq.onednn.document import UNKNOWN, dense_stride, strides_in_order
    assert strides_in_order((2, 3, 4), (0, 1, 2)) == dense_stride((2, 3, 4)) == (12, 4, 1)
    assert strides_in_order((2, 3, 4), (2, 0, 1)) == (3, 1, 6) and strides_in_order((2, 3, 4), (1, 2, 0)) == (1, 8, 2)
    assert strides_in_order((2, 0, 4), (0, 1, 2)) == (4, 4, 1) and strides_in_order((), ()) == ()
    assert dense_stride((2, None)) == (UNKNOWN, UNKNOWN) and dense_stride(None) == (UNKNOWN,)
