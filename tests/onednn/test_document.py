"""The document as data: strides, texts of messages, and JSON as oneDNN writes it."""
import json

from graphq.onednn.document import (
    UNKNOWN,
    FileAttribute,
    FileOp,
    GraphFile,
    LogicalTensor,
    dense_stride,
    shown,
    strides_in_order,
    to_json,
)


def test_strides():
    assert dense_stride((2, 3, 4)) == (12, 4, 1) and dense_stride(()) == () and dense_stride((5,)) == (1,)
    assert dense_stride((2, 0, 4)) == (4, 4, 1)
    assert dense_stride(None) == (UNKNOWN,) and dense_stride((2, None, 3)) == (UNKNOWN,) * 3
    assert strides_in_order((2, 3, 4, 5), (0, 2, 3, 1)) == (60, 1, 15, 3)
    assert strides_in_order((2, None, 4), (1, 0, 2)) == (4, 8, 1)


def test_values_in_messages_are_cut_short():
    assert shown("a" * 57) == repr("a" * 57) and len(shown("b" * 100)) == 60 and "..." in shown("b" * 100)
    assert shown([*range(12)]) == str([*range(12)]) and shown([*range(13)]).endswith("11, ...]")
    assert shown((*range(13),)).endswith("11, ...)")
    assert shown(10**39) == str(10**39) and len(shown(10**60)) == 40
    op = FileOp(7, "n" * 80, "Add", None, (), ())
    assert op.label.startswith("op 7 'nn") and op.label.endswith("nn' (Add)") and len(op.label) == 5 + 60 + 6


def test_a_document():
    x, y = LogicalTensor(3, "u8", (2, None), (UNKNOWN,) * 2, property_type="constant"), \
        LogicalTensor(4, "f32", None, (UNKNOWN,), layout_type="undef")
    ops = (FileOp(1, "d", "Dequantize", {"scales": FileAttribute("f32[]", (0.5, 2.0)),
                                         "qtype": FileAttribute("string", "per_channel")}, (x,), (y,)),
           FileOp(2, "e", "End", None, (y,), ()))
    file = GraphFile({"version": "3.0", "input_ports": (3,), "flag": True}, ops)
    text = to_json(file)
    assert text.endswith("}\n") and text.startswith('{\n  "version": "3.0",\n  "input_ports": [\n    3\n  ],')
    document = json.loads(text)
    assert list(document) == ["version", "input_ports", "flag", "graph"]
    first = {"id": 3, "dtype": "u8", "shape": [2, UNKNOWN], "stride": [UNKNOWN] * 2, "layout_type": "strided",
             "property_type": "constant"}
    second = {"id": 4, "dtype": "f32", "shape": [UNKNOWN], "stride": [UNKNOWN], "layout_type": "undef",
              "property_type": "undef"}
    assert document["graph"] == [
        {"id": 1, "name": "d", "kind": "Dequantize",
         "attrs": {"scales": {"type": "f32[]", "value": [0.5, 2.0]},
                   "qtype": {"type": "string", "value": "per_channel"}}, "inputs": [first], "outputs": [second]},
        {"id": 2, "name": "e", "kind": "End", "inputs": [second], "outputs": []}]
    assert file.with_ops(ops[1:]) == GraphFile(file.header, ops[1:])
    assert (x.type.dtype.name, x.type.shape, y.type.shape) == ("u8", (2, None), None)
