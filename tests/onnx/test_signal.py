"""STFT against ONNX's reference."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphq as gq
from graphq.errors import GraphError, GraphqError

rng = np.random.default_rng(2)


def model(shape, step, window=None, length=None, onesided=1):
    constants = {"step": np.asarray(step), "window": window, "length": None if length is None else np.asarray(length)}
    names = [n if constants[n] is not None else "" for n in constants]
    graph = helper.make_graph(
        [helper.make_node("STFT", ["x", *names], ["y"], onesided=onesided)], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "f", "k", 2])],
        [numpy_helper.from_array(x, n) for n, x in constants.items() if x is not None])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def window(n):
    return np.hanning(n).astype(np.float32)


@pytest.mark.parametrize("options", [
    {"window": window(20)}, {"window": window(20), "length": 20}, {"length": 16}, {"window": window(9), "onesided": 0},
], ids=["window", "both", "length", "both sides"])
@pytest.mark.parametrize("channels", [1, 2])
def test_transform(options, channels):
    if channels == 2:
        options = {**options, "onesided": 0}
    m = model(["b", "n", channels], 5, **options)
    compiled = gq.compile(gq.load_onnx(m), threads=1)
    for batch, n in ((1, 20), (2, 47)):
        x = rng.standard_normal((batch, n, channels)).astype(np.float32)
        want, = ReferenceEvaluator(m).run(None, {"x": x})
        got = compiled(x=x)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert "onnx_node" not in {n.op.name for n in compiled.graph.nodes}


def test_a_signal_without_a_last_dimension():
    """ONNX Runtime takes it; ONNX's reference does not."""
    x = rng.standard_normal((2, 47)).astype(np.float32)
    want = gq.compile(gq.load_onnx(model([2, 47, 1], 5, window(20))))(x=x[..., None])
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(model([2, "n"], 5, window(20))))(x=x), want)


def test_a_window_of_another_length():
    with pytest.raises(GraphError, match="STFT 'y': the window must have the frame's length 16, got .20."):
        gq.load_onnx(model([1, 47, 1], 5, window(20), 16))


@pytest.mark.parametrize("length", [0, -1, 2**40])
def test_frames_of_no_use_are_graphq_errors(length):
    m = model([1, 47, 1], 5, length=length)
    with pytest.raises(GraphqError):
        gq.compile(gq.load_onnx(m))(x=np.zeros((1, 47, 1), np.float32))
