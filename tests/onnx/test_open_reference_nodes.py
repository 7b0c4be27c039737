"""Nodes without kernels in models with open sizes: one plan serves all sizes of a range."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.model.open_plans import background

node = helper.make_node
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)}
SIZES = [(20, 64), (26, 60), (16, 70), (34, 34), (6, 8), (12, 4), (20, 64)]

CASES = {
    "elementwise": ([node("Pow", ["a", "a"], ["b"])], {}),
    "twice and with another branch": (
        [node("Hardmax", ["a"], ["c"]), node("Add", ["c", "a"], ["d"]), node("Hardmax", ["d"], ["e"], axis=2),
         node("Add", ["e", "a"], ["b"])], {}),
    "channels last": (
        [node("Transpose", ["a"], ["c"], perm=[0, 2, 3, 1]), node("Pow", ["c", "c"], ["d"]),
         node("Transpose", ["d"], ["b"], perm=[0, 3, 1, 2])], {}),
    "an angle": ([node("Atan", ["a"], ["b"])], {}),
    "order along an axis": ([node("ReverseSequence", ["a", "n"], ["b"], batch_axis=0, time_axis=1)], {"n": [5]}),
    "larger windows": (
        [node("MaxPool", ["a"], ["c", "i"], kernel_shape=[2, 2], strides=[2, 2]),
         node("MaxUnpool", ["c", "i"], ["b"], kernel_shape=[2, 2], strides=[2, 2])], {}),
    "one more dimension": ([node("Unsqueeze", ["a", "last"], ["c"]), node("DFT", ["c", "", "axis"], ["d"]),
                            node("ReduceSum", ["d", "last"], ["b"], keepdims=0)], {"last": [4], "axis": 1}),
    "an importer that leaves the node to the reference": ([node("Hardmax", ["a"], ["b"], axis=1)], {}),
    "a matrix of two sizes": (
        [node("ReduceSum", ["a", "outer"], ["c"], keepdims=0), node("EyeLike", ["c"], ["d"]),
         node("Add", ["d", "a"], ["b"])], {"outer": [0, 1]}),
    "a shape from values": (
        [node("Shape", ["a"], ["s"], start=2), node("Reshape", ["a", "flat"], ["c"]),
         node("Col2Im", ["c", "s", "one"], ["b"])], {"flat": [1, 8, -1], "one": [1, 1]}),
    "a computed shape from values": (
        [node("Shape", ["a"], ["s"], start=2), node("Add", ["s", "one"], ["t"]), node("Reshape", ["a", "flat"], ["c"]),
         node("Pad", ["a", "more"], ["p"]), node("Reshape", ["p", "flat"], ["q"]),
         node("Col2Im", ["q", "t", "one"], ["b"])],
        {"flat": [1, 8, -1], "one": [1, 1], "more": [0, 0, 0, 0, 0, 0, 1, 1]}),
    "sizes without which ONNX infers nothing": (
        [node("Shape", ["a"], ["s"]), node("Add", ["s", "more"], ["t"]),
         node("Resize", ["a", "", "", "t"], ["b"], mode="linear", antialias=1)], {"more": [0, 0, 1, 2]}),
}


BY_REFERENCE = {"elementwise", "twice and with another branch", "channels last",
                "sizes without which ONNX infers nothing", "a shape from values",
                "a computed shape from values", "an importer that leaves the node to the reference"}
"""The cases with a node that ONNX's reference runs; graphq's references run the others."""


def model(nodes, constants):
    """The nodes, which make b of a, between two convolutions of open images."""
    convolutions = [node("Conv", [v], [], pads=[1, 1, 1, 1]) for v in "xb"]
    for conv, out in zip(convolutions, "ay", strict=True):
        conv.input.append("w")
        conv.output.append(out)
    arrays = {**WEIGHTS, **{name: np.array(x, np.int64) for name, x in constants.items()}}
    graph = helper.make_graph(
        [convolutions[0], *nodes, convolutions[1]], "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(x, name) for name, x in arrays.items()])
    return gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))


def plans(compiled):
    return [len(of) for of in compiled.plans.by_class.values()]


@pytest.mark.parametrize("name", CASES)
def test_a_second_size_takes_no_new_plan(name, tmp_path):
    graph = model(*CASES[name])
    compiled = gq.compile(graph)
    for h, w in SIZES:
        x = RNG.standard_normal((1, 8, h, w)).astype(np.float32)
        got = compiled(x)
        background.join()
        np.testing.assert_array_equal(got, compiled.formula(x), err_msg=str((h, w)))
        assert got.shape == gq.reference(graph, x).shape
    assert not compiled.plans.for_each_shape and set(plans(compiled)) == {1}, compiled.plans.classes()
    assert ("onnx_node" in str(compiled.explain())) == (name in BY_REFERENCE)
    compiled.save(tmp_path / "model.graphq")
    again = gq.compile(tmp_path / "model.graphq")
    x = RNG.standard_normal((1, 8, 22, 88)).astype(np.float32)
    np.testing.assert_array_equal(again(x), compiled(x))
    assert set(plans(again)) == {1}


def test_sizes_that_a_node_refuses():
    """ONNX's rules are checked at the sizes of each call, not at those of the plan alone."""
    graph = helper.make_graph(
        [node("Pow", ["x", "z"], ["y"])], "two",
        [helper.make_tensor_value_info(n, TensorProto.INT32, [f"{n}0", 3]) for n in "xz"],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)])
    compiled = gq.compile(gq.load_onnx(helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)))
    for n, m in ((4, 4), (7, 7), (1, 5), (6, 1), (9, 9)):
        x, z = np.full((n, 3), -6, np.int32), np.full((m, 3), 3, np.int32)
        np.testing.assert_array_equal(compiled(x, z), x**z)
    with pytest.raises(gq.GraphError, match="Pow"):
        compiled(np.zeros((4, 3), np.int32), np.zeros((5, 3), np.int32))
