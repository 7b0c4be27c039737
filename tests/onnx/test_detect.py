"""NonMaxSuppression against ONNX Runtime: the same boxes in the same order."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import results

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(4)


def model(constants, **attrs):
    names = ["most", "iou", "score"][:len(constants)]
    graph = helper.make_graph(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", *names], ["y"], **attrs)], "net",
        [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", "b", 4]),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", "c", "b"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["k", 3])],
        [numpy_helper.from_array(x, n) for n, x in zip(names, constants, strict=True)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("constants", [
    [], [np.int64([7])], [np.int64([200]), np.float32([0.5])], [np.int64([200]), np.float32([0.1]), np.float32([0.6])],
], ids=["none", "most", "overlap", "score"])
def test_boxes(constants, center, tmp_path):
    m = model(constants, center_point_box=center)
    boxes = rng.uniform(0, 4, (2, 90, 4)).astype(np.float32)
    boxes[:, 3] = boxes[:, 4]  # alike, and of no area
    boxes[:, 5, 2:] = boxes[:, 5, :2]
    scores = rng.integers(0, 20, (2, 3, 90)).astype(np.float32) / 20
    feeds = {"boxes": boxes, "scores": scores}
    g = gq.load_onnx(m)
    want, = results(m, feeds)
    np.testing.assert_array_equal(gq.reference(g, feeds), want)
    np.testing.assert_array_equal(gq.compile(g)(feeds), want)
    gq.save_onnx(g, tmp_path / "m.onnx")
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(tmp_path / "m.onnx"))(feeds), want)


def test_shapes_that_contradict():
    g = gq.Graph()
    boxes, scores = (g.input(n, shape=s, dtype="f32") for n, s in (("b", (1, 9, 4)), ("s", (1, 2, 8))))
    with pytest.raises(GraphError, match=r"scores \[N, classes, boxes\], got \[1,9,4\] and \[1,2,8\]"):
        g.non_max_suppression(boxes, scores)
