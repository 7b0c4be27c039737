"""Which graphs keep the rows of a batch apart."""
import numpy as np
import pytest

import graphq as gq
from graphq.row_wise import why_rows_mix


def mixes(build, *shape, dtype="f32"):
    g = gq.Graph()
    outs = build(g, g.input("x", dtype=dtype, shape=(None, *shape)))
    for v in outs if isinstance(outs, tuple) else (outs,):
        g.output(v)
    return why_rows_mix(g)


def weights(*shape):
    return np.ones(shape, np.float32)


APART = {
    "elementwise": (lambda g, x: g.relu(x * 2 + weights(5)), (4, 5)),
    "a constant row of each": (lambda g, x: g.add(x, weights(1, 5)), (5,)),
    "matmul": (lambda g, x: g.matmul(x, weights(5, 3)), (5,)),
    "matmul of matrices": (lambda g, x: g.matmul(x, x, transpose_b=True), (4, 5)),
    "weights of all rows": (lambda g, x: g.matmul(g.constant(weights(2, 4)), x), (4, 5)),
    "bias": (lambda g, x: g.matmul(x, g.constant(weights(5, 3)), g.constant(weights(3))), (5,)),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), (5,)),
    "layer norm": (lambda g, x: g.layer_norm(x, use_affine=False, keep_stats=False), (4, 5)),
    "reduction": (lambda g, x: g.reduce_mean(x, axes=[1, -1]), (4, 5)),
    "images": (lambda g, x: g.max_pool(x, strides=1, pads_begin=0, pads_end=0, kernel=2), (6, 6, 3)),
    "heads and back": (lambda g, x: g.static_reshape(g.static_transpose(
        g.static_reshape(x, shape=[0, 4, 2, 3], special_zero=True), order=[0, 2, 1, 3]), shape=[-1, 24]), (4, 6)),
    "tokens merged and split": (lambda g, x: g.static_reshape(
        g.relu(g.static_reshape(x, shape=[-1, 6])), shape=[-1, 4, 6]), (4, 6)),
    "another axis first": (lambda g, x: g.static_transpose(
        g.softmax(g.static_transpose(x, order=[1, 0]), axis=0), order=[1, 0]), (5,)),
    "embedding": (lambda g, x: g.gather(g.constant(weights(9, 3)), x, axis=0), (5,), "s64"),
    "one token of each": (lambda g, x: g.gather(x, g.constant(np.array(0)), axis=1), (4, 5)),
    "joined": (lambda g, x: g.concat(x, x, axis=1), (5,)),
    "largest": (lambda g, x: g.arg_max(x, axis=1), (5,)),
}


@pytest.mark.parametrize("name", APART)
def test_rows_that_stay_apart(name):
    build, shape, *dtype = APART[name]
    assert mixes(build, *shape, dtype=dtype[0] if dtype else "f32") is None


def dynamic(g, x):
    scale, zero = g.dynamic_range(x)
    return g.dynamic_dequantize(g.dynamic_quantize(x, scale, zero, dtype="u8"), scale, zero)


MIXED = {
    "a scale from all rows": (dynamic, (5,), "dynamic_range"),
    "softmax over rows": (lambda g, x: g.softmax(x, axis=0), (5,), "softmax"),
    "sum over rows": (lambda g, x: g.add(x, g.reduce_sum(x, axes=[0], keep_dims=True)), (5,), "reduce_sum"),
    "sum over all": (lambda g, x: g.add(x, g.reduce_sum(x, axes=[0, 1])), (5,), "reduce_sum"),
    "sum over all tokens": (lambda g, x: g.softmax(g.static_reshape(x, shape=[-1, 5]), axis=0), (4, 5), "softmax"),
    "Gram matrix": (lambda g, x: g.matmul(x, x, transpose_b=True), (5,), "matmul"),
    "product over rows": (lambda g, x: g.matmul(x, x, transpose_a=True), (5,), "matmul"),
    "running sum": (lambda g, x: g.cum_sum(x, axis=0), (5,), "cum_sum"),
    "the first row": (lambda g, x: g.add(x, g.slice(x, axes=[0], starts=[0], ends=[1], steps=[1])), (5,), "slice"),
    "a chosen row": (lambda g, x: g.gather(x, g.constant(np.array([0])), axis=0), (5,), "gather"),
    "rows turned": (lambda g, x: g.slice(x, axes=[0], starts=[-1], ends=[-99], steps=[-1]), (5,), "slice"),
    "rows added": (lambda g, x: g.concat(x, x, axis=0), (5,), "concat"),
    "padding": (lambda g, x: g.pad(x, pads_begin=[1, 0], pads_end=[0, 0]), (5,), "pad"),
    "rows last": (lambda g, x: g.static_transpose(x, order=[1, 0]), (5,), "axis 0 of output"),
    "nothing of the rows": (lambda g, x: (g.relu(x), g.relu(g.constant(weights(3)))), (5,), "axis 0 of output"),
    "no rule": (lambda g, x: g.scatter_nd(x, g.constant(np.array([[0]])), g.constant(weights(1, 5))), (5,), "scatter"),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_may_mix(name):
    build, shape, said = MIXED[name]
    assert said in mixes(build, *shape)


def test_constants_that_differ_from_row_to_row():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(4, 5))
    g.output(g.add(x, np.arange(20, dtype=np.float32).reshape(4, 5)))
    assert "add" in why_rows_mix(g)
    g = gq.Graph()
    g.output(g.add(g.input("x", dtype="f32", shape=(4, 5)), np.ones((4, 5), np.float32)))
    assert why_rows_mix(g) is None


def test_scales_by_row():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3, 5))
    g.output(g.quantize(x, dtype="u8", qtype="per_channel", axis=0, scales=[1, 2, 3]))
    assert "quantize" in why_rows_mix(g)


def test_a_gather_within_the_row():
    g = gq.Graph()
    x = g.static_reshape(g.input("x", dtype="f32", shape=(4, 5)), shape=[20])
    g.output(g.gather(x, g.constant(np.arange(20).reshape(4, 5)[:, ::-1].copy()), axis=0))
    assert why_rows_mix(g) is None
    g = gq.Graph()
    x = g.static_reshape(g.input("x", dtype="f32", shape=(4, 5)), shape=[20])
    g.output(g.gather(x, g.constant(np.arange(20).reshape(5, 4).T.copy()), axis=0))
    assert "gather" in why_rows_mix(g)


def test_what_no_output_needs_mixes_nothing():
    for rows in (None, 4):
        g = gq.Graph()
        x = g.input("x", dtype="f32", shape=(rows, 5))
        g.reduce_sum(x, axes=[0], keep_dims=True)
        g.output(g.relu(x))
        count = len(g.nodes)
        assert why_rows_mix(g) is None and len(g.nodes) == count


def test_a_constant_without_elements():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    g.output(g.concat(x, g.constant(np.empty((0, 3), np.float32)), axis=0))
    assert "concat" in why_rows_mix(g)


def test_unknown_ranks():
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32")))
    assert "ranks" in why_rows_mix(g)
