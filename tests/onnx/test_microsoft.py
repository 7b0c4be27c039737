"""com.microsoft's operators against ONNX Runtime, op by op and compiled; models of one node."""
import ml_dtypes
import numpy as np
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model

import graphq as gq
from graphq.errors import GraphError

pytest.importorskip("onnxruntime")

rng = np.random.default_rng(0)


def u8(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def s8(*shape):
    return rng.integers(-127, 128, shape).astype(np.int8)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


S, Z = np.float32, np.uint8
IDS = rng.integers(0, 20, (2, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)

# operator -> inputs by name (None: absent; upper case: constants), attributes, steps that an integer may differ by
CASES = {
    "QLinearAdd": ([("a", u8(2, 3, 4)), ("AS", S(0.02)), ("AZ", Z(120)), ("b", u8(3, 4)), ("BS", S(0.03)), ("BZ", Z(9)),
                    ("CS", S(0.04)), ("CZ", Z(100))], {}, 1),
    "QLinearMul": ([("a", s8(2, 3, 4)), ("AS", S(0.02)), ("AZ", np.int8(3)), ("b", s8(4)), ("BS", S(0.03)),
                    ("BZ", np.int8(-9)), ("CS", S(0.04)), ("CZ", np.int8(10))], {}, 1),
    "QLinearConcat": ([("YS", S(0.05)), ("YZ", Z(90)), ("a", u8(2, 3)), ("AS", S(0.02)), ("AZ", Z(12)), ("b", u8(2, 5)),
                       ("BS", S(0.05)), ("BZ", Z(90))], {"axis": 1}, 1),
    "QLinearSigmoid": ([("x", u8(2, 30)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(1 / 256)), ("YZ", Z(0))], {}, 1),
    "QLinearLeakyRelu": ([("x", u8(2, 30)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(0.03)), ("YZ", Z(60))],
                         {"alpha": 0.2}, 1),
    "QLinearSoftmax": ([("x", u8(2, 30)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(1 / 256)), ("YZ", Z(0))],
                       {"axis": -1, "opset": 13}, 1),
    "QLinearSoftmax rows": ([("x", s8(2, 3, 5)), ("XS", S(0.05)), ("XZ", np.int8(12)), ("YS", S(1 / 256)),
                             ("YZ", np.int8(-128))], {"axis": 1, "opset": 12}, 1),
    "QLinearSoftmax axis": ([("x", u8(2, 30, 3)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(1 / 256)), ("YZ", Z(0))],
                            {"axis": 1, "opset": 13}, 1),
    "QLinearAveragePool": ([("x", u8(1, 3, 7, 8)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(0.04)), ("YZ", Z(100))],
                           {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}, 0),
    "QLinearAveragePool ties": ([("x", u8(1, 3, 40, 50)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(0.05)),
                                 ("YZ", Z(101))], {"kernel_shape": [2, 2]}, 0),
    "QLinearAveragePool s8": ([("x", s8(1, 3, 40, 50)), ("XS", S(0.05)), ("XZ", np.int8(-3)), ("YS", S(0.05)),
                               ("YZ", np.int8(7))], {"kernel_shape": [2, 3], "count_include_pad": 1,
                                                     "pads": [1, 1, 0, 1]}, 0),
    "QLinearGlobalAveragePool": ([("x", u8(1, 3, 7, 8)), ("XS", S(0.05)), ("XZ", Z(120)), ("YS", S(0.01)),
                                  ("YZ", Z(100))], {"channels_last": 0}, 1),
    "QGemm": ([("a", u8(3, 8)), ("AS", S(0.02)), ("AZ", Z(120)), ("B", s8(5, 8)), ("BS", np.full(5, 0.01, S)),
               ("BZ", np.zeros(5, np.int8)), ("C", np.arange(5, dtype=np.int32) * 100), ("YS", S(0.05)), ("YZ", Z(99))],
              {"transB": 1}, 1),
    "QGemm f32": ([("a", u8(3, 8)), ("AS", S(0.02)), ("AZ", Z(120)), ("B", s8(8, 5)), ("BS", S(0.01)),
                   ("BZ", np.int8(2)), ("C", np.arange(5, dtype=np.int32) * 100)], {"alpha": 0.5}, 0),
    "MatMulIntegerToFloat": ([("a", u8(2, 3, 8)), ("B", s8(8, 5)), ("as", S(0.02)), ("BS", np.full(5, 0.01, S)),
                              ("az", Z(120)), ("BZ", np.zeros(5, np.int8)), ("D", floats(5))], {}, 0),
    "DynamicQuantizeMatMul": ([("a", floats(2, 3, 8)), ("B", s8(8, 5)), ("BS", S(0.01)), ("BZ", np.int8(0)),
                               ("D", floats(5))], {}, 0),
    "MatMulNBits": ([("a", floats(3, 64)), ("B", u8(5, 2, 16)), ("BS", np.abs(floats(10)) + S(0.1))],
                    {"K": 64, "N": 5, "bits": 4, "block_size": 32}, 0),
    "MatMulNBits 40": ([("a", floats(3, 40)), ("B", u8(5, 2, 16)), ("BS", np.abs(floats(10)) + S(0.1)),
                        ("BZ", u8(5))], {"K": 40, "N": 5, "bits": 4, "block_size": 32}, 0),
    "MatMulNBits 8": ([("a", floats(3, 64)), ("B", u8(5, 2, 32)), ("BS", np.abs(floats(10)) + S(0.1)),
                       ("BZ", u8(10))], {"K": 64, "N": 5, "bits": 8, "block_size": 32}, 0),
    "MatMulNBits 2": ([("a", floats(3, 64)), ("B", u8(5, 2, 8)), ("BS", floats(5, 2)), ("BZ", u8(5, 1))],
                      {"K": 64, "N": 5, "bits": 2, "block_size": 32}, 0),
    "GatherBlockQuantized": ([("W", u8(20, 16)), ("ids", IDS), ("WS", floats(20, 2)), ("WZ", u8(20, 1))],
                             {"block_size": 16, "bits": 4, "quantize_axis": 1}, 0),
    "GatherBlockQuantized 8": ([("W", u8(20, 32)), ("ids", IDS), ("WS", floats(20, 2))],
                               {"block_size": 16, "bits": 8, "quantize_axis": 1}, 0),
    "GatherBlockQuantized s4": ([("W", s8(20, 32).astype(ml_dtypes.int4)), ("ids", IDS), ("WS", floats(20, 2)),
                                 ("WZ", s8(20, 2).astype(ml_dtypes.int4))], {"block_size": 16, "quantize_axis": 1}, 0),
    "MatMulNBits negative": ([("a", floats(3, 64)), ("B", u8(5, 2, 16)), ("BS", np.append(floats(9), S(0)))],
                             {"K": 64, "N": 5, "bits": 4, "block_size": 32}, 0),
    "QuantizeLinear": ([("x", floats(3, 9)), ("S", S(0.02)), ("Z", Z(120))], {}, 0),
    "QuantizeLinear axis": ([("x", floats(3, 9)), ("S", np.float32([0.02, 0.5, 0.01])), ("Z", np.int8([3, -9, 0]))],
                            {"axis": 0}, 0),
    "DequantizeLinear": ([("x", u8(3, 9)), ("S", S(0.02)), ("Z", Z(120))], {}, 0),
    "DequantizeLinear axis": ([("x", s8(3, 9)), ("S", np.float32([0.02, 0.5, 0.01])), ("Z", np.int8([3, -9, 0]))],
                              {"axis": 0}, 0),
    "FusedMatMul": ([("a", floats(2, 8, 3)), ("b", floats(2, 5, 8))], {"transA": 1, "transB": 1, "alpha": 0.25}, 0),
    "Gelu": ([("x", floats(3, 9))], {}, 0),
    "FastGelu": ([("x", floats(3, 9)), ("D", floats(9))], {}, 0),
    "BiasGelu": ([("x", floats(3, 9)), ("D", floats(9))], {}, 0),
    "QuickGelu": ([("x", floats(3, 9))], {}, 0),
    "SkipLayerNormalization": ([("x", floats(2, 5, 8)), ("y", floats(2, 5, 8)), ("G", floats(8)), ("H", floats(8)),
                                ("D", floats(8))], {"epsilon": 1e-5}, 0),
    "SkipLayerNormalization f16": ([("x", floats(2, 5, 8).astype(np.float16)), ("y", floats(5, 8).astype(np.float16)),
                                    ("G", floats(8).astype(np.float16))], {"epsilon": 1e-5}, 0),
    "EmbedLayerNormalization": ([("ids", IDS), ("segments", (IDS > 9).astype(np.int32)), ("W", floats(20, 8)),
                                 ("P", floats(16, 8)), ("T", floats(2, 8)), ("G", floats(8)), ("H", floats(8)),
                                 ("mask", MASK)], {"epsilon": 1e-5}, 0),
    **{f"QEmbedLayerNormalization {what}": ([
        ("ids", IDS), ("segments", None if few else (IDS > 9).astype(np.int32)), ("W", kind(20, 8)), ("P", kind(16, 8)),
        ("T", None if few else kind(2, 8)), ("G", kind(8)), ("H", kind(8)), ("mask", MASK),
        *((f"{n}S", None if few and n == "T" else S(0.02 * k)) for k, n in enumerate("WPTGH", 1)),
        *((f"{n}Z", None if few and n == "T" else kind(1)[0]) for n in "WPTGH")], {"epsilon": 1e-5}, 0)
       for what, kind, few in (("u8", u8, False), ("s8", s8, False), ("without segments", u8, True))},
    **{f"MatMulBnb4 {kind} {n}": ([("x", floats(2, 3, k)), ("B", u8(-(-n * k // 2))), ("S", floats(-(-n * k // 16)))],
                                  {"K": k, "N": n, "block_size": 16, "quant_type": kind}, 0)
       for kind, n, k in ((0, 6, 32), (1, 6, 32), (1, 7, 24), (0, 3, 33))},
    "Attention": ([("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("mask", MASK)], {"num_heads": 2},
                  0),
    **{f"Attention {what}": ([("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("mask", mask)], {
        "num_heads": 2, "mask_filter_value": -500.0}, 0)
       for what, mask in (("ends", np.array([3, 5], np.int32)), ("ends and starts", np.array([5, 4, 2, 0], np.int32)),
                          ("rows of a mask", np.tri(5, dtype=np.int32) * MASK[:, None] | np.eye(5, dtype=np.int32)))},
    "Attention causal": ([("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("mask", MASK)],
                         {"num_heads": 2, "unidirectional": 1, "scale": 0.3}, 0),
    "Attention past": ([("x", floats(2, 2, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("mask", None),
                        ("past", floats(2, 2, 2, 3, 4))], {"num_heads": 2, "unidirectional": 1}, 0),
    "Attention bias": ([("x", floats(2, 5, 8)), ("W", floats(8, 24)), ("D", floats(24)), ("mask", MASK), ("past", None),
                        ("bias", floats(2, 2, 5, 5))], {"num_heads": 2}, 0),
    "Attention widths": ([("x", floats(2, 5, 8)), ("W", floats(8, 20)), ("D", floats(20))],
                         {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}, 0),
    "MultiHeadAttention": ([("q", floats(2, 3, 8)), ("k", floats(2, 5, 8)), ("v", floats(2, 5, 8)), ("D", floats(24)),
                            ("mask", MASK), ("bias", floats(1, 2, 3, 5))], {"num_heads": 2}, 0),
    "MultiHeadAttention causal": ([("q", floats(2, 5, 8)), ("k", floats(2, 5, 8)), ("v", floats(2, 5, 8))],
                                  {"num_heads": 2, "unidirectional": 1, "scale": 0.3}, 0),
    "MultiHeadAttention past": ([("q", floats(2, 1, 8)), ("k", floats(2, 1, 8)), ("v", floats(2, 1, 8)), ("", None),
                                 ("", None), ("", None), ("past_k", floats(2, 2, 4, 4)),
                                 ("past_v", floats(2, 2, 4, 4))],
                                {"num_heads": 2}, 0),
    "MultiHeadAttention ends": ([("q", floats(2, 3, 8)), ("k", floats(2, 5, 8)), ("v", floats(2, 5, 8)), ("", None),
                                 ("mask", np.int32([2, 5]))], {"num_heads": 2, "mask_filter_value": -500.0}, 0),
    "MultiHeadAttention ends after past": ([("q", floats(2, 1, 8)), ("k", floats(2, 1, 8)), ("v", floats(2, 1, 8)),
                                            ("", None), ("mask", np.int32([5, 3])), ("", None),
                                            ("past_k", floats(2, 2, 4, 4)), ("past_v", floats(2, 2, 4, 4))],
                                           {"num_heads": 2}, 0),
    "RotaryEmbedding": ([("x", floats(2, 5, 16)), ("ids", IDS.astype(np.int64)), ("C", floats(20, 4)),
                         ("S", floats(20, 4))], {"num_heads": 2}, 0),
    "RotaryEmbedding part": ([("x", floats(2, 2, 5, 16)), ("ids", IDS.astype(np.int64)), ("C", floats(20, 4)),
                              ("S", floats(20, 4))],
                             {"interleaved": 1, "num_heads": 2, "rotary_embedding_dim": 8}, 0),
    "QAttention": ([("x", u8(2, 5, 8)), ("W", s8(8, 24)), ("D", floats(24)), ("XS", S(0.02)), ("WS", S(0.01)),
                    ("mask", MASK), ("XZ", Z(120)), ("WZ", np.int8(0))], {"num_heads": 2}, 0),
    "QAttention past": ([("x", u8(2, 2, 8)), ("W", s8(8, 24)), ("D", floats(24)), ("XS", S(0.02)), ("WS", S(0.01)),
                         ("mask", np.array([4, 5], np.int32)), ("XZ", Z(120)), ("WZ", np.int8(0)),
                         ("past", floats(2, 2, 2, 3, 4))], {"num_heads": 2, "unidirectional": 1}, 0),
}
OUTPUTS = {"EmbedLayerNormalization": 2, "MultiHeadAttention past": 3, "MultiHeadAttention ends after past": 3,
           "Attention past": 2, "QAttention past": 2, **{name: 2 for name in CASES if name.startswith("QEmbed")}}


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_operator(name, open_shapes):
    inputs, attrs, steps = CASES[name]
    m = node_model(name.split()[0], inputs, attrs, OUTPUTS.get(name, 1), open_shapes=open_shapes)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want, tolerance=2e-4 if want[0].dtype == S else 2e-3, steps=steps, rare=0.1)


@pytest.mark.parametrize("name", ["Attention ends", "Attention ends and starts", "MultiHeadAttention ends"])
def test_masks_of_ends_have_kernels(name):
    inputs, attrs, _ = CASES[name]
    model = gq.compile(gq.load_onnx(node_model(name.split()[0], inputs, attrs, 1)), strict=True)
    assert "reference" not in model.explain()


@pytest.mark.parametrize("values,attrs,message", [
    ({"mask": MASK.astype(np.int64)}, {}, r"a mask must be s32\[batch,length\], got s64\[2,5\]"),
    ({"mask": MASK[:, None, None]}, {}, "a mask must be"),
    ({}, {"do_rotary": 1}, "attribute 'do_rotary' is not supported"),
    ({}, {"past_present_share_buffer": 1}, "attribute 'past_present_share_buffer' is not supported"),
    ({"W": floats(7, 24)}, {}, "matmul"),
    ({"W": floats(8, 1), "D": floats(1)}, {}, "input 1 must have as many columns"),
    ({"mask": np.ones((2, 6), np.int32)}, {}, r"a mask must be \[2\], \[4\], \[2,5\], \[2,1\] or \[2,\?,5\]"),
], ids=range(7))
def test_malformed_attention(values, attrs, message):
    inputs, given, _ = CASES["Attention"]
    m = node_model("Attention", [(n, values.get(n, x)) for n, x in inputs], {**given, **attrs})
    with pytest.raises(GraphError, match=f"Attention 'o0': .*{message}"):
        gq.load_onnx(m)


def test_causal_attention_with_past_by_formula():
    x, w, past = floats(1, 2, 8), floats(8, 24), floats(2, 1, 2, 3, 4)
    inputs = [("x", x), ("W", w), ("", None), ("", None), ("past", past)]
    q, k, v = ((x @ w).reshape(1, 2, 3, 2, 4)[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    weights = np.exp(q @ k.swapaxes(2, 3) / 2) * np.tri(2, 5, 3)
    y = weights / weights.sum(axis=-1, keepdims=True) @ v
    want = [y.transpose(0, 2, 1, 3).reshape(1, 2, 8).astype(S), np.stack([k, v])]
    m = node_model("Attention", inputs, {"num_heads": 2, "unidirectional": 1}, 2)
    for got in by_graphq(m, inputs):
        assert_near(got, want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("scales", [(0.02, 0.01, 0.02), (0.02, 0.005, 0.01), (0.0173, 0.0219, 0.031)])
def test_sums_and_products_of_commensurate_scales_fall_as_onnx_runtime_has_them(op, dtype, scales):
    low = np.iinfo(dtype).min
    a, b = (rng.integers(low, low + 256, (60, 200)).astype(dtype) for _ in range(2))
    zps = [dtype(low + k) for k in (121, 90, 33)]
    names = zip(("AS", "AZ", "BS", "BZ", "CS", "CZ"), [x for s, z in zip(scales, zps, strict=True) for x in (S(s), z)],
                strict=True)
    constants = list(names)
    inputs = [("a", a), *constants[:2], ("b", b), *constants[2:]]
    m = node_model(op, inputs)
    want, = by_onnx_runtime(m, inputs)
    g = gq.load_onnx(m)
    for got in (gq.reference(g, a=a, b=b), gq.compile(g, strict=True)(a=a, b=b)):
        assert (got != want).mean() < 1e-3  # ONNX Runtime's sums are fused, ours are not


@pytest.mark.parametrize("name", ["MultiHeadAttention", "QAttention"])
def test_a_node_that_names_no_result(name):
    inputs, attrs, _ = CASES[name]
    m = node_model(name, inputs, attrs)
    unnamed = m.graph.node.add()
    unnamed.CopyFrom(m.graph.node[0])
    unnamed.output[:] = [""]
    assert len(gq.load_onnx(m).outputs) == 1
