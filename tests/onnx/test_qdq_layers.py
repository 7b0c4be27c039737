"""Quantized layers equal ONNX Runtime without optimizations, which executes every quantize and dequantize by itself."""
import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_runtime import results

import graphq as gq

LAYERS = {  # operator, shapes of the input and of the weights, attributes
    "3x3": ("Conv", (1, 24, 40, 38), (32, 24, 3, 3), dict(pads=[1] * 4)),
    "1x1": ("Conv", (1, 150, 40, 40), (48, 150, 1, 1), {}),
    "stem": ("Conv", (1, 3, 96, 96), (16, 3, 5, 5), dict(strides=[2, 2], pads=[2] * 4)),
    "few pixels": ("Conv", (1, 300, 5, 5), (200, 300, 3, 3), dict(pads=[1] * 4)),
    "one pixel": ("Conv", (1, 480, 1, 1), (200, 480, 1, 1), {}),
    "depthwise": ("Conv", (1, 64, 50, 50), (64, 1, 5, 5), dict(group=64, pads=[2] * 4)),
    "two columns a channel": ("Conv", (1, 48, 50, 50), (96, 1, 3, 3), dict(group=48, pads=[1] * 4)),
    "groups": ("Conv", (1, 32, 40, 40), (64, 8, 3, 3), dict(group=4)),
    "transposed": ("ConvTranspose", (1, 160, 20, 20), (160, 24, 2, 2), dict(strides=[2, 2])),
    "transposed in groups": ("ConvTranspose", (1, 48, 20, 20), (48, 12, 3, 3), dict(strides=[2, 2], group=4)),
    "rows": ("MatMul", (1, 200, 384), (384, 256), {}),
    "rows and a bias": ("Gemm", (150, 500), (500, 300), {}),
    "two rows": ("Gemm", (2, 700), (700, 900), {}),
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
        "b": (rng.normal(size=columns if op != "ConvTranspose" else columns * attrs.get("group", 1)) * 20 * scale
              ).astype(np.float32)}
    biased = [] if op == "MatMul" else ["b"]
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0 if op == "Conv" else 1),
             helper.make_node(op, ["xf", "wf", *biased], ["f"], **attrs),
             helper.make_node("QuantizeLinear", ["f", "ys", "yz"], ["y"])]
    assert "(1 integer)" in equal(nodes, x, constants).explain()


def equal(nodes, x, constants, opset=17):
    """Compile the model of these nodes from `x` to `y`, whose results must be those of ONNX Runtime, and give it."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(nodes, "layer", [helper.make_tensor_value_info("x", kind, x.shape)],
                              [helper.make_tensor_value_info("y", kind, None)],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    want, = results(model, {"x": x})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, want.shape))
    compiled = gq.compile(gq.load_onnx(model), threads=2)
    assert np.array_equal(compiled(x=x), want)
    return compiled


MEANS = {  # operator, shape of the input, attributes
    "3x2": ("AveragePool", (1, 96, 6, 80), dict(kernel_shape=[3, 2], strides=[3, 2])),
    "3x3": ("AveragePool", (1, 32, 40, 39), dict(kernel_shape=[3, 3], pads=[1] * 4)),
    "3x3, padding counts": ("AveragePool", (1, 32, 40, 39),
                            dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 2], count_include_pad=1)),
    "same": ("AveragePool", (1, 32, 20, 39), dict(kernel_shape=[3, 4], strides=[1, 2], auto_pad="SAME_UPPER")),
    "strides of 3": ("AveragePool", (1, 32, 40, 39), dict(kernel_shape=[3, 3], strides=[3, 3])),
    "rounded up": ("AveragePool", (1, 32, 40, 38), dict(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    "rounded up, padding counts": ("AveragePool", (1, 32, 40, 38), dict(
        kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1, pads=[0, 0, 1, 1])),
    "large": ("AveragePool", (1, 32, 20, 19), dict(kernel_shape=[12, 11])),
    "1d": ("AveragePool", (2, 32, 400), dict(kernel_shape=[5], strides=[2], pads=[2, 2])),
    "3d": ("AveragePool", (1, 32, 9, 8, 7), dict(kernel_shape=[2, 3, 2], strides=[1, 2, 1], pads=[0, 1, 0, 1, 1, 1])),
    "whole": ("AveragePool", (4, 300, 5, 6), dict(kernel_shape=[5, 6])),
    "all pixels": ("GlobalAveragePool", (4, 300, 7, 7), {}),
    "few pixels": ("GlobalAveragePool", (40, 300, 2, 3), {}),
    "reduced": ("ReduceMean", (40, 300, 2, 6), dict(axes=[2, 3])),
    "reduced, many": ("ReduceMean", (4, 300, 9, 12), dict(axes=[2, 3], keepdims=0)),
}


@pytest.mark.parametrize("ratio", [1.0, 0.73])
@pytest.mark.parametrize("name,opset", [(name, opset) for name in MEANS for opset in (17, 22)
                                        if opset == 17 or "reduced" not in name])  # axes are an input then
def test_means_equal_onnx_runtime(name, opset, ratio):
    """Where the scale stays many means are ties, which the order of sums decides."""
    op, shape, attrs = MEANS[name]
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    constants = {"xs": np.float32(0.0173), "ys": np.float32(0.0173 * ratio), "z": np.uint8(121)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
             helper.make_node(op, ["xf"], ["f"], **attrs),
             helper.make_node("QuantizeLinear", ["f", "ys", "z"], ["y"])]
    equal(nodes, x, constants, opset)


@pytest.mark.parametrize("place", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("factors", [(2, 2), (4, 3), (1.5, 2.5), (1, 2)])
def test_linear_interpolation_equals_onnx_runtime(factors, place):
    """Where the scale stays many means are ties, as those of AveragePool."""
    x = np.random.default_rng(2).integers(0, 256, (1, 16, 20, 30)).astype(np.uint8)
    constants = {"xs": np.float32(0.0173), "ys": np.float32(0.0173), "z": np.uint8(121),
                 "scales": np.float32([1, 1, *factors])}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
             helper.make_node("Resize", ["xf", "", "scales"], ["f"], mode="linear",
                              coordinate_transformation_mode=place),
             helper.make_node("QuantizeLinear", ["f", "ys", "z"], ["y"])]
    assert "NumPy" not in equal(nodes, x, constants).explain()


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
@pytest.mark.parametrize("op,attrs", [("MaxPool", dict(kernel_shape=[3, 3], strides=[2, 2])), ("Relu", {}),
                                      ("AveragePool", dict(kernel_shape=[2, 2])), ("Concat", dict(axis=1))])
def test_activations_of_16_bits_equal_onnx_runtime(op, attrs, dtype):
    x = np.random.default_rng(3).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (1, 16, 20, 30)).astype(dtype)
    constants = {"xs": np.float32(1.3e-4), "ys": np.float32(1.1e-4), "z": dtype(121)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
             helper.make_node(op, ["xf", "xf"] if op == "Concat" else ["xf"], ["f"], **attrs),
             helper.make_node("QuantizeLinear", ["f", "ys", "z"], ["y"])]
    assert "NumPy" not in equal(nodes, x, constants, 21).explain()


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_convolution_of_weights_of_4_bits_equals_onnx_runtime(dtype):
    rng = np.random.default_rng(4)
    x, zero = rng.integers(0, 256, (1, 24, 20, 19)).astype(np.uint8), 8 if dtype == ml_dtypes.uint4 else 0
    constants = {
        "xs": np.float32(0.0173), "xz": np.uint8(128), "ws": rng.uniform(2e-2, 4e-2, 32).astype(np.float32),
        "w": (rng.integers(-8, 8, (32, 24, 3, 3)) + zero).astype(dtype), "wz": np.full(32, zero).astype(dtype),
        "ys": np.float32(0.1)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
             helper.make_node("Conv", ["xf", "wf"], ["f"], pads=[1] * 4),
             helper.make_node("QuantizeLinear", ["f", "ys", "xz"], ["y"])]
    assert "(1 integer)" in equal(nodes, x, constants, 21).explain()


def test_infinite_scales_run():
    """Quantizers write them where they saw -inf, in masks."""
    x = np.float32([-1e30, 3, 0, 7]).reshape(1, 4)
    constants = {"s": np.float32(np.inf), "z": np.uint8(255), "t": np.float32(0.02), "zero": np.uint8(0)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["d"]),
             helper.make_node("Min", ["d", "t"], ["y"])]
    equal(nodes, x, constants)
