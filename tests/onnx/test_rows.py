"""Softmax, layer norm, means, functions and float matmuls have the bits that docs/numbers.md states, ONNX Runtime's."""
import numpy as np
import onnx
import pytest
import stated_orders as stated
from onnx import helper
from onnx_runtime import results

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.kernels.jit import cpu


def same_bits(want, nodes, x, constants=None, opset=17, features="avx2"):
    """The model of these nodes from `x` to `y` gives `want`; so does ONNX Runtime on a CPU with these features."""
    initial = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    kind = helper.np_dtype_to_tensor_dtype(want.dtype)
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
                          [helper.make_tensor_value_info("y", kind, [None] * x.ndim)], initial)
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    got = gq.compile(gq.load_onnx(model), strict=True)(x=x)
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
    if cpu.has(features):
        assert results(model, {"x": x})[0].tobytes() == want.tobytes()


def normal(*shape, seed=0, spread=3.0):
    return (np.random.default_rng(seed).normal(size=shape) * spread + 0.3).astype(np.float32)


def quantize(scale, zp):
    """The node, its parameters, and what it makes of `z`."""
    node = helper.make_node("QuantizeLinear", ["z", "scale", "zp"], ["y"])
    return node, {"scale": np.float32(scale), "zp": np.uint8(zp)}, lambda z: stated.quantized(z, scale, zp)


@pytest.mark.parametrize("n", [1, 5, 16, 40, 128, 131])
def test_softmax(n):
    x = normal(60, n)
    x[0, : n // 2] = -np.inf
    want, (node, parameters, quantized) = stated.softmax(x), quantize(1 / 255, 0)
    same_bits(want, [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], x, features="avx512f")
    same_bits(quantized(want), [helper.make_node("Softmax", ["x"], ["z"], axis=-1), node], x, parameters,
              features="avx512f")


@pytest.mark.parametrize("n", [8, 9, 15, 21, 120, 384])
@pytest.mark.parametrize("beta", [True, False])
def test_layer_norm(n, beta):
    x, constants = normal(90, n), {"gamma": normal(n, seed=1), **({"beta": normal(n, seed=2)} if beta else {})}

    def norm(result, epsilon):
        return (stated.layer_norm(x, constants["gamma"], constants.get("beta"), epsilon),
                helper.make_node("LayerNormalization", ["x", *constants], [result], axis=-1, epsilon=epsilon))

    (want, plain), (before, first) = norm("y", 1e-5), norm("z", 1e-12)
    node, parameters, quantized = quantize(0.05, 120)
    same_bits(want, [plain], x, constants)
    same_bits(quantized(before), [first, node], x, {**constants, **parameters})


@pytest.mark.parametrize("op, n", [*(("ReduceMean", n) for n in (4, 12, 120, 384)),
                                   *(("ReduceSum", n) for n in (8, 16, 120, 384))])
def test_sums(op, n):
    x = normal(50, n)
    want = stated.row_sum(x) / np.float32(n if op == "ReduceMean" else 1)
    same_bits(want, [helper.make_node(op, ["x"], ["y"], axes=[-1], keepdims=1)], x, opset=11)


@pytest.mark.parametrize("op", ["Erf", "Exp"])
def test_functions(op):
    x = np.concatenate([normal(5000), np.linspace(-110, 90, 9001, dtype=np.float32)])
    same_bits(getattr(stated, op.lower())(x), [helper.make_node(op, ["x"], ["y"])], x)


@pytest.mark.parametrize("k", [100, 384, 1536])
def test_matmul_by_constant_weights(k):
    x, w = normal(7, k), normal(k, 130, seed=1)
    same_bits(stated.matmul(x, w), [helper.make_node("MatMul", ["x", "w"], ["y"])], x, {"w": w})


@pytest.mark.parametrize("node", [
    "LayerNormalization (x, g, b)", "LayerNormalization (x, g)", "InstanceNormalization (x, h, h)"])
def test_normalizations_of_f16_run_in_kernels(node):
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
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax_of_halves_rounds_each_step(op, opset, dtype):
    """As ONNX's function has them; of version 11 over the last two dimensions together. A sum is rounded once."""
    half = DTYPES[{"float16": "f16", "bfloat16": "bf16"}[dtype]].numpy
    text = f"net ({dtype}[5, 6, 40] x) => ({dtype}[5, 6, 40] y) {{ y = {op} <axis = 1> (x) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    x = np.random.default_rng(0).standard_normal((5, 6, 40)).astype(half)
    less = x - x.max((1, 2) if opset == 11 else 1, keepdims=True)
    powers = np.exp(less)
    total = powers.sum((1, 2) if opset == 11 else 1, dtype=np.float32, keepdims=True).astype(half)
    want = powers / total if op == "Softmax" else less - np.log(total)
    got = gq.compile(gq.load_onnx(model), strict=True)(x=x)
    assert got.dtype == half
    np.testing.assert_array_equal(got, want)


def test_hard_swish_has_the_bits_of_onnx_s_function():
    x = normal(7, 5000)
    want = x * np.clip(np.float32(1 / 6) * x + np.float32(0.5), 0, 1)
    same_bits(want, [helper.make_node("HardSwish", ["x"], ["y"])], x)


def test_cube():
    x = normal(5, 40)
    same_bits(x * x * x, [helper.make_node("Pow", ["x", "three"], ["y"])], x, {"three": np.float32(3)})
