"""ONNX nodes that graphq runs by ONNX's reference: their models, the names that they use, and their functions."""
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphq as gq
from graphq.dtypes import f32, s8
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.onnx.protos.fallback import (
    EMBEDDED,
    _fill,
    bodies,
    infer,
    leave_out,
    name_within,
    nodes_of,
    parsed,
    single,
    used_names,
)


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,))


def branches():
    """An If: one branch reads `outer`, its own values and an initializer; the other returns `far`."""
    nodes = [helper.make_node("Add", ["outer", "own"], ["sum"]),
             helper.make_node("Mul", ["sum", "", "late"], ["result"])]
    inner = helper.make_graph(nodes, "first", [], [value("result")],
                              [numpy_helper.from_array(np.ones(2, np.float32), "own")])
    other = helper.make_graph([], "second", [], [value("far")])
    return helper.make_node("If", ["cond"], ["y"], then_branch=inner, else_branch=other)


def test_names_that_a_node_reads():
    assert list(used_names(helper.make_node("Clip", ["x", "", "high"], ["y"]))) == ["x", "high"]
    node = branches()
    assert sorted(used_names(node)) == ["cond", "far", "late", "outer"]
    assert sorted(g.name for g in bodies(node)) == ["first", "second"]
    assert sorted(n.op_type for n in nodes_of(node)) == ["Add", "If", "Mul"]


def test_prefixes_and_inputs_that_are_left_out():
    node = branches()
    name_within(node, "p/")
    first = next(g for g in bodies(node) if g.name == "first")
    assert (list(node.input), list(node.output), node.name) == (["p/cond"], ["p/y"], "p/If")
    assert [list(n.input) for n in first.node] == [["p/outer", "p/own"], ["p/sum", "", "p/late"]]
    assert first.output[0].name == "p/result" and first.initializer[0].name == "p/own"
    leave_out(node, {"p/late", "p/cond"})
    assert list(node.input) == [""]
    assert [list(n.input) for n in first.node] == [["p/outer", "p/own"], ["p/sum", "", ""]]


def test_attributes_of_functions():
    node = helper.make_node("Gemm", ["a", "b"], ["c"], transA=1)
    for name, of in (("alpha", "scale"), ("beta", "missing"), ("transB", "turn")):
        a = node.attribute.add()
        a.name, a.ref_attr_name = name, of
    _fill(node, {a.name: a for a in (helper.make_attribute("scale", 0.5), helper.make_attribute("turn", 1),
                                     helper.make_attribute("alpha", 9.0))})
    assert {a.name: helper.get_attribute_value(a) for a in node.attribute} == {"transA": 1, "alpha": 0.5, "transB": 1}


@pytest.mark.parametrize("size, embedded", [(2, True), (EMBEDDED, True), (EMBEDDED + 1, False)])
def test_the_model_of_one_node(size, embedded):
    g = gq.Graph()
    a, b = g.input("a", dtype="f32", shape=(size,)), g.constant(np.full(size, 2, np.float32))
    node = helper.make_node("Mod", ["a", "b"], ["c"], fmod=1)
    operands, attrs = single(node, {"": 21, "other": 1}, {"a": a, "b": b, "unused": a})
    assert operands == ([a] if embedded else [a, b]) and attrs["op_type"] == "Mod"
    model = parsed(attrs["model"].tobytes())
    assert [(x.domain, x.version) for x in model.opset_import] == [("", 21)]
    assert [x.name for x in model.graph.input] == ["a", "b"][:len(operands)] and model.graph.node[0] == node
    assert [x.name for x in model.graph.initializer] == ["b"] * embedded and model.graph.output[0].name == "c"
    types = tuple(v.type for v in operands)
    assert infer(attrs["model"].tobytes(), types) == (TensorType(f32, (size,)),)
    with pytest.raises(GraphError, match=f"ONNX Mod: takes {len(types)} operands, got {len(types) + 1}"):
        infer(attrs["model"].tobytes(), (*types, TensorType(f32, (size,))))
    with pytest.raises(GraphError, match="ONNX Mod"):
        infer(attrs["model"].tobytes(), (TensorType(s8, (size,)), *types[1:]))


def test_models_of_other_than_one_node():
    nodes = [helper.make_node("Relu", ["x"], ["y"])] * 2
    for count in (0, 2):
        model = ModelProto(graph=helper.make_graph(nodes[:count], "g", [value("x")], [value("y")]))
        with pytest.raises(GraphError, match=f"'model' must hold one node, got {count}"):
            parsed(model.SerializeToString())
    with pytest.raises(GraphError, match="is not a serialized ModelProto"):
        parsed(b"\xff\xff")
