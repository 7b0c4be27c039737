"""Quantised layers equal ONNX Runtime without optimisations, which executes every quantize and dequantize by itself."""
import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import graphq as gq

LAYERS = {  # operator, shapes of the input and of the weights, attributes
    "3x3": ("Conv", (1, 24, 40, 38), (32, 24, 3, 3), dict(pads=[1] * 4)),
    "1x1": ("Conv", (1, 150, 40, 40), (48, 150, 1, 1), {}),
    "stem": ("Conv", (1, 3, 96, 96), (16, 3, 5, 5), dict(strides=[2, 2], pads=[2] * 4)),
    "few pixels": ("Conv", (1, 300, 5, 5), (200, 300, 3, 3), dict(pads=[1] * 4)),
    "one pixel": ("Conv", (1, 480, 1, 1), (200, 480, 1, 1), {}),
    "depthwise": ("Conv", (1, 64, 50, 50), (64, 1, 5, 5), dict(group=64, pads=[2] * 4)),
    "groups": ("Conv", (1, 32, 40, 40), (64, 8, 3, 3), dict(group=4)),
    "transposed": ("ConvTranspose", (1, 160, 20, 20), (160, 24, 2, 2), dict(strides=[2, 2])),
    "rows": ("MatMul", (1, 200, 384), (384, 256), {}),
    "rows and a bias": ("Gemm", (150, 500), (500, 300), {}),
    "one row": ("Gemm", (1, 700), (700, 900), {}),
}


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize("name", LAYERS)
def test_equal_with_onnx_runtime(name, activations):
    op, shape, weights, attrs = LAYERS[name]
    rng = np.random.default_rng(len(name))
    dtype = np.uint8 if activations == "u8" else np.int8
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    columns = weights[1 if op != "Conv" else 0]
    k = np.prod(weights) / columns if op == "Conv" else weights[0]
    scale = np.float32(0.0173 * 0.0031 * 60 * 70 * k**0.5 / 40)
    zero = dtype(128 if activations == "u8" else 3)
    constants = {
        "xs": np.float32(0.0173), "xz": zero, "ws": rng.uniform(2e-3, 4e-3, columns).astype(np.float32), "ys": scale,
        "yz": zero, "w": rng.integers(-127, 128, weights).astype(np.int8), "wz": np.zeros(columns, np.int8),
        "b": (rng.normal(size=columns) * 20 * scale).astype(np.float32)}
    biased = [] if op == "MatMul" else ["b"]
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0 if op == "Conv" else 1),
             helper.make_node(op, ["xf", "wf", *biased], ["f"], **attrs),
             helper.make_node("QuantizeLinear", ["f", "ys", "yz"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(nodes, "layer", [helper.make_tensor_value_info("x", kind, shape)],
                              [helper.make_tensor_value_info("y", kind, None)],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, session.run(None, {"x": x})[0].shape))
    compiled = gq.compile(gq.load_onnx(model), threads=2)
    assert "(1 integer)" in compiled.explain()
    assert np.array_equal(compiled(x=x), session.run(None, {"x": x})[0])
