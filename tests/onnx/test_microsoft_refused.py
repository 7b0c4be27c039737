"""Nodes of com.microsoft that break a rule, and similar nodes that are accepted; without ONNX Runtime."""
import numpy as np
import pytest
from onnx_node import feeds, node_model

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(8)
I32, ABSENT = np.int32, ("", None)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


HEADS = [("q", floats(2, 3, 8)), ("k", floats(2, 5, 8)), ("v", floats(2, 5, 8)), ABSENT, ABSENT, ABSENT]
STEP = [("q", floats(2, 1, 8)), ("k", floats(2, 1, 8)), ("v", floats(2, 1, 8)), ABSENT, ABSENT, ABSENT,
        ("past_k", floats(2, 2, 4, 4)), ("past_v", floats(2, 2, 4, 4))]
ROTARY = [("x", floats(2, 5, 16)), ("p", np.zeros((2, 5), np.int64)), ("C", floats(20, 4)), ("S", floats(20, 4))]
ATTENTION = [("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("m", np.ones((2, 5), I32))]
QATTENTION = [("x", np.ones((2, 5, 8), np.uint8)), ("W", np.ones((8, 24), np.int8)), ("D", floats(24)),
              ("A", np.float32(0.1)), ("S", np.float32(0.1)), ABSENT, ("Y", np.uint8(3)), ("Z", np.int8(0))]
NORM = [("x", floats(2, 5, 8)), ("y", floats(2, 5, 8)), ("G", floats(8)), ("H", floats(8))]
EMBED = [("ids", np.zeros((2, 5), I32)), ABSENT, ("W", floats(9, 8)), ("P", floats(9, 8)), ABSENT, ("G", floats(8)),
         ("H", floats(8)), ABSENT, ("at", I32([[0, 1, 2, 3, 4], [8, 1, 2, 3, 4]]))]
GROUPED = [("q", floats(2, 1, 32)), ("k", floats(2, 1, 16)), ("v", floats(2, 1, 16)), ("past_k", floats(2, 2, 4, 8)),
           ("past_v", floats(2, 2, 4, 8)), ("n", I32([4, 4])), ("T", I32(5))]
SCALED = [*GROUPED, *[ABSENT] * 5, ("k_scale", np.float32([0.5])), ("v_scale", np.float32([0.5]))]
KINDS = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
LATER = "past sequence lengths, cache indirection and outputs of query-key products"
PLACES = r"positions must be \[batch, length\], without packing and scale"
COLUMNS = "input 1 must have as many columns for queries, keys and values as 2 heads take, got 24"

BNB4 = [("x", floats(3, 32)), ("B", np.zeros(80, np.uint8)), ("S", floats(10))]

# operator, inputs, arrays instead of them by name (or behind them), attributes, outputs, message
REFUSED = [
    ("MatMulBnb4", BNB4, {"B": np.zeros(79, np.uint8)}, {}, 1, r"input 1 must be \[80\], got u8\[79\]"),
    ("MatMulBnb4", BNB4, {"S": floats(9)}, {}, 1, r"input 2 must be \[10\], got f32\[9\]"),
    ("MatMulBnb4", BNB4, {}, {"quant_type": 2}, 1, "quant_type 0 or 1, and transB 1"),
    ("MatMulBnb4", BNB4, {}, {"transB": 0}, 1, "quant_type 0 or 1, and transB 1"),
    *(("MultiHeadAttention", [*HEADS, *[ABSENT] * (k - 6), ("n", np.zeros(2, I32))], {}, {}, 1, LATER) for k in (8, 9)),
    ("MultiHeadAttention", HEADS, {}, {}, 4, LATER),
    ("MultiHeadAttention", HEADS, {"q": floats(6, 8)}, {}, 1, r"must be \[batch, length, width\], got f32\[6,8\]"),
    ("MultiHeadAttention", HEADS, {"v": floats(2, 5, 7)}, {}, 1, "input 2 must have a width that 2 heads divide"),
    ("MultiHeadAttention", HEADS, {"q": floats(2, 3, 7), "k": floats(2, 5, 7)}, {}, 1, "input 0 must have a width"),
    ("MultiHeadAttention", STEP, {"past_k": floats(2, 3, 4, 4)}, {}, 1, r"input 6 must be \[2,2,\?,\?\]"),
    ("MultiHeadAttention", STEP, {"past_v": floats(1, 2, 4, 4)}, {}, 1, r"input 7 must be \[2,2,\?,\?\]"),
    ("RotaryEmbedding", ROTARY, {}, {"is_packed_batching": 1}, 1, PLACES),
    ("RotaryEmbedding", ROTARY, {}, {"scale": 2.0}, 1, PLACES),
    ("RotaryEmbedding", ROTARY, {"p": np.zeros(1, np.int64)}, {}, 1, PLACES),
    ("RotaryEmbedding", ROTARY, {"x": floats(2, 16)}, {}, 1, "input 0 must be"),
    ("Attention", ATTENTION, {}, {"qkv_hidden_sizes": [16, 8]}, 1, COLUMNS),
    ("Attention", ATTENTION, {}, {"qkv_hidden_sizes": [8, 8, 4]}, 1, COLUMNS),
    ("Attention", ATTENTION, {}, {"qkv_hidden_sizes": [24, 0, 0]}, 1, COLUMNS),
    ("Attention", ATTENTION, {}, {"qkv_hidden_sizes": [8, 9, 7]}, 1, COLUMNS),
    ("Attention", ATTENTION, {"m": np.ones(2, np.int64)}, {}, 1, r"a mask must be s32\[batch,length\], got s64\[2\]"),
    ("QAttention", QATTENTION, {"A": np.float32([0.1, 0.2])}, {}, 1, "input 3 must be"),
    ("QAttention", QATTENTION, {"Y": np.uint8([3, 4])}, {}, 1, "input 6 must be"),
    ("SkipLayerNormalization", NORM, {"x": floats(8), "y": floats(8)}, {}, 1, "input 0 must be"),
    ("EmbedLayerNormalization", EMBED, {"W": floats(8)}, {}, 1, "input 2 must be"),
    ("EmbedLayerNormalization", EMBED, {"at": np.zeros((2, 4), I32)}, {}, 1, "input 8 must be"),
    ("GroupQueryAttention", GROUPED, {}, {"qk_output": 0}, 4, "attribute 'qk_output'"),
    ("GroupQueryAttention", GROUPED, {"T": np.float32(5)}, {}, 1, "input 6 must be s32"),
    ("GroupQueryAttention", GROUPED, {"T": I32([5, 5])}, {}, 1, "input 6 must be"),
    ("GroupQueryAttention", GROUPED, {}, {"kv_cache_bit_width": 24}, 1, "do not fit together"),
    ("GroupQueryAttention", SCALED, {}, {**KINDS, "kv_cache_bit_width": 3}, 1, "do not fit together"),
    ("GroupQueryAttention", SCALED, {}, {**KINDS, "v_quant_type": "NONE", "kv_cache_bit_width": 0}, 1, "do not fit"),
    ("GroupQueryAttention", SCALED, {"v_scale": np.ones(8, np.float32)}, KINDS, 1,
     r"input 13 must have one scale, or 2 \* 8 scales, got f32\[8\]"),
    ("GroupQueryAttention", [*GROUPED, ABSENT, ABSENT, ("at", np.zeros(2, np.int64))], {}, {}, 1, "input 9 must be"),
    ("GroupQueryAttention", [*GROUPED, *[ABSENT] * 3, ("b", floats(1, 5))], {}, {}, 1, "input 10 must be"),
    ("GroupQueryAttention", [*GROUPED, *[ABSENT] * 4, ("s", floats(1, 4))], {}, {}, 1, "input 11 must be"),
    *(("GroupQueryAttention", [*GROUPED, *[ABSENT] * 7, ("qn", floats(8)), ("kn", floats(8))],
       {n: floats(1, 8)}, {}, 1, f"input {k} must be") for k, n in ((14, "qn"), (15, "kn"))),
]
COUNTS = {"GroupQueryAttention": {"num_heads": 4, "kv_num_heads": 2},
          "MatMulBnb4": {"K": 32, "N": 5, "block_size": 16, "quant_type": 1}}


def model(op, inputs, arrays=(), attrs=(), outputs=1):
    attrs = COUNTS.get(op, {"num_heads": 2} if "ttention" in op or op == "RotaryEmbedding" else {}) | dict(attrs)
    return node_model(op, [(n, dict(arrays).get(n, x)) for n, x in inputs], attrs, outputs)


@pytest.mark.parametrize("op, inputs, arrays, attrs, outputs, message", REFUSED, ids=range(len(REFUSED)))
def test_nodes_that_break_a_rule(op, inputs, arrays, attrs, outputs, message):
    gq.load_onnx(model(op, SCALED[:7] if inputs is SCALED else inputs[:7] if op[0] == "G" else inputs[:6]
                       if op[0] == "M" else inputs))
    with pytest.raises(GraphError, match=f"{op} 'o0': .*{message}"):
        gq.load_onnx(model(op, inputs, arrays, attrs, outputs))


def first(op, inputs, arrays=(), attrs=()):
    inputs = [(n, dict(arrays).get(n, x)) for n, x in inputs]
    out = gq.reference(gq.load_onnx(model(op, inputs, (), attrs)), feeds(inputs))
    return next(iter(out.values())) if isinstance(out, dict) else out


BIAS, SKIP = floats(2, 1, 3, 5), floats(1, 5, 8)
MASK = I32([[1], [0]])
BROADCAST = [  # operator, inputs, an operand with a dimension of 1 and its whole shape
    ("MultiHeadAttention", [*HEADS[:5], ("b", None)], "b", BIAS, (2, 2, 3, 5)),
    ("MultiHeadAttention", [*HEADS[:5], ("b", None)], "b", floats(1, 1, 3, 5), (2, 2, 3, 5)),
    ("MultiHeadAttention", [*STEP[:5], ("b", None), *STEP[6:]], "b", floats(2, 1, 1, 5), (2, 2, 1, 5)),
    ("SkipLayerNormalization", NORM, "y", SKIP, (2, 5, 8)), ("SkipLayerNormalization", NORM, "y", SKIP[0], (2, 5, 8)),
    ("EmbedLayerNormalization", EMBED, "at", I32([[5, 1, 2, 3, 4]]), (2, 5)),
    ("Attention", ATTENTION, "m", MASK, (2, 5)),
]


@pytest.mark.parametrize("op, inputs, name, x, shape", BROADCAST, ids=range(len(BROADCAST)))
def test_operands_of_one_row(op, inputs, name, x, shape):
    got, want = (first(op, inputs, {name: y}) for y in (x, np.broadcast_to(x, shape).copy()))
    np.testing.assert_array_equal(got, want)


def test_caches_of_32_bits_are_floats():
    np.testing.assert_array_equal(first("GroupQueryAttention", GROUPED, (), {"kv_cache_bit_width": 32}),
                                  first("GroupQueryAttention", GROUPED))


def test_sinks_are_as_given_beside_a_smooth_softmax():
    sinks = [*GROUPED, *[ABSENT] * 4, ("s", floats(4))]
    np.testing.assert_array_equal(first("GroupQueryAttention", sinks, (), {"smooth_softmax": 1}),
                                  first("GroupQueryAttention", sinks))


def test_sums_of_16_bits_are_normalized_in_f32():
    half = [(n, x.astype(np.float16)) for n, x in NORM]
    got = first("SkipLayerNormalization", half)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, first("SkipLayerNormalization", NORM), atol=0.02)


def test_widths_that_are_not_known():
    m = model("Attention", [(n.lower() if n == "W" else n, x) for n, x in ATTENTION[:2]])
    m.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "n"
    with pytest.raises(GraphError, match="Attention 'o0': .*the width of input 1 must be known"):
        gq.load_onnx(m)
    m = model("Attention", ATTENTION)
    m.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(GraphError, match=r"a mask must be s32\[batch,length\]"):
        gq.load_onnx(m)
    m = model("GroupQueryAttention", [*GROUPED, ("cos", floats(9, 4)), ("sin", floats(9, 4))], (), {"do_rotary": 1})
    gq.load_onnx(m)
    cos = next(v for v in m.graph.input if v.name == "cos")
    cos.type.tensor_type.shape.dim[1].dim_param = "n"
    with pytest.raises(GraphError, match=r"input 7 must be \[length, half of a head's width\], got f32\[9,\?\]"):
        gq.load_onnx(m)
