"""Operands of com.microsoft's operators whose sizes follow from others, or from attributes: refused by number and size.

ONNX Runtime refuses each of them, too. And scales and zero points that are mixed: one scale and several zero points.
"""
import ml_dtypes
import numpy as np
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(7)
F, U, S = np.float32, np.uint8, np.int8


def floats(*shape):
    return rng.standard_normal(shape).astype(F)


def u8(*shape):
    return rng.integers(0, 256, shape).astype(U)


def s8(*shape):
    return rng.integers(-120, 121, shape).astype(S)


def scales(*shape):
    return rng.uniform(0.01, 0.1, shape).astype(F)


X = ("x", floats(2, 3, 64))
LSTM = [("x", floats(4, 1, 6)), ("W", s8(1, 6, 20)), ("R", s8(1, 5, 20)), ("B", floats(1, 40)), ("", None),
        ("h", floats(1, 1, 5)), ("c", floats(1, 1, 5)), ("P", floats(1, 15)), ("WS", scales(1, 20)),
        ("WZ", np.zeros(1, S)), ("RS", scales(1)), ("RZ", np.zeros((1, 20), S))]
NORM = [("x", floats(2, 5, 8)), ("y", floats(2, 5, 8)), ("G", floats(8)), ("H", floats(8)), ("B", floats(8))]
EMBED = [("ids", np.zeros((2, 5), np.int32)), ("s", np.zeros((2, 5), np.int32)), ("W", floats(9, 8)),
         ("P", floats(9, 8)), ("S", floats(2, 8)), ("G", floats(8)), ("H", floats(8)), ("m", np.ones((2, 5), np.int32))]
HEADS = [("q", floats(2, 3, 8)), ("k", floats(2, 5, 8)), ("v", floats(2, 5, 8)), ("B", floats(24)),
         ("m", np.ones((2, 5), np.int32)), ("a", floats(1, 2, 3, 5))]
ROTARY = [("x", floats(2, 5, 16)), ("p", np.zeros((2, 5), np.int64)), ("C", floats(20, 4)), ("S", floats(20, 4))]

# operator -> inputs, attributes, and wrong shapes by the number of the input
CASES = {
    "MatMulNBits": ([X, ("B", u8(8, 4, 8)), ("S", scales(8, 4)), ("Z", u8(8, 2)), ("", None), ("D", floats(8))],
                    {"K": 64, "N": 8, "bits": 4, "block_size": 16},
                    {1: [(8, 4, 9), (16, 4, 8), (8, 32), (256,), (4, 8, 8)], 2: [(8, 3), (31,), (4, 8), (32, 1)],
                     3: [(32, 1), (8, 4), (15,), (2, 8)], 5: [(7,), (1,), (1, 8), ()]}),
    "MatMulNBits 2 bits": ([X, ("B", u8(8, 4, 4)), ("S", scales(32)), ("Z", u8(8))],
                           {"K": 64, "N": 8, "bits": 2, "block_size": 16}, {1: [(8, 4, 8)], 3: [(32, 1), (16,)]}),
    "MatMulNBits floats": ([X, ("B", u8(8, 4, 8)), ("S", scales(32)), ("Z", scales(32))],
                           {"K": 64, "N": 8, "bits": 4, "block_size": 16}, {3: [(16,), (4, 8), (64,)]}),
    "GatherBlockQuantized": ([("W", u8(6, 32)), ("i", np.array([1, 5])), ("S", scales(6, 4)), ("Z", u8(6, 2))],
                             {"block_size": 16, "quantize_axis": 1, "bits": 4},
                             {2: [(6, 3), (4, 6), (6, 1), (24,), ()], 3: [(6, 4), (6, 1), (12,), (2, 6)]}),
    "GatherBlockQuantized 8 bits": ([("W", u8(6, 64)), ("i", np.array([1, 5])), ("S", scales(6, 4)), ("Z", u8(6, 4))],
                                    {"block_size": 16, "quantize_axis": 1, "bits": 8}, {3: [(6, 2), (24,)]}),
    "GatherBlockQuantized s4": ([("W", s8(6, 64).astype(ml_dtypes.int4)), ("i", np.array([1, 5])), ("S", scales(6, 4)),
                                 ("Z", np.zeros((6, 4), ml_dtypes.int4))], {"block_size": 16, "quantize_axis": 1},
                                {2: [(6, 3)], 3: [(6, 2), (4, 6), (24,)]}),
    "DynamicQuantizeMatMul": ([("x", floats(2, 3, 8)), ("B", s8(8, 5)), ("S", scales(5)), ("Z", s8(5)),
                               ("D", floats(5))], {}, {2: [(4,), (8,)], 3: [(6,)], 4: [(1,), (), (4,)]}),
    "MatMulIntegerToFloat": ([("x", u8(2, 3, 8)), ("B", s8(8, 5)), ("A", scales()), ("S", scales(5)), ("Y", U(3)),
                              ("Z", s8(5)), ("D", floats(5))],
                             {}, {3: [(4,), (8,)], 5: [(6,)], 6: [(1,), (), (4,)]}),
    "QGemm": ([("x", u8(3, 8)), ("A", scales()), ("Y", U(3)), ("B", s8(8, 5)), ("S", scales(5)), ("Z", s8(5)),
               ("C", np.zeros(5, np.int32))], {}, {0: [(1, 3, 8), (8,)], 3: [(1, 8, 5)], 4: [(4,)], 6: [(4,), (3,)]}),
    "QAttention": ([("x", u8(2, 5, 8)), ("W", s8(8, 24)), ("D", floats(24)), ("A", scales()), ("S", scales(24)),
                    ("", None), ("Y", U(3)), ("Z", s8(24))], {"num_heads": 2},
                   {2: [(1,), (), (1, 24), (23,)], 4: [(23,)], 7: [(8,)]}),
    "Attention": ([("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("m", np.ones((2, 5), np.int32))],
                  {"num_heads": 2}, {1: [(1, 8, 24)], 2: [(1,), (), (1, 24)]}),
    "DynamicQuantizeLSTM": (LSTM, {"hidden_size": 5}, {
        1: [(1, 6, 19), (2, 6, 20), (6, 20), ()], 2: [(1, 5, 21), (5, 20)], 3: [(40,), (1, 39), ()], 7: [(1, 14), ()],
        8: [(1, 19), (2,), (20,), ()], 9: [(2,), ()], 10: [(1, 19), ()], 11: [(1, 21), ()]}),
    "BiasGelu": ([("x", floats(3, 9)), ("D", floats(9))], {}, {1: [(1,), (), (1, 9)]}),
    "FastGelu": ([("x", floats(3, 9)), ("D", floats(9))], {}, {1: [(1,), (), (1, 9)]}),
    "SkipLayerNormalization": (NORM, {}, {1: [(2, 1, 8), (2, 5, 1), ()], 2: [(1,)], 3: [(7,)], 4: [(1,), (1, 8), ()]}),
    "EmbedLayerNormalization": (EMBED, {}, {1: [(1, 5), (5,)], 3: [(9, 1)], 5: [(1,)], 7: [(2, 4), (10,)]}),
    "MultiHeadAttention": (HEADS, {"num_heads": 2}, {1: [(1, 5, 8), (2, 5, 6)], 2: [(2, 4, 8)], 3: [(25,), (48,), ()],
                                                     5: [(1, 2, 1, 5), (2, 3, 5)]}),
    "RotaryEmbedding": (ROTARY, {"num_heads": 2}, {1: [(1, 5), (2, 1)], 3: [(21, 4), (20, 8)]}),
    "FusedConv": ([("x", floats(1, 4, 6, 6)), ("W", floats(6, 4, 3, 3)), ("B", floats(6)), ("z", floats(1, 6, 4, 4))],
                  {"activation": "Relu"}, {3: [(1, 1, 4, 4), (6, 4, 4), ()]}),
    "FusedGemm": ([("a", floats(5, 8)), ("B", floats(8, 7)), ("C", floats(7))], {"activation": "Relu"},
                  {0: [(1, 5, 8), (8,)], 1: [(1, 8, 7)], 2: [(5,), (1, 5, 7)]}),
}
OUTPUTS = {"EmbedLayerNormalization": 2}


def model(name, inputs, attrs):
    op = name.split()[0]
    return node_model(op, inputs, attrs, OUTPUTS.get(op, 1), opset=21)


@pytest.mark.parametrize("name", CASES)
def test_wrong_sizes_are_refused_as_onnx_runtime_does(name):
    inputs, attrs, wrong = CASES[name]
    right = model(name, inputs, attrs)
    gq.load_onnx(right)
    by_onnx_runtime(right, inputs)
    for k, shapes in wrong.items():
        for shape in shapes:
            other = [(n, x if i != k else np.resize(x, shape)) for i, (n, x) in enumerate(inputs)]
            m = model(name, other, attrs)
            with pytest.raises(GraphError, match=rf"{name.split()[0]} 'o0': input {k} must be \["):
                gq.load_onnx(m)
            with pytest.raises(Exception, match="ONNXRuntimeError"):
                by_onnx_runtime(m, other)


@pytest.mark.parametrize("name, value", [("K", 0), ("N", -1), ("block_size", 0), ("K", None)])
def test_attributes_that_sizes_follow_from_are_positive(name, value):
    inputs, attrs, _ = CASES["MatMulNBits"]
    attrs = {k: v for k, v in {**attrs, name: value}.items() if v is not None}
    with pytest.raises(GraphError, match=f"MatMulNBits 'o0': attribute '{name}' must be positive, got {value}"):
        gq.load_onnx(model("MatMulNBits", inputs, attrs))


MIXED = {  # operator -> inputs with the scale and the zero point of its weights, whose shapes are asked for
    "MatMulIntegerToFloat": lambda s, z: ([("x", u8(2, 3, 8)), ("B", s8(8, 24)), ("A", scales()), ("S", s), ("Y", U(3)),
                                           ("Z", z)], {}),
    "DynamicQuantizeMatMul": lambda s, z: ([("x", floats(2, 3, 8)), ("B", s8(8, 24)), ("S", s), ("Z", z)], {}),
    "QAttention": lambda s, z: ([("x", u8(2, 5, 8)), ("W", s8(8, 24)), ("D", floats(24)), ("A", scales()), ("S", s),
                                 ("", None), ("Y", U(3)), ("Z", z)], {"num_heads": 2}),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("scale, zp", [((), (24,)), ((1,), (24,)), ((24,), ()), ((24,), (1,)), ((24,), None)], ids=str)
@pytest.mark.parametrize("op", MIXED)
def test_one_scale_and_several_zero_points_and_the_reverse(op, scale, zp, constant):
    inputs, attrs = MIXED[op](np.asarray(scales(*scale)), None if zp is None else np.asarray(s8(*zp) // 8))
    if not constant:
        inputs = [(n.lower() if n == "S" else n, x) for n, x in inputs]
    m = node_model(op, inputs, attrs)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want, tolerance=1e-4)


@pytest.mark.parametrize("of_w", [(1,), (1, 20)], ids=str)
@pytest.mark.parametrize("of_r", [(1,), (1, 20)], ids=str)
def test_scales_of_columns_of_a_quantized_layer_with_one_zero_point(of_w, of_r):
    inputs = [x for x in LSTM if x[0] not in ("P", "WS", "WZ", "RS", "RZ")]
    inputs += [("", None), ("WS", scales(*of_w)), ("WZ", S([3])), ("RS", scales(*of_r)), ("RZ", S([-4]))]
    m = node_model("DynamicQuantizeLSTM", inputs, {"hidden_size": 5}, 3)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want, tolerance=1e-4)


def test_weights_of_a_state_beyond_8_bits_are_refused():
    inputs = [(n, s8(1, 20) if n == "RZ" else x) for n, x in LSTM]
    with pytest.raises(GraphError, match="DynamicQuantizeLSTM 'o0': input 2 minus its zero points must have 8 bits"):
        gq.load_onnx(node_model("DynamicQuantizeLSTM", inputs, {"hidden_size": 5}))


def test_weights_of_a_state_may_have_all_8_bits():
    r, zps = np.zeros((1, 5, 20), S), np.zeros((1, 20), S)
    r[0, 0, :2] = -128, 127
    inputs = [(n, {"R": r, "RZ": zps}.get(n, x)) for n, x in LSTM]
    gq.load_onnx(node_model("DynamicQuantizeLSTM", inputs, {"hidden_size": 5}))
    zps[0, 1] = -1
    with pytest.raises(GraphError, match="must have 8 bits, got -128 to 128"):
        gq.load_onnx(node_model("DynamicQuantizeLSTM", inputs, {"hidden_size": 5}))


@pytest.mark.parametrize("rows", [(), (1,), (1, 1), (3, 1), (1, 5), (3, 5)], ids=str)
def test_biases_of_qgemm_are_broadcast(rows):
    inputs = [("x", u8(3, 8)), ("A", scales()), ("Y", U(3)), ("B", s8(8, 5)), ("S", scales(5)), ("Z", s8(5)),
              ("C", rng.integers(-999, 999, rows).astype(np.int32))]
    m = node_model("QGemm", inputs)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want)
