"""The partition API: ids, ports, anchors, compiling; and the folder of oneDNN's graphs, when it is there."""
import json
import os
from pathlib import Path

import numpy as np
import pytest

import graphq as gq
from graphq.errors import CompileError, GraphError
from graphq.onednn.files import load_onednn_json, save_onednn_json
from graphq.onednn.partitions import partitions

SHARED = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared")) / "onednn_graphs"
FILES = sorted(SHARED.rglob("*.json"))


def dense():
    """Two products, the first quantized, with a constant bias and an unnamed value between."""
    g = gq.Graph("dense")
    x = g.input("x", dtype="f32", shape=(4, 8))
    y = g.relu(g.matmul(x, g.input("w", dtype="f32", shape=(8, 6), property="constant"), np.ones(6, np.float32)))
    y = g.quantize(y, dtype="u8", scales=[0.1])
    g.output(g.softmax(g.matmul(g.dequantize(y, scales=[0.1]), g.input("v", dtype="f32", shape=(6, 3)))), name="y")
    return g


def test_ids_ports_and_anchors():
    g = dense()
    first, second, third = parts = g.partitions()
    assert [p.id for p in parts] == [0, 1, 2]
    assert [p.anchor for p in parts] == ["matmul", "matmul", "softmax"] and all(p.supported for p in parts)
    assert [n.op.name for n in first.ops] == ["matmul", "relu", "quantize"] and first.op_ids == (1, 2, 3)
    assert [v.name for v in first.inputs] == ["x", "w"]  # the bias is a constant
    assert first.outputs == second.inputs[:1] and third.outputs == tuple(g.outputs)
    assert first.ops[0] in g.nodes and first.inputs[0] is g.inputs[0]
    assert str(first) == "partition 0 matmul: [1:matmul, 2:relu, 3:quantize] in (x, w) out (%3)"
    assert [v.name for v in first.graph.inputs] == ["x", "w"] and first.graph.inputs[1].property == "constant"
    assert first.graph.output_names == ["v3"] == [v.name for v in second.graph.inputs[:1]]


def test_the_graph_stays_as_it_is():
    g = dense()
    before, metas = gq.to_text(g), [n.meta for n in g.nodes]
    g.partitions()
    assert gq.to_text(g) == before and [n.meta for n in g.nodes] == metas


def test_compiled_one_after_the_other():
    g = dense()
    rng = np.random.default_rng(0)
    values = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in g.inputs}
    wanted = gq.reference(g, values)
    for p in g.partitions():
        values[p.graph.output_names[0]] = p.compile(threads=1)({v.name: values[v.name] for v in p.graph.inputs})
    np.testing.assert_allclose(values["y"], wanted, rtol=1e-5)


def test_compile_takes_the_options_of_compile():
    part = dense().partitions()[0]
    assert part.compile(isa="scalar").level.name == "scalar"
    g = gq.Graph()
    g.output(g.log_softmax(g.input("x", dtype="f32", shape=(3, 3))))
    with pytest.raises(CompileError, match="strict"):
        g.partitions()[0].compile(strict=True, passes=())


def test_ids_of_a_file(tmp_path):
    g = gq.Graph()
    g.output(g.tanh(g.add(g.input("x", dtype="f32", shape=(3,)), g.input("z", dtype="f32", shape=(3,)))))
    save_onednn_json(g, tmp_path / "g.json")
    document = json.loads((tmp_path / "g.json").read_text())
    document["graph"][0]["id"] = 2  # the place of the node that comes third
    (tmp_path / "g.json").write_text(json.dumps(document))
    loaded = load_onednn_json(tmp_path / "g.json")
    assert loaded.partitions()[0].op_ids == (2, 1)
    new = loaded.relu(loaded.outputs[0])
    loaded.output(new, name="more")
    assert [p.op_ids for p in loaded.partitions()] == [(2, 1), (3,)]


def test_wildcard_and_end_are_not_supported():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    y = g.wildcard(x, dtypes=["f32", "s8"], shapes=[[2], [3]])
    g.end(y[0])
    g.output(g.relu(y[0]), name="y")
    wildcard, end, relu = g.partitions()
    assert (wildcard.anchor, end.anchor, relu.supported) == ("wildcard", "end", True)
    assert wildcard.outputs == tuple(y) and end.outputs == () and end.inputs == (y[0],)
    assert str(wildcard) == "partition 0 wildcard (not supported): [0:wildcard] in (x) out (%0, %1)"
    for p in (wildcard, end):
        with pytest.raises(GraphError, match=rf"partition {p.id} {p.anchor} \(not supported\).* cannot be compiled"):
            p.compile()
    assert np.array_equal(relu.compile()(v0=np.float32([-1, 1])), [0, 1])


def test_names_do_not_clash():
    g = gq.Graph()
    x, v0 = g.input("x", dtype="f32", shape=(2,)), g.input("v0", dtype="f32", shape=(2,))
    g.output(g.add(g.softmax(g.softmax(x, axis=0), axis=0), v0), name="_v1")
    parts = g.partitions()
    assert [p.graph.output_names for p in parts] == [["_v0"], ["_v1"]]
    x = np.float32([1, 2])
    y = parts[1].compile()(_v0=parts[0].compile()(x=x), v0=x)
    np.testing.assert_allclose(y, gq.reference(g, x=x, v0=x), rtol=1e-6)


def test_a_returned_input_and_a_constant():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    g.output(x, name="same")
    g.output(g.constant([1.0, 2.0]), name="c")
    assert g.partitions() == []
    g.output(g.relu(x), name="y")
    assert [len(p.ops) for p in g.partitions()] == [1]


def test_an_unused_result_is_a_port():
    g = gq.Graph()
    y, mean, variance = g.layer_norm(g.input("x", dtype="f32", shape=(2, 3)), use_affine=False)
    g.output(g.relu(y), name="y")
    (part,) = g.partitions()
    assert part.outputs == (mean, variance, g.outputs[0])


def test_open_shapes():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 8))
    g.output(g.relu(g.matmul(x, np.ones((8, 2), np.float32))), name="y")
    (part,) = g.partitions()
    assert part.anchor == "matmul" and part.compile()(x=np.ones((3, 8), np.float32)).shape == (3, 2)


def test_a_graph_after_its_passes():
    g = dense()
    gq.passes.run_passes(g)
    parts = g.partitions()
    assert sum(len(p.ops) for p in parts) == sum(n.op.name != "constant" for n in g.nodes)


def test_only_graphs_have_partitions():
    with pytest.raises(GraphError, match="takes a Graph, got 'x'"):
        partitions("x")


def test_order():
    g = dense()
    known = set(g.inputs)
    for part in g.partitions():
        assert known.issuperset(part.inputs)
        known.update(part.outputs)
    assert known.issuperset(g.outputs)


@pytest.mark.skipif(not FILES, reason="no folder of oneDNN's graphs (GRAPHQ_SHARED)")
def test_onednn_files_are_one_partition():
    wrong = {}
    for path in FILES:
        found = [(p.anchor, p.supported) for p in load_onednn_json(path).partitions()]
        if len(found) != 1 or not found[0][1]:
            wrong[path.name] = found
    assert len(FILES) >= 126 and not wrong
