"""Softmax, layer norm, means, erf and float matmuls have ONNX Runtime's bits, where it runs without optimising."""
import numpy as np
import onnx
import pytest
from onnx import helper

import graphq as gq
from graphq.kernels.jit import isa

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not any(x.name == "avx512" for x in isa.available()),
                                reason="ONNX Runtime's order of sums is that of its AVX-512 kernels")


def literal(nodes, x, constants, opset=17):
    """The model of these nodes from `x` to `y`, and what ONNX Runtime gives for it."""
    initial = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    result = onnx.TensorProto.UINT8 if nodes[-1].op_type == "QuantizeLinear" else onnx.TensorProto.FLOAT
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
                          [helper.make_tensor_value_info("y", result, [None] * x.ndim)], initial)
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return model, session.run(None, {"x": x})[0]


def same_bits(nodes, x, constants=None, opset=17):
    model, want = literal(nodes, x, constants or {}, opset)
    got = gq.compile(gq.load_onnx(model), strict=True)(x=x)
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


def normal(*shape, seed=0, spread=3.0):
    return (np.random.default_rng(seed).normal(size=shape) * spread + 0.3).astype(np.float32)


QUANTIZE = helper.make_node("QuantizeLinear", ["z", "scale", "zp"], ["y"])
PARAMETERS = {"scale": np.float32(1 / 255), "zp": np.uint8(0)}


@pytest.mark.parametrize("n", [1, 5, 16, 40, 128, 131])
def test_softmax(n):
    x = normal(60, n)
    x[0, : n // 2] = -np.inf
    same_bits([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], x)
    same_bits([helper.make_node("Softmax", ["x"], ["z"], axis=-1), QUANTIZE], x, PARAMETERS)


@pytest.mark.parametrize("n", [8, 9, 15, 21, 120, 384])
@pytest.mark.parametrize("beta", [True, False])
def test_layer_norm(n, beta):
    constants = {"gamma": normal(n, seed=1), **({"beta": normal(n, seed=2)} if beta else {})}
    node = helper.make_node("LayerNormalization", ["x", *constants], ["z"], axis=-1, epsilon=1e-12)
    plain = helper.make_node("LayerNormalization", ["x", *constants], ["y"], axis=-1, epsilon=1e-5)
    same_bits([plain], normal(90, n), constants)
    scale = {"scale": np.float32(0.05), "zp": np.uint8(120)}
    same_bits([node, QUANTIZE], normal(90, n), {**constants, **scale})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("n", [4, 12, 120, 384])
def test_sums(op, n):
    nodes = [helper.make_node(op, ["x"], ["y"], axes=[-1], keepdims=1)]
    same_bits(nodes, normal(50, n), opset=11)


@pytest.mark.parametrize("op", ["Erf", "Exp"])
def test_functions(op):
    x = np.concatenate([normal(5000), np.linspace(-110, 90, 9001, dtype=np.float32)])
    same_bits([helper.make_node(op, ["x"], ["y"])], x)


@pytest.mark.parametrize("k", [100, 384, 1536])
def test_matmul_by_constant_weights(k):
    same_bits([helper.make_node("MatMul", ["x", "w"], ["y"])], normal(7, k), {"w": normal(k, 130, seed=1)})


@pytest.mark.parametrize("node", [
    "LayerNormalization (x, g, b)", "LayerNormalization (x, g)", "InstanceNormalization (x, h, h)"])
def test_normalisations_of_f16_run_in_kernels(node):
    """In f32, rounded once."""
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype(np.float16)
    text = f"net (float16[2, 3, 40] x) => (float16[2, 3, 40] y) {{ y = {node} }}"
    constants = {"g": np.linspace(0.5, 2, 40), "b": np.linspace(-1, 1, 40), "h": np.ones(3)}

    def loaded(dtype, text):
        m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
        narrow = {k: v.astype(np.float16).astype(dtype) for k, v in constants.items()}
        m.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in narrow.items())
        return gq.load_onnx(m)

    want = gq.reference(loaded(np.float32, text.replace("float16", "float")), x=x.astype(np.float32))
    got = gq.compile(loaded(np.float16, text), strict=True)(x=x)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(float), want, rtol=1.1e-3, atol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 17])
def test_softmax_of_f16_rounds_each_step(op, opset):
    """As ONNX's function has them; of version 11 over the last two dimensions together."""
    text = f"net (float16[5, 6, 40] x) => (float16[5, 6, 40] y) {{ y = {op} <axis = 1> (x) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    x = np.random.default_rng(0).standard_normal((5, 6, 40)).astype(np.float16)
    less = x - x.max((1, 2) if opset == 11 else 1, keepdims=True)
    powers = np.exp(less)
    total = powers.sum((1, 2) if opset == 11 else 1, dtype=np.float32, keepdims=True).astype(np.float16)
    want = powers / total if op == "Softmax" else less - np.log(total)
    got = gq.compile(gq.load_onnx(model), strict=True)(x=x)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, want)


def test_hard_swish_has_the_bits_of_onnx_s_function():
    same_bits([helper.make_node("HardSwish", ["x"], ["y"])], normal(7, 5000))


def test_cube():
    same_bits([helper.make_node("Pow", ["x", "three"], ["y"])], normal(5, 40), {"three": np.float32(3)})
