"""Weights of 4 and 8 bits come to the forms that kernels take: what moves, what is padded, and what stays."""
import ml_dtypes
import numpy as np
import pytest

import graphq as gq
from graphq.passes.float_products import (
    CastDequantizedWeights,
    GatherWeights,
    MoveWeights,
    PadWeights,
    reshaped_groups,
)
from graphq.testing import check_same_numbers

rng = np.random.default_rng(3)


def weights(g, shape, scales, *, zps=True, **attrs):
    """A dynamic_dequantize of constants of 4 bits, with scales of the given shape."""
    w = g.constant(rng.integers(0, 16, shape).astype(ml_dtypes.uint4))
    s = g.constant(rng.uniform(0.1, 1, scales).astype(np.float32))
    z = [g.constant(rng.integers(0, 16, scales).astype(ml_dtypes.uint4))] if zps else []
    return g.dynamic_dequantize(w, s, *z, **attrs)


def moved(build):
    """The node of the result after MoveWeights, which keeps the numbers; None if nothing moves."""
    g = gq.Graph()
    g.output(build(g))
    before = g.copy()
    if not MoveWeights()(g):
        return None
    check_same_numbers(before, g)
    return g.outputs[0].node


GROUPS = dict(qtype="per_group", group_shape=[1, 4])


@pytest.mark.parametrize("zps", [True, False])
@pytest.mark.parametrize("move, groups", [
    (lambda g, w: g.static_transpose(w, order=[1, 0]), (4, 1)),
    (lambda g, w: g.static_reshape(w, shape=[3, 2, 4]), (1, 1, 4)),
    (lambda g, w: g.static_reshape(w, shape=[3, 2, 2, 2]), (1, 1, 2, 2)),
    (lambda g, w: g.static_reshape(w, shape=[24]), (4,)),
    (lambda g, w: g.static_reshape(w, shape=[1, 6, 4]), (1, 1, 4)),
    (lambda g, w: g.static_reshape(w, shape=[12, 2]), (2, 2)),
    (lambda g, w: g.static_reshape(w, shape=[2, 12]), (1, 4)),
    (lambda g, w: g.static_reshape(w, shape=[4, 6]), None)])
def test_groups(move, groups, zps):
    node = moved(lambda g: move(g, weights(g, (3, 8), (3, 2), zps=zps, **GROUPS)))
    assert groups is None and node is None or node.attrs["group_shape"] == groups


@pytest.mark.parametrize("attrs, scales, groups", [
    (dict(qtype="per_channel", axis=0), (6,), (1, 4)), (dict(qtype="per_channel", axis=-1), (4,), None),
    ({}, (1,), (3, 8)), ({}, (), (3, 8))])
def test_channels_and_tensors(attrs, scales, groups):
    node = moved(lambda g: g.static_reshape(weights(g, (6, 4), scales, **attrs), shape=[3, 8]))
    assert groups is None and node is None or node.attrs["group_shape"] == groups


def test_scales_that_are_attributes():
    def build(g):
        w = g.constant(np.arange(24, dtype=np.int8).reshape(6, 4))
        w = g.dequantize(w, qtype="per_channel", axis=0, scales=[1, 2, 3, 4, 5, 6], zps=[0, 1, 2] * 2)
        return g.static_reshape(w, shape=[3, 8])

    assert moved(build).attrs["group_shape"] == (1, 4)


def test_the_dtype_stays():
    def build(g):
        w = g.dynamic_dequantize(g.constant(np.ones((2, 4), np.int8)), g.constant(np.ones((2, 2), np.float16)),
                                 qtype="per_group", group_shape=[1, 2], dtype="f32")
        return g.static_transpose(w, order=[1, 0])

    assert moved(build).outputs[0].dtype == "f32"


def test_what_a_call_gives_stays():
    g = gq.Graph()
    x = g.dynamic_dequantize(g.input("x", shape=(3, 8), dtype="s8"), g.constant(np.ones((3, 2), np.float32)), **GROUPS)
    g.output(g.static_transpose(x, order=[1, 0]))
    assert MoveWeights()(g) == 0
    g = gq.Graph()
    scales = g.input("s", shape=(3, 2), dtype="f32")
    w = g.constant(np.ones((3, 8), np.int8))
    g.output(g.static_transpose(g.dynamic_dequantize(w, scales, **GROUPS), order=[1, 0]))
    count, (refusal,) = MoveWeights().apply(g, parts=False)
    assert count == 0 and "not constant" in refusal.reason


def in_groups(g):
    """Weights of a transposed convolution in two groups, with a scale for each channel of each group."""
    return g.dequantize(g.constant(np.ones((6, 4), np.int8)), qtype="per_channel", axis=1, group_axis=0,
                        scales=[1, 2, 3, 4, 5, 6, 7, 8])


@pytest.mark.parametrize("rewrite, build", [
    (MoveWeights(), lambda g: g.static_reshape(blocks(g, (3, 8), 1, 4), shape=[24])),
    (MoveWeights(), lambda g: g.static_transpose(g.dequantize_linear(
        g.constant(np.ones((3, 8), np.int8)), g.constant(np.ones(8, np.float32)), axis=1), order=[1, 0])),
    (CastDequantizedWeights(), lambda g: g.type_cast(g.dynamic_dequantize(
        g.constant(np.ones((3, 8), np.int8)), g.input("s", shape=(3, 2), dtype="f32"), **GROUPS), dtype="f16")),
    (GatherWeights(), lambda g: g.gather(g.dynamic_dequantize(
        g.constant(np.ones((3, 8), np.int8)), g.input("s", shape=(3, 2), dtype="f32"), **GROUPS),
        g.input("i", shape=(2,), dtype="s64"))),
    (GatherWeights(), lambda g: g.gather(weights(g, (3, 8), (3, 2), **GROUPS), g.input("i", shape=None, dtype="s64"))),
    (MoveWeights(), lambda g: g.static_transpose(in_groups(g), order=[1, 0])),
    (CastDequantizedWeights(), lambda g: g.type_cast(in_groups(g), dtype="f16")),
    (GatherWeights(), lambda g: g.gather(in_groups(g), g.input("i", shape=(2,), dtype="s64"), axis=1))])
def test_what_stays(rewrite, build):
    """Blocks of dequantize_linear are not reshaped, scales for each index are not groups."""
    g = gq.Graph()
    g.output(build(g))
    assert rewrite(g) == 0


@pytest.mark.parametrize("scales, attrs, axis, groups", [
    ((6, 2), dict(qtype="per_group", group_shape=[1, 4]), 0, (1, 1, 4)),
    ((3, 8), dict(qtype="per_group", group_shape=[2, 1]), -1, (2, 1, 1)),
    ((6,), dict(qtype="per_channel", axis=-2), 0, (1, 1, 8)),
    ((6, 2), dict(qtype="per_group", group_shape=[1, 4]), 1, None), ((1,), {}, 0, None)])
def test_picked_rows_alone_are_dequantized(scales, attrs, axis, groups):
    g = gq.Graph()
    ids = g.input("ids", shape=(2, None), dtype="s64")
    g.output(g.gather(weights(g, (6, 8), scales, **attrs), ids, axis=axis))
    before = g.copy()
    assert GatherWeights()(g) == (groups is not None)
    feeds = {"ids": np.array([[0, -1, 5], [2, 2, -6]])}
    np.testing.assert_array_equal(gq.reference(g, feeds), gq.reference(before, feeds))
    if groups is not None:
        assert g.outputs[0].node.attrs["group_shape"] == groups
        model = gq.compile(before, strict=True, threads=1)
        np.testing.assert_array_equal(model(feeds), gq.reference(before, feeds))
        assert not any(n.output.dtype == "f32" and n.output.shape == (6, 8) for n in model.graph.nodes)


def blocks(g, shape, axis, size, dtype=ml_dtypes.uint4):
    """A dequantize_linear of constants whose last block along `axis` may be smaller."""
    scales = tuple(-(-d // size) if k == axis else d for k, d in enumerate(shape))
    numbers = (rng.integers(0, 8, shape).astype(dtype), rng.uniform(0.1, 1, scales).astype(np.float32),
               rng.integers(0, 8, scales).astype(dtype))
    return g.dequantize_linear(*map(g.constant, numbers), axis=axis, block_size=size)


def test_blocks_that_do_not_divide_are_transposed():
    node = moved(lambda g: g.static_transpose(blocks(g, (3, 7), 1, 4), order=[1, 0]))
    assert (node.op.name, node.attrs["axis"]) == ("dequantize_linear", 0)
    assert moved(lambda g: g.static_reshape(blocks(g, (3, 7), 1, 4), shape=[21])) is None


def padded(w, *, dtype="f32", count=1, bias=False, **matmul):
    """The operands of the product with weights `w(g)` after PadWeights, which keeps the numbers."""
    g = gq.Graph()
    weights = w(g)
    k, n = weights.shape[::-1 if matmul.get("transpose_b") else 1]
    x = g.input("x", shape=(2, 3, k), dtype=dtype)
    g.output(g.matmul(x, weights, *([g.constant(np.ones(n, np.float32))] if bias else []), **matmul))
    before = g.copy()
    assert PadWeights()(g) == count
    check_same_numbers(before, g, rtol=PadWeights.tolerance)  # NumPy's sums of 13 and of 16 products differ in order
    return [v.node for v in g.outputs[0].node.operands]


@pytest.mark.parametrize("shape, axis, matmul", [
    ((40, 3), 0, {}), ((3, 40), 1, dict(transpose_b=True, bias=True)), ((5, 3), 0, {})])
def test_a_last_block_that_is_shorter_is_padded(shape, axis, matmul):
    x, w, *_ = padded(lambda g: blocks(g, shape, axis, 16, np.int8), **matmul)
    k = -(-max(shape) // 8) * 8 if max(shape) < 16 else 48
    assert x.op.name == "pad" and x.output.shape == (2, 3, k)
    assert w.op.name == "dynamic_dequantize" and w.output.shape[axis] == k


@pytest.mark.parametrize("build", [
    lambda g: g.dequantize(g.constant(np.ones((13, 3), np.int8)), qtype="per_channel", scales=[1, 2, 3], zps=[3, 4, 5]),
    lambda g: g.dequantize(g.constant(np.ones((13, 3), np.uint8)), scales=[0.5]),
    lambda g: weights(g, (13, 3), (3,), qtype="per_channel", axis=-1), lambda g: weights(g, (13, 3), (1,)),
    lambda g: weights(g, (13, 3), (1, 3), qtype="per_group", group_shape=[13, 1])])
def test_sums_that_are_no_multiple_of_eight_are_padded(build):
    x, w = padded(build)
    assert x.output.shape == (2, 3, 16) and w.attrs["group_shape"][0] == 16


@pytest.mark.parametrize("build, dtype", [
    (lambda g: weights(g, (16, 3), (3,), qtype="per_channel"), "f32"),
    (lambda g: weights(g, (12, 3), (3, 3), qtype="per_group", group_shape=[4, 1]), "f32"),
    (lambda g: blocks(g, (13, 5), 1, 2), "f32"), (lambda g: blocks(g, (13, 3), 0, 4), "f32")])
def test_what_needs_or_allows_no_padding(build, dtype):
    padded(build, dtype=dtype, count=0)


@pytest.mark.parametrize("x, w, matmul, count", [
    (lambda g: g.relu(g.input("x", shape=(2, 13), dtype="f32")), lambda g: weights(g, (13, 3), (1,)), {}, 1),
    (lambda g: g.dequantize(g.input("x", shape=(2, 13), dtype="u8"), scales=[0.5]),
     lambda g: weights(g, (13, 3), (1,)), {}, 0),
    (lambda g: g.input("x", shape=(13, 2), dtype="f32"), lambda g: weights(g, (13, 3), (1,)),
     {"transpose_a": True}, 0),
    (lambda g: g.input("x", shape=None, dtype="f32"), lambda g: weights(g, (13, 3), (1,)), {}, 0),
    (lambda g: g.input("x", shape=(2, 13), dtype="f32"), lambda g: weights(g, (2, 13, 3), (1,)), {}, 0),
    (lambda g: g.input("x", shape=(2, 13), dtype="f32"), lambda g: weights(g, (13, 0), (1,)), {}, 0),
    (lambda g: g.input("x", shape=(2, 13), dtype="f32"),
     lambda g: g.dequantize_linear(g.constant(np.ones((13, 3), np.uint16)), g.constant(np.float32(1))), {}, 0),
    (lambda g: g.input("x", shape=(2, 13), dtype="f32"),
     lambda g: g.dequantize_linear(g.constant(np.ones((13, 3), np.int8)), g.constant(np.float32([1, 2, 3])), axis=1),
     {}, 0),
    (lambda g: g.input("x", shape=(2, 13), dtype="f32"), lambda g: g.dynamic_dequantize(
        g.constant(np.ones((13, 3), np.int8)), g.input("s", shape=(3,), dtype="f32"), qtype="per_channel"), {}, 0)],
    ids=["computed", "dequantized", "transposed", "rank", "batch", "empty", "u16", "channels", "run_time"])
def test_products_that_are_padded(x, w, matmul, count):
    g = gq.Graph()
    g.output(g.matmul(x(g), w(g), **matmul))
    assert PadWeights()(g) == count


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("build, groups", [
    (lambda g: weights(g, (6, 4), (6, 2), qtype="per_group", group_shape=[1, 2]), (1, 2)),
    (lambda g: weights(g, (6, 4), (4,), qtype="per_channel", axis=-1), (6, 1)),
    (lambda g: g.dequantize(g.constant(np.arange(24, dtype=np.int8).reshape(6, 4)), scales=[0.3], zps=[3]), (6, 4))])
def test_a_cast_joins_the_dequantize(build, groups, dtype):
    g = gq.Graph()
    g.output(g.type_cast(build(g), dtype=dtype))
    before = g.copy()
    assert CastDequantizedWeights()(g) == 1
    check_same_numbers(before, g)
    node = g.outputs[0].node
    assert (node.op.name, node.output.dtype, node.attrs["group_shape"]) == ("dynamic_dequantize", dtype, groups)


def test_a_cast_joins_blocks_that_do_not_divide():
    g = gq.Graph()
    g.output(g.type_cast(blocks(g, (7, 3), 0, 4), dtype="f16"))
    before = g.copy()
    assert CastDequantizedWeights()(g) == 1
    check_same_numbers(before, g)
    assert g.outputs[0].node.op.name == "dequantize_linear"


@pytest.mark.parametrize("dtype, wide", [("f16", "f32"), ("bf16", "f32"), ("f32", "f16")])
def test_weights_that_are_cast_are_padded(dtype, wide):
    _, cast = padded(lambda g: g.type_cast(g.dequantize_linear(
        g.constant(np.ones((13, 3), np.int8)), g.constant(np.full((2, 3), 0.3, gq.dtypes.as_dtype(dtype).numpy)),
        axis=0, block_size=8, dtype=dtype), dtype=wide), dtype=wide)
    assert cast.op.name == "type_cast" and cast.operand(0).shape == (16, 3) and cast.operand(0).dtype == dtype


@pytest.mark.parametrize("build", [
    lambda g: g.type_cast(g.dequantize(g.input("q", shape=(2, 3), dtype="u8"), scales=[0.1]), dtype="f16"),
    lambda g: g.type_cast(g.dynamic_dequantize(g.constant(np.ones(3, np.int8)), g.constant(np.ones(1, np.float16))),
                          dtype="f32")])
def test_casts_that_stay(build):
    g = gq.Graph()
    g.output(build(g))
    assert CastDequantizedWeights()(g) == 0


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_weights_of_narrower_floats_are_padded(dtype):
    scales = np.full((2, 3), 0.5, gq.dtypes.as_dtype(dtype).numpy)
    x, w = padded(lambda g: g.dequantize_linear(g.constant(np.ones((13, 3), np.int8)), g.constant(scales), axis=0,
                                                block_size=8, dtype=dtype), dtype=dtype)
    assert x.output.shape == (2, 3, 16) and w.output.dtype == dtype and w.attrs["group_shape"] == (8, 1)


@pytest.mark.parametrize("scale, zp, dtype", [(np.inf, [], "f32"), (3e38, [-2], "f32"), (1e5, [1], "f16")])
def test_weights_that_are_not_finite(scale, zp, dtype):
    """Of the last two, scales are finite, but their products with zero points are not."""
    g = gq.Graph()
    numbers = [g.constant(np.float32([1, scale])), *(g.constant(np.int8([0, z])) for z in zp)]
    w = g.dynamic_dequantize(g.constant(np.ones((13, 2), np.int8)), *numbers, qtype="per_channel", dtype=dtype)
    g.output(g.matmul(g.input("x", shape=(2, 13), dtype=dtype), w))
    count, (refusal,) = PadWeights().apply(g, parts=False)
    assert count == 0 and "infinite weights" in refusal.reason


@pytest.mark.parametrize("dims, groups, wanted, result", [
    ((6, 4), (1, 4), (3, 8), (1, 4)), ((6, 4), (6, 1), (24,), None), ((6, 4), (2, 4), (3, 8), (1, 8)),
    ((1, 6), (1, 2), (6, 1), (2, 1)), ((4, 6), (2, 6), (2, 12), (1, 12)), ((4, 6), (1, 1), (3, 8), (1, 1)),
    ((6, 5), (3, 5), (2, 15), (1, 15)), ((6, 5), (3, 5), (4, 5, 3), None)])
def test_reshaped_groups(dims, groups, wanted, result):
    assert reshaped_groups(dims, groups, wanted) == result
