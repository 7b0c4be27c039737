"""Kinds and attributes between oneDNN's files and graphq: spellings, types, what files leave out, what is refused."""
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir.op import lookup
from graphq.onednn.document import FileAttribute, FileOp, LogicalTensor, dense_stride
from graphq.onednn.kinds import (
    KINDS,
    attribute_form,
    canonical_kind,
    expect_value,
    from_outputs,
    grouped,
    kind_of,
    op_of_kind,
    read_attributes,
)


def test_every_kind_is_one_operation():
    ops = [op_of_kind(kind) for kind in KINDS]
    assert len(set(ops)) == len(ops) and [op.kind for op in ops] == list(KINDS)
    assert op_of_kind("Softmax") is op_of_kind("SoftMax") is lookup("softmax") and canonical_kind("Add") == "Add"
    with pytest.raises(GraphError, match=rf"kind: 'MatMull' is not one of oneDNN's {len(KINDS)} forward oper.*; did"):
        op_of_kind("MatMull")


@pytest.mark.parametrize("op, name, form", [
    ("softmax", "axis", "s64"), ("softmax", "mode", "string"), ("softmax", "keep_stats", None), ("softmax", "no", None),
    ("max_pool", "kernel", "s64[]"), ("quantize", "scales", "f32[]"), ("quantize", "zps", "s64[]"),
    ("elu", "alpha", "f32"),
    ("matmul", "transpose_a", "bool"), ("quantize", "qtype", "string"), ("quantize", "dtype", None),
    ("avg_pool", "in_order", None), ("dequantize", "group_axis", None), ("quantize", "group_axis", None)])
def test_forms_of_attributes(op, name, form):
    assert attribute_form(lookup(op), name) == form


def read(op, **given):
    return read_attributes(lookup(op), {name: FileAttribute(*a) for name, a in given.items()})


def test_attributes_in_our_spelling():
    assert read("matmul", transpose_a=("bool", 1), transpose_b=("bool", 0)) == {"transpose_a": True,
                                                                              "transpose_b": False}
    pool = {name: ("s64[]", (1, 1)) for name in ("kernel", "strides", "pads_begin", "pads_end")}
    assert read("max_pool", **pool, auto_pad=("string", "SAME_UPPER"))["auto_pad"] == "same_upper"
    assert read("max_pool", **pool, data_format=("string", "ncx"))["data_format"] == "NCX"
    assert read("softmax", axis=("s64", -1)) == {"axis": -1} and read("relu") == {}
    assert read("quantize", scales=("f32[]", (0.5,)), qtype=("string", "other"))["qtype"] == "other"


@pytest.mark.parametrize("op, given, message", [
    ("softmax", {"keep_stats": ("bool", 1)}, "attrs: SoftMax has no attribute 'keep_stats'; it has axis, mode"),
    ("relu", {"axis": ("s64", 1)}, "attrs: ReLU has no attribute 'axis'; it has none"),
    ("softmax", {"axis": ("f32", 1.0)}, "attrs.axis.type: must be s64, got f32"),
    ("elu", {}, "attribute 'alpha' is required"),
    ("interpolate", {"mode": ("string", "nearest"), "coordinate_transformation_mode": ("string", "Asymmetric")},
     "Interpolate's coordinate_transformation_mode is half_pixel or align_corners, got asymmetric")])
def test_attributes_that_are_refused(op, given, message):
    with pytest.raises(GraphError, match=message):
        read(op, **given)


def test_values_of_attributes():
    expect_value("half_pixel")
    expect_value(3)
    for value in ("asymmetric", "stepwise"):
        with pytest.raises(GraphError, match=f"got {value}"):
            expect_value(value)


def tensor(dtype, shape):
    return LogicalTensor(0, dtype, shape, dense_stride(shape))


def test_what_outputs_state():
    softmax, wildcard, cast = lookup("softmax"), lookup("wildcard"), lookup("type_cast")
    src = [tensor("f32", (2, 3)).type]
    assert from_outputs(softmax, src, {"axis": 1}, [tensor("f32", (2, 3))]) == {"axis": 1}
    assert from_outputs(softmax, src, {"axis": 1}, [tensor("bf16", (2, 3)), tensor("f32", (2, 1))]) == {
        "axis": 1, "keep_stats": True, "dtype": "bf16"}
    assert from_outputs(cast, src, {}, [tensor("f16", (2, 3))]) == {"dtype": "f16"}
    assert from_outputs(cast, src, {}, []) == {}
    assert from_outputs(wildcard, src, {}, [tensor("u8", (2, None)), tensor("f32", ())]) == {
        "dtypes": ["u8", "f32"], "shapes": [[2, -1], []]}
    assert from_outputs(wildcard, src, {}, [tensor("u8", (2,)), tensor("f32", None)]) == {
        "dtypes": ["u8", "f32"], "shapes": None}


def reader(number=1, kind="ConvTranspose", **attrs):
    return FileOp(1, "r", kind, {name: FileAttribute("", a) for name, a in attrs.items()}, (), ()), number


CHANNELS = {"qtype": "per_channel", "axis": 2, "scales": [1.0] * 6}


@pytest.mark.parametrize("attrs, readers, shape, axis", [
    (CHANNELS, [reader(groups=2)], (3, 3, 3, 8), 3),
    (CHANNELS, [reader(groups=2, weights_format="XOI")], (3, 3, 3, 8), 3),
    ({**CHANNELS, "axis": 1}, [reader(groups=2, weights_format="IOX")], (8, 3, 3, 3), 0),
    ({**CHANNELS, "axis": -2}, [reader(groups=2)], (3, 3, 3, 8), 3),
    (CHANNELS, [reader(0, groups=2), reader(groups=2)], (3, 3, 3, 8), 3),
    (CHANNELS, [reader(0, groups=2)], (3, 3, 3, 8), None), (CHANNELS, [reader(groups=1)], (3, 3, 3, 8), None),
    (CHANNELS, [reader()], (3, 3, 3, 8), None), (CHANNELS, [reader(groups=3)], (3, 3, 3, 8), None),
    (CHANNELS, [reader(kind="Convolution", groups=2)], (3, 3, 3, 8), None),
    (CHANNELS, [reader(groups=2, weights_format="ABC")], (3, 3, 3, 8), None),
    ({**CHANNELS, "axis": 3}, [reader(groups=2)], (3, 3, 3, 8), None),
    ({**CHANNELS, "qtype": "per_tensor"}, [reader(groups=2)], (3, 3, 3, 8), None),
    (CHANNELS, [reader(groups=2)], (3, 8), None),
    (CHANNELS, [reader(groups="2")], (3, 3, 3, 8), None),
    ({**CHANNELS, "scales": [1.0] * 3}, [reader(groups=1)], (3, 3, 3, 8), None),
    (CHANNELS, [reader(groups=2)], (3, 3, None, 8), None), (CHANNELS, [], (3, 3, 3, 8), None)])
def test_scales_of_groups(attrs, readers, shape, axis):
    made = grouped(lookup("dequantize"), [tensor("s8", shape).type], attrs, readers)
    assert made == (attrs if axis is None else {**attrs, "group_axis": axis})
    assert grouped(lookup("quantize"), [tensor("f32", shape).type], attrs, readers) is attrs


def test_kinds_of_nodes():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    assert kind_of(g.relu(x).node) == "ReLU" and kind_of(g.softmax(x, axis=1).node) == "SoftMax"
    with pytest.raises(GraphError, match="save: %.* = cum_sum.* is not a oneDNN operation$"):
        kind_of(g.cum_sum(x, axis=0).node)
    model = gq.compile(gq.parse("graph(x: f32[2]) {\n %0 = tanh(x)\n %1 = square(%0)\n return %1\n}"))
    with pytest.raises(GraphError, match="is not a oneDNN operation; save the graph before its passes"):
        kind_of(model.graph.nodes_of(("partition",))[0])
