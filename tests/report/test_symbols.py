"""Reports on models in stages show open sizes as symbols, as other reports do, whatever the sizes of the calls were."""
import json
import re

import numpy as np
import pytest

import graphq as gq
from graphq.model.staged import symbolic

onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

W = np.arange(-12, 12, dtype=np.float32).reshape(6, 4)


def branches():
    """A product, one of two bodies, a choice of rows by data, and a product of the chosen rows."""
    def body(name):
        out = helper.make_tensor_value_info(f"{name} out", TensorProto.FLOAT, ["batch", 4])
        return helper.make_graph([helper.make_node(name, ["m"], [f"{name} out"])], name, [], [out])

    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]),
             helper.make_node("If", ["c"], ["chosen"], then_branch=body("Relu"), else_branch=body("Neg")),
             helper.make_node("Compress", ["chosen", "keep"], ["kept"], axis=0),
             helper.make_node("MatMul", ["kept", "v"], ["product"]), helper.make_node("Softmax", ["product"], ["y"])]
    ends = [helper.make_tensor_value_info(name, dtype, shape) for name, dtype, shape in (
        ("x", TensorProto.FLOAT, ["batch", 6]), ("c", TensorProto.BOOL, []), ("keep", TensorProto.BOOL, ["batch"]),
        ("y", TensorProto.FLOAT, None))]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(W[:4], "v")]
    graph = helper.make_graph(nodes, "branches", ends[:3], ends[3:], weights)
    return gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


KEPT = "kept/NonZero/0.1"
"""The number of rows that Compress keeps: axis 1 of their places, the result of a NonZero."""


@pytest.mark.parametrize("c", [True, False])
def test_open_sizes_of_stages_are_never_numbers(c):
    model = gq.compile(branches(), threads=1)
    for batch in (23, 1, 211):
        keep = np.arange(batch) % 2 == 0
        x = np.linspace(-1, 1, batch * 6, dtype=np.float32).reshape(batch, 6)
        np.testing.assert_allclose(model(x=x, c=np.array(c), keep=keep).sum(axis=1), 1, rtol=1e-5)
        data = model.explain(format="json")
        text = model.explain(full=True)
        shapes = set(re.findall(r"\bf32\[([^\]]*)\]", text + json.dumps(data)))
        assert {d for shape in shapes for d in shape.split(",")} <= {
            "batch", KEPT, "?", "4", "6", ""}
        assert {"batch,6", "batch,4", f"{KEPT},4"} <= shapes
        head, cut, tail = (data["parts"][name] for name in ("head", "cut", "tail"))
        assert head["sizes"] == {"x.0": batch, "keep.0": batch} and head["coverage"]["total"] == batch * 6 * 4
        (body,) = cut["parts"].values()
        assert body["sizes"] == head["sizes"] and body["inputs"][0]["shape"] == [None, 4]
        assert tail["sizes"] == {**head["sizes"], KEPT: int(keep.sum())}
        assert tail["coverage"]["total"] == keep.sum() * 4 * 4
        assert [t["shape"] for t in data["inputs"]] == [[None, 6], [], [None]]
        assert "f32[batch,6]" in model._repr_html_() and f"f32[{batch}," not in model._repr_html_()
        parts = model.parts()
        assert {str(v.type) for part in parts for v in part.graph.inputs if v.name == "x"} == {"f32[batch,6]"}


def test_without_a_graph_of_symbols_there_are_numbers():
    """Symbols are left out if some code needs plain numbers, or if another graph comes out."""
    g = gq.parse("graph(x: f32[4]) {\n  %y = relu(x)\n  return %y\n}")

    def fails(trace):
        raise TypeError("needs a plain number")

    assert symbolic(fails, [g]) is None
    assert symbolic(lambda trace: [gq.parse("graph(x: f32[4]) {\n  %z = relu(x)\n  return %z\n}")], [g]) is None
    assert symbolic(lambda trace: [g], [g])[0] == [g]
