"""oneDNN's spellings of kinds and values, in the builder and in files, and what a file does not store."""
import json
import logging

import numpy as np
import pytest

import graphq as gq
from graphq.ir.op import walk_ops
from graphq.onednn.kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_names_the_builder_method(kind):
    name = next(op.name for op in walk_ops() if op.kind == kind)
    if hasattr(gq.Graph(), kind):
        assert kind == name
        return
    for spelled in (kind, kind.upper()):
        with pytest.raises(AttributeError, match=f"unknown op '{spelled}'; did you mean {name}\\?"):
            getattr(gq.Graph(), spelled)


def test_a_kind_in_text_has_the_hint():
    with pytest.raises(gq.GraphqError, match=r"unknown op 'MatMul'; did you mean matmul\?"):
        gq.parse("graph(x: f32[2,2]) {\n %y = MatMul(x, x)\n return %y\n}")


@pytest.mark.parametrize("given", ["None", "NONE", "none"])
def test_values_are_taken_in_any_case(g, given):
    x = g.input("x", dtype="f32", shape=(1, 2, 5, 5))
    geometry = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1],
                "data_format": "ncx", "weights_format": "oix"}
    y = g.convolution(x, np.ones((3, 2, 3, 3), np.float32), auto_pad=given, **geometry)
    assert (y.node.attrs["auto_pad"], y.node.attrs["data_format"]) == ("none", "NCX")
    with pytest.raises(gq.GraphError, match="'auto_pad' must be one of 'none', .*, got 'Nothing'"):
        g.convolution(x, np.ones((3, 2, 3, 3), np.float32), auto_pad="Nothing", **geometry)


def test_files_may_spell_values_otherwise_and_have_a_hint_for_kinds(g, tmp_path):
    x = g.input("x", dtype="f32", shape=(1, 2, 5, 5))
    w = g.input("w", dtype="f32", shape=(3, 2, 3, 3))
    g.output(g.convolution(x, w, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1],
                           auto_pad="same_upper", data_format="NCX", weights_format="OIX"), name="y")
    path = tmp_path / "g.json"
    gq.save_onednn_json(g, path)
    text = path.read_text()
    assert json.loads(text) and "same_upper" in text.lower()
    for spelled in ("SAME_UPPER", "same_upper"):
        path.write_text(text.replace("SAME_UPPER", spelled).replace("same_upper", spelled))
        assert gq.load_onednn_json(path).nodes[-1].attrs["auto_pad"] == "same_upper"
    path.write_text(text.replace("Convolution", "convolution"))
    with pytest.raises(gq.GraphqError, match=r"kind: .*convolution.*did you mean Convolution\?"):
        gq.load_onednn_json(path)


@pytest.mark.parametrize("count, said", [
    (0, None), (1, "1 constant becomes an input"), (2, "2 constants become inputs")])
def test_values_of_constants_are_not_stored(g, tmp_path, caplog, count, said):
    y = g.input("x", dtype="f32", shape=(2, 2))
    for k in range(count):
        y = g.add(y, np.full((2, 2), k, np.float32))
    g.output(g.relu(y), name="y")
    with caplog.at_level(logging.WARNING, "graphq"):
        gq.save_onednn_json(g, tmp_path / "g.json")
    assert [r.getMessage() for r in caplog.records] == ([] if said is None else [
        f"{tmp_path / 'g.json'}: the format stores no values of constants: {said} of property \"constant\""])
