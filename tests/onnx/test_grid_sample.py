"""GridSample against ONNX Runtime."""
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_runtime import results, session

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(5)


def model(rank, opset, **attrs):
    graph = helper.make_graph(
        [helper.make_node("GridSample", ["x", "grid"], ["y"], **attrs)], "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n in ("x", "grid")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "opset"), [("bilinear", 16), ("nearest", 16), ("bicubic", 16), ("linear", 20),
                                             ("cubic", 20)])
def test_places_inside_and_outside(mode, opset, padding, align, tmp_path):
    m = model(4, opset, mode=mode, padding_mode=padding, align_corners=align)
    g = gq.load_onnx(m)
    theirs = session(m)
    for size in ((7, 5), (1, 4)):
        feeds = {"x": rng.normal(size=(2, 3, *size)).astype(np.float32),
                 "grid": rng.uniform(-2.6, 2.6, (2, 6, 9, 2)).astype(np.float32)}
        if align and size[0] == 1 and padding == "reflection":
            continue  # both edges are one place
        got = gq.compile(g, strict=False)(feeds)
        np.testing.assert_allclose(got, theirs.run(None, feeds)[0], rtol=1e-4, atol=2e-5)
    gq.save_onnx(g, tmp_path / "m.onnx")
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(tmp_path / "m.onnx"), feeds), gq.reference(g, feeds))


def test_volumes():
    m = model(5, 20, mode="linear")
    feeds = {"x": rng.normal(size=(1, 2, 3, 4, 5)).astype(np.float32),
             "grid": rng.uniform(-1.2, 1.2, (1, 2, 3, 4, 3)).astype(np.float32)}
    want, = results(m, feeds)
    np.testing.assert_allclose(gq.compile(gq.load_onnx(m))(feeds), want, rtol=1e-5, atol=1e-5)


def test_no_place_for_nan():
    g = gq.Graph()
    x, grid = (g.input(n, shape=s, dtype="f32") for n, s in (("x", (1, 1, 2, 2)), ("grid", (1, 1, 1, 2))))
    g.output(g.grid_sample(x, grid), name="y")
    assert np.isnan(gq.reference(g, x=np.ones((1, 1, 2, 2), np.float32),
                                 grid=np.full((1, 1, 1, 2), np.nan, np.float32))).all()


def test_shapes_that_contradict():
    g = gq.Graph()
    x, grid = (g.input(n, shape=s, dtype="f32") for n, s in (("x", (1, 3, 4, 4)), ("grid", (1, 4, 4, 3))))
    with pytest.raises(GraphError, match=r"grid must be \[N, sizes, coordinates\]"):
        g.grid_sample(x, grid)
