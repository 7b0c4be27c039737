"""Names of values in oneDNN Graph files: a round trip, what passes and users change, and files of others."""
import json

import numpy as np
import pytest

import graphq as gq
from graphq.ir.verify import verify
from graphq.onednn.files import load_onednn_json, save_onednn_json


def named():
    """x, a constant and an unnamed value between named ones; outputs of one operation, one without a name."""
    g = gq.Graph("named")
    x, slope = g.input("x in/1:0", dtype="f32", shape=(2, 3)), g.input("größe|=(%", dtype="f32", shape=(3,))
    y = g.add(g.relu(g.multiply(x, slope), name="/net/Relu_output_0"), g.constant(np.ones(3, np.float32), name="bias"))
    first, _ = g.softmax(y, keep_stats=True, name="p")
    g.output(first, name="p")
    g.output(g.relu(y), name="t40")
    return g


def test_names_survive_a_round_trip(tmp_path):
    g, path = named(), tmp_path / "named.json"
    save_onednn_json(g, path)
    ops = {op["kind"]: op["name"] for op in json.loads(path.read_text())["graph"]}
    assert ops["Multiply"] == "=multiply(x%20in/1:0|gr%C3%B6%C3%9Fe%7C%3D%28%25)"
    assert ops["Add"] == "=add(/net/Relu_output_0|bias)" and ops["SoftMax"] == "p|=softmax()"
    assert ops["ReLU"].startswith("relu_")  # only t40 has a name, which is its id
    h = load_onednn_json(path)
    assert [v.name for v in h.inputs] == ["x in/1:0", "größe|=(%", "bias"]
    assert h.output_names == ["p", "t40", "t7"]  # in files, results that nothing uses are outputs: softmax's statistics
    assert h.has_name("/net/Relu_output_0")
    x = np.ones((2, 3), np.float32)
    assert gq.reference(h, {"x in/1:0": x, "größe|=(%": x[0], "bias": x[0]})["t40"].tolist() == [[2] * 3] * 2
    save_onednn_json(h, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_names_that_were_changed_are_written(tmp_path):
    save_onednn_json(named(), tmp_path / "a.json")
    g = load_onednn_json(tmp_path / "a.json")
    g.rename(g.inputs[2], "shift")
    save_onednn_json(g, tmp_path / "b.json")
    h = load_onednn_json(tmp_path / "b.json")
    assert [v.name for v in h.inputs] == ["x in/1:0", "größe|=(%", "shift"]


def test_partitions_of_a_file_with_names(tmp_path):
    save_onednn_json(named(), tmp_path / "a.json")
    (part, *_) = load_onednn_json(tmp_path / "a.json").partitions()
    assert str(part).endswith(', bias) out (%t5)')


@pytest.mark.parametrize("name, names", [
    ("y=relu(x)", ("x", "y")), ("y=relu(x|z)", ("t0", "y")), ("y|z=relu(x)", ("x", "t1")), ("y=relu(t7)", ("t0", "y")),
    ("t3=relu(x)", ("x", "t1")), ("x=relu(x)", ("t0", "x")), ("y=relu(%78)", ("t0", "y")),
    *((text, ("t0", "t1")) for text in ("=relu()", "%zz=relu(%ff)", "y=relu(x) ", "a=b=relu(x)", "=(", "y = relu(x)"))])
def test_names_of_operations_that_state_them_wrongly(tmp_path, name, names):
    g = gq.Graph("g")
    g.output(g.relu(g.input("t0", dtype="f32", shape=(2,))), name="t1")
    save_onednn_json(g, tmp_path / "a.json")
    doc = json.loads((tmp_path / "a.json").read_text())
    doc["graph"][0]["name"] = name
    (tmp_path / "b.json").write_text(json.dumps(doc))
    h = load_onednn_json(tmp_path / "b.json")
    verify(h)
    assert (h.inputs[0].name, h.output_names[0]) == names
    save_onednn_json(h, tmp_path / "c.json")
    assert load_onednn_json(tmp_path / "c.json").inputs[0].name == names[0]
