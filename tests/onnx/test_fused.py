"""Products with an activation, as ONNX Runtime writes them, against ONNX Runtime and against formulas."""
import numpy as np
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(3)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


X, W, B, Z = floats(2, 4, 9, 8), floats(6, 2, 3, 3), floats(6), floats(2, 6, 9, 8)
CONV = {"group": 2, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
ACTIVATIONS = {"Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.2], "Clip": [-0.5, 1.5],
               "HardSigmoid": [0.3, 0.6]}

A2, B2, C2 = floats(5, 8), floats(8, 7), floats(7)
GEMM = {"Relu": {}, "Tanh": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {}, "Elu": {"alpha": 0.7},
        "LeakyRelu": {"alpha": 0.2}, "HardSigmoid": {"alpha": 0.3, "beta": 0.6}, "ThresholdedRelu": {"alpha": 0.4},
        "Selu": {"alpha": 1.5, "gamma": 1.1}}

CASES = {
    **{f"FusedConv {name} {bias} {more}": (
        [("x", X), ("W", W), ("B", B if bias else None), ("z", Z)][:4 if more else 3],
        {**CONV, "activation": name, **({"activation_params": values} if values else {})})
       for name, values in ACTIVATIONS.items() for bias in (0, 1) for more in (0, 1)},
    "FusedConv strides": ([("x", X), ("W", W), ("B", B)], {
        "group": 2, "strides": [2, 1], "auto_pad": "SAME_UPPER", "activation": "Relu"}),
    "FusedConv dilations": ([("x", X), ("W", W)], {"group": 2, "dilations": [1, 2], "activation": "Sigmoid"}),
    "FusedConv one axis": ([("x", floats(2, 3, 20)), ("W", floats(4, 3, 5)), ("B", floats(4))], {
        "strides": [2], "pads": [2, 1], "activation": "Tanh"}),
    "FusedConv none": ([("x", X), ("W", W), ("B", B), ("z", Z)], CONV),
    **{f"FusedGemm {name}": (
        [("a", A2), ("B", B2), ("C", C2)],
        {"activation": name, "alpha": 0.5, "beta": 2.0, **{f"activation_{k}": v for k, v in values.items()}})
       for name, values in GEMM.items()},
    "FusedGemm transposed": ([("a", A2.T.copy()), ("B", B2.T.copy())], {
        "transA": 1, "transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.1}),
    "TransposeMatMul": ([("a", floats(2, 8, 3)), ("b", floats(2, 5, 8))], {"transA": 1, "transB": 1, "alpha": 0.25}),
    "FusedMatMul transBatchA": ([("a", floats(3, 2, 4, 8)), ("b", floats(2, 4, 8, 5))], {"transBatchA": 1}),
    "FusedMatMul transBatchB": ([("a", floats(2, 3, 8)), ("b", floats(5, 2, 8))], {"transBatchB": 1, "transB": 1}),
    "FusedMatMul transBatch both": ([("a", floats(8, 2, 3)), ("b", floats(8, 2, 5))], {
        "transBatchA": 1, "transA": 1, "transBatchB": 1, "alpha": 0.5}),
}


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_operator(name, open_shapes):
    inputs, attrs = CASES[name]
    m = node_model(name.split()[0], inputs, attrs, open_shapes=open_shapes)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want)


def formula(x, w, b, z):
    """A convolution of groups with pads of 1, written out."""
    padded, out = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), np.zeros((2, 6, 9, 8))
    for o in range(6):
        for dy in range(3):
            for dx in range(3):
                part = padded[:, o // 3 * 2:o // 3 * 2 + 2, dy:dy + 9, dx:dx + 8]
                out[:, o] += (part * w[o, :, dy, dx, None, None]).sum(axis=1)
    return out + b[:, None, None] + z


@pytest.mark.parametrize("op", ["FusedConv", "NhwcFusedConv", "NhwcConv"])
def test_convolutions_by_formula(op):
    order = (0, 1, 2, 3) if op == "FusedConv" else (0, 2, 3, 1)
    inputs = [("x", X.transpose(order)), ("W", W), ("B", B), ("z", Z.transpose(order))]
    want, attrs = formula(X, W, B, Z), dict(CONV)
    if op == "NhwcConv":
        inputs, want = inputs[:3], want - Z
    else:
        attrs |= {"activation": "Clip", "activation_params": [-1.0, 2.0]}
        want = np.clip(want, -1, 2)
    for got in by_graphq(node_model(op, inputs, attrs), inputs):
        assert_near(got, [want.transpose(order).astype(np.float32)])


def test_products_with_activations_by_formula():
    inputs = [("a", floats(2, 5, 8)), ("b", floats(2, 7, 8))]
    m = node_model("FusedMatMulActivation", inputs, {"transB": 1, "alpha": 0.5, "activation": "LeakyRelu",
                                                    "activation_alpha": 0.2})
    y = 0.5 * inputs[0][1] @ inputs[1][1].swapaxes(1, 2)
    for got in by_graphq(m, inputs):
        assert_near(got, [np.where(y < 0, np.float32(0.2) * y, y)])
    m = node_model("FusedMatMulActivation", inputs, {"transB": 1, "activation": "Softmax", "activation_axis": 1})
    y = np.exp(2 * y)
    for got in by_graphq(m, inputs):
        assert_near(got, [y / y.sum(axis=1, keepdims=True)])


def test_all_is_one_partition():
    inputs = [("x", floats(2, 9, 8, 4)), ("W", W), ("B", B), ("z", floats(2, 9, 8, 6))]
    m = node_model("NhwcFusedConv", inputs, {**CONV, "activation": "Relu"})
    assert [n.op.name for n in gq.compile(gq.load_onnx(m), strict=True).graph.nodes if n.inputs] == ["partition"]


BAD = {
    "FusedConv unknown": ([("x", X), ("W", W)], {**CONV, "activation": "Swoosh"},
                          r"FusedConv 'o0': attribute 'activation' must be one of .*, got 'Swoosh'"),
    "FusedConv params": ([("x", X), ("W", W)], {**CONV, "activation": "Clip", "activation_params": [1.0]},
                         r"attribute 'activation_params' of Clip must have 2 numbers, got \[1.0\]"),
    "FusedConv missing": ([("x", X)], CONV, "FusedConv 'o0': input 1 is required"),
    "FusedConv rank": ([("x", floats(3, 4)), ("W", W)], CONV, "FusedConv 'o0': needs a batch, a channel and spatial"),
    "FusedConv dtype": ([("x", X.astype(np.int32)), ("W", W)], CONV, "FusedConv 'o0': "),
    "FusedConv sum": ([("x", X), ("W", W), ("B", B), ("z", floats(2, 6, 9, 7))], CONV, "FusedConv 'o0': "),
    "FusedConv channels": ([("x", X), ("W", floats(6, 3, 3, 3))], CONV, "FusedConv 'o0': "),
    "FusedConv pads": ([("x", X), ("W", W)], {**CONV, "pads": [1]}, "FusedConv 'o0': pads must be 4 numbers"),
    "FusedGemm Clip": ([("a", A2), ("B", B2)], {"activation": "Clip"}, "FusedGemm 'o0': attribute 'activation' is"),
    "FusedGemm shapes": ([("a", A2), ("B", floats(7, 8))], {"activation": "Relu"}, "FusedGemm 'o0': "),
    "FusedMatMul batches": ([("a", A2), ("B", B2)], {"transBatchA": 1},
                            "FusedMatMul 'o0': attribute 'transBatchA' needs batch dimensions"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_nodes(name):
    inputs, attrs, message = BAD[name]
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(node_model(name.split()[0], inputs, attrs))
