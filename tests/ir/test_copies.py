"""Copies of graphs: as they are, specialized, and pickled."""
import copy
import pickle

import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir import Graph, TensorType
from graphq.ir.copies import check_names, returning
from graphq.ir.op import OPS
from graphq.ir.text import to_text
from graphq.ir.verify import verify
from graphq.rewrite.partition import carve


def everything():
    g = Graph("all")
    x = g.input("x", dtype="f32", shape=(None, 4))
    w = g.input("w", dtype="s8", shape=(4, 4), property="constant")
    c = g.constant(np.arange(4, dtype=np.float32), name="c")
    y, stats = g.softmax(g.add(g.matmul(x, g.dequantize(w, scales=[0.1])), c, name="sum"), keep_stats=True)
    g.set_outputs([y, x, c, y, stats], ["y", "same", "c", "again", "stats"])
    return g


def test_copy():
    g = everything()
    h = g.copy()
    assert to_text(h) == to_text(g)
    assert h.nodes[0].attrs["value"] is g.nodes[0].attrs["value"]
    before = to_text(g)
    h.relu(h.inputs[0], name="new")
    h.set_outputs([h.inputs[0]], ["x"])
    h.prune()
    assert to_text(g) == before
    verify(g)
    verify(h)


def test_specialize():
    g = everything()
    w = np.ones((4, 4), np.int8)
    h = g.specialize({"x": TensorType(DTYPES["f32"], (2, 4))}, {"w": w})
    assert [v.name for v in h.inputs] == ["x"] and str(h.outputs[0].type) == "f32[2,4]"
    (constant,) = (v for n in h.nodes for v in n.outputs if v.name == "w")
    assert constant.data.tolist() == w.tolist()
    assert h.inputs[0].property == "undef" and g.inputs[1].property == "constant"
    x = np.ones((2, 4), np.float32)
    for a, b in zip(gq.reference(g, x=x, w=w).values(), gq.reference(h, x=x).values(), strict=True):
        assert np.array_equal(a, b)
    verify(h)


def test_specialize_refuses():
    g = everything()
    with pytest.raises(GraphError, match="graph 'all' has no input 'z'"):
        g.specialize({"z": g.inputs[0].type})
    with pytest.raises(GraphError, match=r"input 'w' is s8\[4,4\], its constant u8\[4,4\]"):
        g.specialize({}, {"w": np.ones((4, 4), np.uint8)})
    with pytest.raises(GraphError, match="k must agree, got 5 and 4"):
        g.specialize({"x": TensorType(DTYPES["f32"], (2, 5))})
    with pytest.raises(GraphError, match="the type of input 'x' must be a TensorType, got 'f32'"):
        g.specialize({"x": "f32"})
    with pytest.raises(GraphError, match="expected a mapping by the names of inputs, got 3"):
        g.specialize(3)


def test_specialize_takes_bodies_along(g):
    x = g.input("a", dtype="f32", shape=(None, 4))
    y = g.relu(x)
    body, operands, _ = carve(g, [y.node])
    g.replace_uses(y, g.partition(*operands, body=body, anchor="eltwise"))
    body, operands, _ = carve(g, [y.node])
    z = g.partition(*operands, body=body, anchor="eltwise")
    g.output(z, name="z")
    g.prune()
    h = g.specialize({"a": TensorType(DTYPES["f32"], (2, 4))})
    assert str(h.outputs[0].type) == "f32[2,4]" and str(g.nodes[0].attrs["body"].outputs[0].type) == "f32[?,4]"
    assert g.copy().nodes[0].attrs["body"] is g.nodes[0].attrs["body"]
    verify(h)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g)), Graph.copy],
                         ids=["copy", "deepcopy", "pickle", "Graph.copy"])
def test_pickle_and_copies(again):
    g = Graph("net")
    x = g.input("x", dtype="u8", shape=(None, 3), property="variable")
    y = g.matmul(g.dequantize(x, scales=[0.5]), g.constant(np.ones((3, 4), np.int8).astype(np.float32), name="w"))
    s, t = g.softmax(g.relu(y, name="r"), keep_stats=True)
    g.nodes[-1].meta = {"id": 3}
    g.set_outputs([s, t, x], ["s", "t", "raw"])
    body, operands, _ = carve(g, [n for n in g.nodes if n.op.name in ("dequantize", "matmul")])
    g.partition(*operands, body=body, anchor="matmul")
    h = again(g)
    verify(h)
    assert to_text(h) == to_text(g) and h is not g and h.nodes[0] is not g.nodes[0]
    assert [n.meta for n in h.nodes] == [n.meta for n in g.nodes]
    w = next(n.attrs["value"] for n in h.nodes if n.op.name == "constant")
    assert not w.flags.writeable
    assert all(n.op is OPS[n.op.name] for n in h.nodes)
    h.relu(h.nodes[-1].outputs[0])
    assert len(h.nodes) == len(g.nodes) + 1


def test_long_chains_pickle():
    g = Graph()
    y = g.input("x", dtype="f32", shape=(2,))
    for _ in range(3000):
        y = g.relu(y)
    g.output(y)
    assert len(copy.deepcopy(pickle.loads(pickle.dumps(g))).nodes) == 3000


def test_values_and_nodes_pickle_with_their_graph(g, x):
    y = g.relu(x)
    h, v, n, i = copy.deepcopy((g, y, y.node, x))
    assert v.graph is h and v.node is n and h.inputs == [i] and v is n.output and v is not y
    g.prune()
    with pytest.raises(GraphError, match="a removed node, relu, cannot be copied or pickled"):
        pickle.dumps(y)


def test_pythons_own_shallow_copy_protocol_is_not_confused_by_builder_methods(g):
    assert copy.copy(g).name == "test"


def test_parts_that_return_named_values():
    """An output's name goes before that of a value; a part has the inputs and only the nodes that it needs."""
    g = Graph("whole")
    x = g.input("x", dtype="f32", shape=(3,))
    a = g.relu(x, name="a")
    b = g.tanh(a, name="b")
    g.set_outputs([b, a], ["a", "out"])
    part = returning(g, ["out", "b"])
    assert part.output_names == ["out", "b"] and [n.op.name for n in part.nodes] == ["relu", "tanh"]
    assert [n.op.name for n in returning(g, ["out"]).nodes] == ["relu"]
    assert [v.node.op.name for v in returning(g, ["a"]).outputs] == ["tanh"]
    with pytest.raises(GraphError, match="graph 'whole' has no value named 'outs'; did you mean out"):
        returning(g, ["outs"])
    assert len(g.nodes) == 2 and g.output_names == ["a", "out"]


@pytest.mark.parametrize("names", ["ab", ["a", "a"], ["a", 1], 7, None, {"a"}])
def test_names_that_are_no_list_of_names(names):
    with pytest.raises(GraphError, match="here must be a list of different names of values, got"):
        check_names(names, "here")
    assert check_names(["a", "b"], "here") == ("a", "b") == check_names(("a", "b"), "here")
