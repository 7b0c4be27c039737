"""Whether padding changes results: the proof, the reasons against it, and the bits."""
import re

import numpy as np
import onnx.parser
import pytest
from encoders import encoder

import graphq as gq
from graphq.kernels.numbers import rows
from graphq.kernels.numbers.float_sums import float_sums
from graphq.model.padding import padding_of

LOWEST = np.finfo(np.float32).min
APART = {
    "f32's lowest number": {}, "f32's highest number": {"mask": "highest"}, "where": {"mask": "where"},
    "where, f32's lowest number": {"mask": "where", "hidden": LOWEST},
    "causal": {"mask": "causal"}, "rotary positions": {"positions": "rotary"},
    "relative positions": {"positions": "relative"}, "cls": {"pooling": "cls"}, "masked mean": {"pooling": "mean"},
    "mean as a product": {"pooling": "product"},
    "quantized": {"quantized": "static", "layers": 2},
    "padded queries see nothing": {"mask": "both"},
}
MIXED = {
    "no mask": ({"mask": "none"}, "softmax.*a mask must set"), "-10000": ({"mask": "small"}, "softmax.*below -1e30"),
    "the last position": ({"pooling": "last"}, "gather"),
    "one range": ({"quantized": "dynamic"}, "dynamic_range"),
    "NaN in padded queries": ({"mask": "both", "layers": 2}, "matmul"),
}


@pytest.mark.parametrize("name", APART)
def test_padding_that_changes_nothing(name):
    found = padding_of(encoder(**APART[name]))
    assert (found.mixes, found.zeros) == (None, ("mask",))
    assert found.axes == (() if "pooling" in APART[name] else (("y", 1),))


@pytest.mark.parametrize("name", MIXED)
def test_padding_that_matters(name):
    options, said = MIXED[name]
    found = padding_of(encoder(**options))
    assert re.search(said, found.mixes or "")


def found_for(build, *shapes, dtype="f32"):
    """What is found for a graph of inputs x, y and z with these shapes; None is an open dimension."""
    g = gq.Graph()
    outs = build(g, *(g.input(name, dtype=dtype, shape=shape) for name, shape in zip("xyz", shapes, strict=False)))
    for v in outs if isinstance(outs, tuple) else (outs,):
        g.output(v)
    return padding_of(g)


def lstm(g, x, lengths=None, **attrs):
    gates = g.static_transpose(x, order=[1, 0, 2])
    return g.lstm(gates, g.constant(np.ones((8, 2), np.float32)), None, None, None, lengths, **attrs)


def windows(**attrs):
    return {"strides": [1], "pads_begin": [0], "pads_end": [0]} | attrs


def conv(g, x, weights=(3, 8, 8), **attrs):
    return g.convolution(x, g.constant(np.ones(weights, np.float32)), **windows(pads_begin=[1], pads_end=[1]) | attrs)


def quantized(g, x):
    return g.quantize(x, dtype="u8", scales=[1.0])


def head(g, x):
    return g.slice(x, axes=[1], starts=[0], ends=[4], steps=[1])


def size(g, x):
    """The root of the mean square of each position."""
    return g.sqrt(g.reduce_mean(g.multiply(x, x), axes=[2], keep_dims=True))


def attention(g, x, past=False, causal=True):
    ends, caches = g.constant(np.int32([6])), [g.constant(np.ones((1, 1, 9, 2), np.float32))] * 2 if past else []
    return g.cached_attention(x, ends, ends, None, None, *caches, heads=2, groups=1, scale=1.0, causal=causal)


ROWS = (None, None, 8)
OPERATIONS = {
    "elementwise": (lambda g, x: g.relu(g.add(x, g.constant(np.ones(8, np.float32)))), None),
    "along features": (lambda g, x: g.softmax(g.rms_norm(x, g.constant(np.ones(8, np.float32))), axis=-1), None),
    "matmul": (lambda g, x: g.matmul(x, g.constant(np.ones((8, 3), np.float32))), None),
    "an outer product": (lambda g, x: g.matmul(x, x, transpose_b=True), None),
    "positions first": (lambda g, x: g.static_transpose(x, order=[1, 0, 2]), None),
    "positions merged with features": (lambda g, x: g.static_reshape(x, shape=[0, -1], special_zero=True), "differ"),
    "and split again": (lambda g, x: g.static_reshape(g.relu(g.static_reshape(x, shape=[-1, 8])), shape=[1, -1, 8]),
                        None),
    "the first positions": (lambda g, x: g.slice(x, axes=[1], starts=[0], ends=[4], steps=[1]), None),
    "all but the first": (lambda g, x: g.slice(x, axes=[1], starts=[1], ends=[1 << 31], steps=[1]), None),
    "all but the last": (lambda g, x: g.slice(x, axes=[1], starts=[0], ends=[-1], steps=[1]), None),
    "the last": (lambda g, x: g.slice(x, axes=[1], starts=[-1], ends=[99], steps=[1]), "slice"),
    "turned": (lambda g, x: g.slice(x, axes=[1], starts=[-1], ends=[-99], steps=[-1]), "slice"),
    "a token in front": (lambda g, x: g.concat(g.slice(x, axes=[1], starts=[0], ends=[1], steps=[1]), x, axis=1), None),
    "a token behind": (lambda g, x: g.concat(x, g.slice(x, axes=[1], starts=[0], ends=[1], steps=[1]), axis=1),
                       "concat"),
    "twice": (lambda g, x: g.concat(x, x, axis=1), "concat"),
    "zeros in front": (lambda g, x: g.pad(x, pads_begin=[0, 1, 0], pads_end=[0, 0, 0]), None),
    "zeros behind": (lambda g, x: g.relu(g.pad(x, pads_begin=[0, 0, 0], pads_end=[0, 1, 0])), "pad"),
    "the largest": (lambda g, x: g.reduce_max(x, axes=[1]), "reduce_max"),
    "the largest size": (lambda g, x: g.reduce_max(g.abs(x), axes=[1]), None),
    "the sum": (lambda g, x: g.reduce_sum(x, axes=[1]), None),
    "the sum of other numbers": (lambda g, x: g.reduce_sum(g.exp(x), axes=[1]), "reduce_sum"),
    "the sum over two axes": (lambda g, x: g.reduce_sum(x, axes=[1, 2]), "reduce_sum"),
    "the mean": (lambda g, x: g.reduce_mean(x, axes=[1]), "reduce_mean"),
    "a running sum": (lambda g, x: g.cum_sum(x, axis=1), None),
    "a running sum from the end": (lambda g, x: g.cum_sum(x, axis=1, reverse=True), "cum_sum"),
    "softmax of all positions": (lambda g, x: g.softmax(x, axis=1), "softmax"),
    "a range of zeros and numbers": (lambda g, x: g.dynamic_quantize(x, *g.dynamic_range(x), dtype="u8"), None),
    "a range of other numbers": (lambda g, x: g.dynamic_quantize(g.add(x, 1.0), *g.dynamic_range(g.add(x, 1.0)),
                                                                 dtype="u8"), "dynamic_range"),
    "0 / 0 times zero": (lambda g, x: g.matmul(g.divide(x, x), x, transpose_a=True), "matmul"),
    **{f"{name} of zeros, times zeros": (lambda g, x, f=f: g.reduce_sum(g.multiply(f(g, x), x), axes=[1]), said)
       for name, f, said in (
        ("layer_norm", lambda g, x: g.layer_norm(x, use_affine=False, keep_stats=False), None),
        ("layer_norm without epsilon", lambda g, x: g.layer_norm(
            x, use_affine=False, keep_stats=False, epsilon=1e-60), "reduce_sum"),
        ("rms_norm without epsilon", lambda g, x: g.rms_norm(x, epsilon=0.0), "reduce_sum"),
        ("a root mean square", lambda g, x: g.divide(x, size(g, x)), "reduce_sum"),
        ("a root mean square and a number", lambda g, x: g.divide(x, g.add(size(g, x), 1e-5)), None),
        ("a root mean square of some size", lambda g, x: g.divide(x, g.maximum(size(g, x), 1e-5)), None),
        ("a norm that is clamped", lambda g, x: g.divide(x, g.clamp(size(g, x), min=1e-5, max=9.0)), None),
        ("the reciprocal of a root mean square", lambda g, x: g.multiply(x, g.reciprocal(size(g, x))), "reduce_sum"),
        ("a power of -1", lambda g, x: g.multiply(x, g.pow(size(g, x), beta=-1.0)), "reduce_sum"),
        ("a square by a power", lambda g, x: g.pow(x, beta=2.0), None),
        ("a root by a power", lambda g, x: g.pow(g.subtract(g.exp(x), 2.0), beta=0.5), "reduce_sum"),
        ("a logarithm", lambda g, x: g.log(g.abs(x)), "reduce_sum"),
        ("a logarithm of positive numbers", lambda g, x: g.log(g.add(g.abs(x), 1.0)), None),
        ("a root", lambda g, x: g.sqrt(x), None),
        ("a root of numbers that may be less than 0", lambda g, x: g.sqrt(g.subtract(g.exp(x), 2.0)), "reduce_sum"),
        ("a divisor that is clamped from above", lambda g, x: g.divide(x, g.clamp(g.add(
            g.abs(x), 1.0), min=-1.0, max=0.0)), "reduce_sum"),
        ("a root of numbers", lambda g, x: g.divide(x, g.sqrt(g.add(g.square(x), 1e-5))), None),
        ("exponentials less 1", lambda g, x: g.divide(x, g.subtract(g.exp(x), 1.0)), "reduce_sum"))},
    "states of an lstm": (lambda g, x: lstm(g, x)[0], None),
    "the last state of an lstm": (lambda g, x: lstm(g, x)[1], "lstm"),
    "a reversed lstm": (lambda g, x: lstm(g, x, reverse=True)[0], "lstm"),
    "a convolution of zeros behind the end": (lambda g, x: conv(g, x), None),
    "a convolution of other numbers": (lambda g, x: conv(g, g.exp(x)), "convolution.*must be 0"),
    "windows that end in the row": (lambda g, x: conv(g, g.exp(x), pads_begin=[2], pads_end=[0]), None),
    "channels first": (lambda g, x: conv(g, g.static_transpose(x, order=[0, 2, 1]), data_format="NCX"), None),
    "strides": (lambda g, x: head(g, conv(g, x, strides=[2])), None),
    "strides whose windows move": (lambda g, x: head(g, conv(g, x, strides=[2], auto_pad="same_upper")), "slice|conv"),
    "a convolution in integers": (lambda g, x: quantized(g, conv(g, g.dequantize(quantized(g, x), scales=[1.0]))),
                                  "convolution"),
    "a convolution before a quantize": (lambda g, x: quantized(g, conv(g, x)), None),
    "the largest of windows in the row": (lambda g, x: g.max_pool(x, kernel=[3], **windows()), None),
    "the largest of windows over the end": (lambda g, x: g.max_pool(x, kernel=[3], **windows(pads_end=[2])),
                                            "max_pool"),
    "the largest that is not hidden": (lambda g, x: g.reduce_max(g.select(
        g.equal(x, 0.0), np.float32(LOWEST), x), axes=[1]), None),
    "the largest of a product with the mask": (lambda g, x: g.reduce_max(g.multiply(x, x), axes=[1]),
                                               "reduce_max.*below -1e30"),
    "attention of the tokens before": (lambda g, x: attention(g, x), None),
    "attention of all tokens": (lambda g, x: attention(g, x, causal=False), None),
    "attention after earlier tokens": (lambda g, x: attention(g, x, past=True)[0], "cached_attention"),
    "another operation": (lambda g, x: g.arg_max(x, axis=1), "arg_max"),
    "-inf times 0": (lambda g, x: g.reduce_sum(g.multiply(g.select(g.equal(x, 0.0), np.float32(-np.inf), x), x),
                                               axes=[1]), "reduce_sum"),
    "a product with -inf": (lambda g, x: g.matmul(g.static_transpose(x, order=[0, 2, 1]), g.select(
        g.equal(x, 0.0), np.float32(-np.inf), x)), "matmul"),
    "a quotient by 0": (lambda g, x: g.reduce_sum(g.multiply(g.divide(x, g.reduce_l2(x, axes=[2], keep_dims=True)), x),
                                                  axes=[1]), "reduce_sum"),
    "a logarithm of 0": (lambda g, x: g.reduce_sum(g.multiply(g.log(x), x), axes=[1]), "reduce_sum"),
    "the last 32 positions": (lambda g, x: g.slice(x, axes=[1], starts=[-32], ends=[1 << 31], steps=[1]), "slice"),
    "the first 64 positions": (lambda g, x: g.slice(x, axes=[1], starts=[0], ends=[64], steps=[1]),
                               "the graphs for 11 and 140 positions"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    build, said = OPERATIONS[name]
    mixes = found_for(build, ROWS).mixes
    assert mixes is None if said is None else re.search(said, mixes), mixes


@pytest.mark.parametrize("reverse", [False, True])
def test_an_lstm_of_rows_with_lengths(reverse):
    g = gq.Graph()
    x, lengths = g.input("x", dtype="f32", shape=ROWS), g.input("lengths", dtype="s32", shape=(None,))
    for v in lstm(g, x, lengths, reverse=reverse):
        g.output(v)
    assert padding_of(g) == (None, (), (("out0", 0),))


def test_inputs_that_may_have_anything_behind_the_end():
    """Zeros are needed only where a mask is made of them, or where they are summed."""
    ids, other = (None, None), (None, None)
    found = found_for(lambda g, x, y: g.reduce_max(g.abs(g.multiply(x, y)), axes=[1]), ids, other)
    assert found == (None, ("y",), ())
    found = found_for(lambda g, x, y: (g.relu(x), g.relu(y)), ids, other)
    assert found == (None, (), (("out0", 1), ("out1", 1)))


def test_graphs_without_an_answer():
    assert "axis 1 of no input" in found_for(lambda g, x: g.relu(x), (None, 8)).mixes
    assert "ranks" in found_for(lambda g, x, y: (g.relu(x), g.relu(y)), ROWS, None).mixes
    fixed = found_for(lambda g, x: g.static_reshape(x, shape=[0, 16, 8], special_zero=True), ROWS)
    assert "rejects rows of 11, 19 or 140" in fixed.mixes


def test_attention_of_onnx_with_a_boolean_mask():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 23]>
        net (float[B, S, 8] q, bool[B, S] mask) => (float[B, S, 8] y) {
            ones = Constant<value_ints = [1, 2]>()
            m = Unsqueeze(mask, ones)
            y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, q, q, m)
        }""")
    found = padding_of(gq.load_onnx(model))
    assert (found.mixes, found.zeros, found.axes) == (None, ("mask",), (("y", 1),))


def test_softmax_and_products_of_zeros_behind_the_end():
    """The stated orders, which kernels have at every level, do not depend on hidden scores, nor on zeros."""
    rng = np.random.default_rng(0)
    for n in (*range(1, 20), 31, 32, 33, 64, 70):
        x = rng.normal(size=(3, n)).astype(np.float32)
        v = rng.normal(size=(n, 4)).astype(np.float32)
        p = rows.softmax(x, inf_as_zero=False)
        y = float_sums(p, v)
        for size in (n + 1, 16 * (n // 16 + 1), 270):
            for low in (-np.inf, LOWEST, x.min() - 104):  # docs/numbers.md: powers are 0 below -103.98
                wide = np.pad(x, [(0, 0), (0, size - n)], constant_values=low)
                q = rows.softmax(wide, inf_as_zero=False)
                assert np.array_equal(q[:, :n], p) and not q[:, n:].any()
            tail = rng.normal(size=(size - n, 4)).astype(np.float32)
            assert np.array_equal(float_sums(q, np.concatenate([v, tail])).view(np.int32), y.view(np.int32))


def convolved(g, x, strides, groups):
    w = np.random.default_rng(strides).normal(size=(5, 8 // groups, 8)).astype(np.float32)
    return g.convolution(x, g.constant(w), g.constant(np.full(8, -0.0, np.float32)), groups=groups,
                         **windows(strides=[strides], pads_begin=[2], pads_end=[2]))


ALONG = {
    "convolution": lambda g, x, ends: convolved(g, x, 1, 1),
    "depthwise convolution": lambda g, x, ends: convolved(g, x, 2, 8),
    "largest of windows": lambda g, x, ends: g.max_pool(x, kernel=[1], **windows()),
    "attention": lambda g, x, ends: g.cached_attention(x, ends, ends, heads=2, groups=1, scale=1.0)[0],
    "attention to all": lambda g, x, ends: g.cached_attention(x, ends, ends, heads=2, groups=1, scale=1.0,
                                                              causal=False)[0],
}


@pytest.mark.parametrize("name", ALONG)
def test_zeros_behind_the_end_change_no_bit(name):
    """The last windows of a short row read padding that the operation adds; zeros in its place give the same bits."""
    g, rng = gq.Graph(), np.random.default_rng(3)
    x, ends = g.input("x", dtype="f32", shape=(1, None, 8)), g.input("ends", dtype="s32", shape=(1,))
    g.output(ALONG[name](g, x, ends), name="y")
    model = gq.compile(g, threads=1)
    for n in (1, 4, 15, 70):
        x = rng.normal(size=(1, n, 8)).astype(np.float32) * (rng.random((1, n, 8)) < 0.7)
        y = model.formula(x=x, ends=np.int32([n - 1]))
        for size in (n + 1, 16 * (n // 16 + 1)):
            wide = model.formula(x=np.pad(x, [(0, 0), (0, size - n), (0, 0)]), ends=np.int32([n - 1]))
            assert np.array_equal(wide[:, :y.shape[1]].view(np.int32), y.view(np.int32))


def test_what_is_known_of_rows_and_padding_is_saved(tmp_path, monkeypatch):
    g = gq.Graph()
    g.output(g.softmax(g.input("x", dtype="f32", shape=(None, None, 3)), axis=0), name="y")
    model = gq.compile(g)
    model.save(tmp_path / "m")
    for finder in ("row_wise.why_rows_mix", "padding.padding_of"):
        monkeypatch.setattr(f"graphq.model.{finder}", None)
    again = gq.load_compiled(tmp_path / "m").plans
    assert again.rows_mix == model.rows_mix and "softmax" in again.rows_mix
    assert again.padding == model.plans.padding == (None, (), (("y", 1),))
