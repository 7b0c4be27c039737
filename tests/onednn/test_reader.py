"""Bad oneDNN files: each is refused with an error of graphq that names file, op and field."""
import json
import os

import pytest
from onednn_document import dense, document, load, op, tensor, write

from graphq.errors import GraphError, ParseError
from graphq.onednn import reader as onednn_reader
from graphq.onednn.files import load_onednn_json


def change(*steps, to=None, drop=False):
    """A function that changes one place of a document."""
    def apply(doc):
        place = doc
        for s in steps[:-1]:
            place = place[s]
        if drop:
            del place[steps[-1]]
        else:
            place[steps[-1]] = to
        return doc
    return apply


RELU, MATMUL, DEQUANTIZE = ("graph", 3), ("graph", 2), ("graph", 1)
BAD = {
    "no version": (change("version", drop=True), "the field 'version' is missing"),
    "version 4": (change("version", to="4.0.0"), r"version: graphq reads .* got '4.0.0'"),
    "version word": (change("version", to="new"), "version: must be MAJOR.MINOR.PATCH"),
    "engine": (change("engine_kind", to="tpu"), "engine_kind: must be one of any, cpu, gpu"),
    "fpmath": (change("fpmath_mode", to=1), "fpmath_mode: must be one of"),
    "unknown field": (change("color", to=1), "unknown field 'color'"),
    "graph is no list": (change("graph", to={}), "graph: must be a list"),
    "op is no object": (change(*RELU, to=5), r"graph\[3\]: must be an object, got 5"),
    "op without a kind": (change(*RELU, "kind", drop=True), r"graph\[3\]: the field 'kind' is missing"),
    "negative op id": (change(*RELU, "id", to=-1), r"graph\[3\].id: must be an integer in \[0, "),
    "huge op id": (change(*RELU, "id", to=2**64), r"graph\[3\].id: must be an integer in \[0, "),
    "boolean op id": (change(*RELU, "id", to=True), r"graph\[3\].id: must be an integer"),
    "fractional op id": (change(*RELU, "id", to=1.0), r"graph\[3\].id: must be an integer"),
    "duplicate op id": (change(*RELU, "id", to=8), "op 8 'ReLU_9' .*: id: taken by op 8 'MatMul_8'"),
    "unknown kind": (change(*RELU, "kind", to="ReLu"), "op 9 'ReLU_9' .*kind: 'ReLu' is not one of .* ReLU"),
    "backward kind": (change(*RELU, "kind", to="ReLUBackward"), "is not one of oneDNN's 62 forward"),
    "kind of ours": (change(*RELU, "kind", to="Partition"), "kind: 'Partition' is not one of"),
    "unknown dtype": (change(*RELU, "inputs", 0, "dtype", to="f128"), r"op 9 .*inputs\[0\].dtype: must be one of"),
    "numpy's dtype": (change(*RELU, "inputs", 0, "dtype", to="float32"), r"op 9 .*inputs\[0\].dtype: must be one of"),
    "unknown layout": (change(*RELU, "inputs", 0, "layout_type", to="x"), "layout_type: must be one of"),
    "unknown property": (change(*RELU, "inputs", 0, "property_type", to="x"), "property_type: must be one of"),
    "host scalar of rank 2": (change(*RELU, "inputs", 0, "property_type", to="host_scalar"), r"has shape \[\]"),
    "attribute type": (change(*MATMUL, "attrs", "transpose_a", "type", to="f64"),
                       "transpose_a.type: must be one of bool"),
    "other attribute type": (change(*MATMUL, "attrs", "transpose_a", to={"type": "s64", "value": 1}),
                             "op 8 .*attrs.transpose_a.type: must be bool, got s64"),
    "attribute value": (change(*MATMUL, "attrs", "transpose_a", "value", to=2),
                        "transpose_a.value: must be 0, 1, true"),
    "attribute not a list": (change(*DEQUANTIZE, "attrs", "scales", "value", to=1), "scales.value: must be a list"),
    "scale beyond f32": (change(*DEQUANTIZE, "attrs", "scales", "value", 0, to=1e39),
                         "scales.value: must be a finite f32"),
    "zero point beyond s64": (change(*DEQUANTIZE, "attrs", "zps", "value", 0, to=2**63),
                              "zps.value: must be an integer"),
    "unknown attribute": (change(*RELU, "attrs", "alpha", to={"type": "f32", "value": 1}),
                          "ReLU has no attribute 'alpha'"),
    "our attribute": (change(*MATMUL, "attrs", "dtype", to={"type": "string", "value": "f32"}),
                      "has no attribute 'dtype'"),
    "missing attribute": (change(*DEQUANTIZE, "attrs", "scales", drop=True), "op 7 .*attribute 'scales' is required"),
    "wrong word": (change(*DEQUANTIZE, "attrs", "qtype", "value", to="per_row"), "op 7 .*'qtype' must be one of"),
    "scales too few": (change(*DEQUANTIZE, "attrs", "scales", "value", to=[1]),
                       "op 7 .*per_channel takes 2|have the same length, got 2 and 1"),
    "negative dim": (change(*RELU, "inputs", 0, "shape", to=[-1, 2]), r"op 9 .*inputs\[0\].shape: .*not be negative"),
    "huge dim": (change("graph", 0, "inputs", 0, "shape", to=[2**62, 8]), r"inputs\[0\].shape: .* 2\*\*48 elements"),
    "huge product": (change("graph", 0, "inputs", 0, "shape", to=[2**25, 2**25]), r"inputs\[0\].shape: .* 2\*\*48"),
    "dim beyond 64 bits": (change("graph", 0, "inputs", 0, "shape", to=[2**70, 8]), r"shape: must be an integer"),
    "rank 13": (change("graph", 0, "inputs", 0, "shape", to=[1] * 13), "rank 13 is larger than 12"),
    "stride of another rank": (change(*RELU, "inputs", 0, "stride", to=[1]),
                               r"op 9 .*inputs\[0\].stride: must have one"),
    "negative stride": (change(*RELU, "inputs", 0, "stride", to=[-2, 1]), "stride: must not be negative"),
    "overlapping stride": (change(*RELU, "inputs", 0, "stride", to=[1, 1]), "stride: puts two elements at one place"),
    "stride too far": (change(*RELU, "inputs", 0, "stride", to=[2**62, 1]), "stride: reaches further"),
    "shape against inference": (change("graph", 4, "outputs", 0, to=tensor(14, [4, 3], "s8")),
                                r"op 2 'Quantize_2' .*outputs\[0\].shape: .* declares s8\[4,3\].*gives s8\[4,2\]"),
    "dtype against inference": (change("graph", 4, to=op(2, "Abs", [tensor(13, [4, 2])], [tensor(14, [4, 2], "f16")])),
                                r"op 2 .*outputs\[0\].dtype: the file declares f16, the operation gives f32"),
    "uses disagree on dtype": (change(*RELU, "inputs", 0, "dtype", to="f16"),
                               r"op 9 .*inputs\[0\].dtype: tensor 12 is f32"),
    "uses disagree on shape": (change(*RELU, "inputs", 0, to=tensor(12, [4, 5])),
                               r"op 9 .*inputs\[0\].shape: tensor 12"),
    "two producers": (change(*RELU, "outputs", 0, "id", to=10),
                      r"op 9 .*outputs\[0\].id: tensor 10 is computed by op 139"),
    "too many outputs": (change(*RELU, "outputs", to=[tensor(13, [4, 2]), tensor(40, [4, 2])]),
                         "op 9 .*outputs: the file declares 2, the operation has 1"),
    "too few inputs": (change(*MATMUL, "inputs", to=[tensor(10, [4, 8])]), r"op 8 .*takes operands"),
    "input port is computed": (change("input_ports", to=[12]), "input_ports: tensor 12 is computed by an op"),
    "output port is an input": (change("output_ports", to=[0]), "output_ports: tensor 0 is computed by no op"),
    "port is no id": (change("output_ports", to=["a"]), "output_ports: must be an integer"),
    "half a character": (change(*RELU, "name", to="\ud800"), r"graph\[3\].name: has half of a surrogate pair"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_documents_are_refused_with_file_op_and_field(case, tmp_path):
    damage, message = BAD[case]
    path = write(tmp_path, damage(dense()))
    with pytest.raises((ParseError, GraphError), match=message) as e:
        load_onednn_json(path)
    assert str(e.value).startswith(f"{path}: ") and len(str(e.value)) < 2000


def test_a_cycle_is_refused_with_the_ops_named(tmp_path):
    a = op(1, "ReLU", [tensor(1, [2])], [tensor(2, [2])])
    b = op(2, "Abs", [tensor(2, [2])], [tensor(1, [2])])
    with pytest.raises(GraphError, match=r"graph: a cycle: op . '.*' \(.*\) -> op . '.*' \(.*\) -> op"):
        load(tmp_path, document(a, b))
    itself = op(1, "ReLU", [tensor(1, [2])], [tensor(1, [2])])
    with pytest.raises(GraphError, match="a cycle: op 1 'ReLU_1'"):
        load(tmp_path, document(itself))


def test_a_long_chain_in_reverse_order_is_no_cycle_and_takes_no_time(tmp_path):
    chain = [op(k, "ReLU", [tensor(k, [2])], [tensor(k + 1, [2])]) for k in range(2000)]
    assert len(load(tmp_path, document(*reversed(chain))).nodes) == 2000


@pytest.mark.parametrize(("text", "message"), [
    ("", "not JSON, line 1, column 1"),
    ("[]", "must be an object"),
    ("null", "must be an object"),
    ('{"version": NaN}', "NaN is not a JSON number"),
    ('{"version": -Infinity}', "-Infinity is not a JSON number"),
    ('{"version": "3.0.0", "version": "3.0.0", "graph": []}', "the key 'version' appears twice"),
    ('{"version": ' + "9" * 5000 + "}", "not JSON"),
    ("[" * 200_000, "nested too deeply|not JSON"),
    ('{"a":' * 100_000, "nested too deeply|not JSON"),
    ("\ufeff{}", "not JSON"),
])
def test_text_that_is_no_document(text, message, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ParseError, match=message) as e:
        load_onednn_json(path)
    assert str(e.value).startswith(f"{path}: ") and len(str(e.value)) < 1000


def test_truncated_files(tmp_path):
    text = json.dumps(dense())
    for size in range(0, len(text) - 1, 37):
        with pytest.raises(ParseError, match="not JSON"):
            load(tmp_path, text[:size])


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"version": "\xe9"}')
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("latin.json", "not UTF-8 at byte 13"), (".", "not a regular file"),
                          ("none.json", "No such file"), ("pipe", "not a regular file"), ("a\0b", "null")):
        with pytest.raises(ParseError, match=message):
            load_onednn_json(f"{tmp_path}/{name}")
    for path in (None, 3, b"bytes", ["a"]):
        with pytest.raises(GraphError, match="a path must be a str or a path object"):
            load_onednn_json(path)


def test_limits(tmp_path, monkeypatch):
    path = write(tmp_path, dense())
    monkeypatch.setattr(onednn_reader, "MAX_OPS", 5)
    load_onednn_json(path)
    monkeypatch.setattr(onednn_reader, "MAX_OPS", 4)
    with pytest.raises(ParseError, match="5 ops are more than 4"):
        load_onednn_json(path)
    monkeypatch.setattr(onednn_reader, "MAX_BYTES", 100)
    with pytest.raises(ParseError, match="larger than 100 bytes"):
        load_onednn_json(path)


MOST, LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize("kind, value, fine", [
    ("s64", MOST, True), ("s64", LEAST, True), ("s64", MOST + 1, False), ("s64", LEAST - 1, False),
    ("s64", True, False),
    ("s64", 1.0, False), ("s64[]", [LEAST, 0, MOST], True), ("s64[]", [MOST + 1], False), ("s64[]", [LEAST - 1], False),
    ("s64[]", 3, False), ("s64[]", [], True), ("f32", 3.4028234e38, True), ("f32", 3.5e38, False), ("f32", 7, True),
    ("f32", -3.5e38, False), ("f32", True, False), ("f32", "1", False), ("f32[]", [1, -0.5], True), ("f32[]", 1, False),
    ("f32[]", [1, 3.5e38], False), ("bool", 0, True), ("bool", 1, True), ("bool", True, True), ("bool", 2, False),
    ("bool", -1, False), ("bool", "1", False), ("bool", 0.0, False), ("string", "text", True), ("string", 1, False),
    ("string", "half \ud800", False), ("string", "half \udfff", False), ("string", "\ud7ff\ue000", True)])
def test_values_of_each_type_of_attribute(kind, value, fine):
    if fine:
        found = onednn_reader.attribute_value(kind, value, "here")
        assert found == (tuple(value) if isinstance(value, list) else value)
    else:
        with pytest.raises(ParseError, match="^here: "):
            onednn_reader.attribute_value(kind, value, "here")


@pytest.mark.parametrize("field, value, fine", [
    ("id", 2**64 - 1, True), ("id", 2**64, False), ("id", -1, False), ("dtype", "f64", False), ("dtype", "s65", False),
    ("shape", [1] * 12, True), ("shape", [1] * 13, False), ("shape", [MOST], False), ("shape", [-1], False),
    ("shape", [2, -2], False), ("stride", [-(2**63)], False), ("layout_type", "rows", False),
    ("property_type", "open", False)])
def test_fields_of_tensors(field, value, fine, tmp_path):
    def relu(**fields):
        source, result = tensor(1, [4]), tensor(2, [4])
        for t in (source, result):
            more = {"stride": [1] * len(fields["shape"])} if "shape" in fields else {}
            t.update({**fields, **more} if field != "id" or t is source else {})
        return document(op(0, "ReLU", [source], [result]))

    path = write(tmp_path, relu(**{field: value}))
    if fine:
        load_onednn_json(path)
    else:
        with pytest.raises(ParseError, match=rf"inputs\[0\].{field}: "):
            load_onednn_json(path)


@pytest.mark.parametrize("stride, fine", [([], True), ([-(2**63)], True), ([1], False), ([-(2**63)] * 2, False)])
def test_strides_of_an_unknown_rank(stride, fine, tmp_path):
    unknown = [-(2**63)]
    tensors = [{**tensor(k, [4]), "shape": unknown, "stride": stride, "layout_type": "strided"} for k in (1, 2)]
    path = write(tmp_path, document(op(0, "ReLU", tensors[:1], tensors[1:])))
    if fine:
        assert load_onednn_json(path).inputs[0].shape is None
    else:
        with pytest.raises(ParseError, match=r"stride: must be unknown for a shape of unknown rank, got \["):
            load_onednn_json(path)


U = -(2**63)


@pytest.mark.parametrize("shape, stride, message", [
    ([2, 4], [4, 1], ""), ([2, 4], [1, 2], ""), ([2, 4], [5, 1], ""), ([2, 4], [0, 1], ""), ([1, 4], [0, 1], ""),
    ([1, 4], [7, 1], ""), ([1, 4], [1, 1], ""), ([0, 4], [1, 1], ""), ([2, 4, 0], [1] * 3, ""),
    ([U, 4], [U, 1], ""), ([U, 4], [4, U], ""),
    ([U, 4], [1, 1], ""), ([2], [2**59], ""), ([1], [2**62], ""),
    ([2, 4], [3, 1], "puts two elements at one place"), ([4, 2], [1, 3], "puts two elements at one place"),
    ([2], [2**59 + 1], "reaches further"), ([1, 4], [U, 1], "must not be negative"),
    ([0, 4], [U, 1], "must not be negative"), ([2, 4], [4, U], "must not be negative"),
    ([1, 4], [-1, 1], "must not be negative"), ([0, 4], [4, -1], "must not be negative"),
    ([U, 4], [-1, 1], "must not be negative"), ([U, 4], [1], "must have one entry")])
def test_strides(shape, stride, message, tmp_path):
    """Of an input alone; those of another layout are not looked at."""
    for layout in ("strided", "any"):
        source = {**tensor(1, shape, stride=stride), "layout_type": layout}
        result = {**tensor(2, shape, stride=stride), "layout_type": "undef"}
        path = write(tmp_path, document(op(0, "ReLU", [source], [result])))
        if message and layout == "strided":
            with pytest.raises(ParseError, match=rf"inputs\[0\].stride: {message}.*, got stride"):
                load_onednn_json(path)
        else:
            load_onednn_json(path)
