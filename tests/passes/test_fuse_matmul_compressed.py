"""FuseMatmulCompressed: what becomes a partition, and why other matmuls with compressed weights do not."""
import ml_dtypes
import numpy as np
import pytest

import graphq as gq
from graphq.passes import run_passes
from graphq.passes.fuse import Fuse
from graphq.testing import check_same_numbers

INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)
ONES = np.ones((2, 3), np.float32)


def graph(w=None, scales=ONES, zps=None, *, x="u8", shape=(4, 8), source=None, options=None, weights=None, **matmul):
    """matmul(dequantize(x), dynamic_dequantize(w, scales, zps))"""
    g = gq.Graph()
    a = g.input("x", shape=shape, dtype=x)
    a = g.dequantize(a, **(source or dict(scales=[0.5], zps=[3]))) if x in ("u8", "s8") else a
    w = np.arange(24).reshape(8, 3).astype(UINT4) if w is None else w
    parameters = [g.constant(p) for p in (scales, zps) if p is not None]
    options = dict(qtype="per_group", group_shape=[4, 1]) if options is None else options
    w = g.dynamic_dequantize(g.constant(w) if weights is None else weights(g), *parameters, **options)
    g.output(g.relu(g.matmul(a, w, **matmul)))
    return g


def refusal(g):
    """The deepest reason."""
    count, refusals = Fuse("matmul_compressed").apply(g)
    assert count == 0
    return max(refusals, key=lambda r: r.depth).reason


def test_one_partition_of_the_same_numbers():
    g = graph(zps=np.array([[1, 2, 3], [4, 5, 6]], UINT4))
    before = g.copy()
    assert Fuse("matmul_compressed").apply(g) == (1, [])
    (node,) = [n for n in g.nodes if n.op.name == "partition"]
    assert node.attrs["anchor"] == "matmul_compressed"
    assert [n.op.name for n in node.attrs["body"].nodes] == ["dequantize", "dynamic_dequantize", "matmul", "relu"]
    check_same_numbers(before, g)


def test_eight_bits_in_groups():
    g = graph(w=np.arange(-12, 12).reshape(8, 3).astype(np.int8))
    before = g.copy()
    assert Fuse("matmul_compressed").apply(g) == (1, [])
    check_same_numbers(before, g)


def test_floats_meet_compressed_weights():
    g = graph(x="f32", w=np.arange(24).reshape(8, 3).astype(UINT4), scales=ONES[:1], zps=np.full((1, 3), 200, np.int32),
              options=dict(qtype="per_group", group_shape=[8, 1]))
    before = g.copy()
    assert Fuse("matmul_compressed").apply(g) == (1, [])
    (node,) = [n for n in g.nodes if n.op.name == "partition"]
    assert [n.op.name for n in node.attrs["body"].nodes] == ["dynamic_dequantize", "matmul", "relu"]
    check_same_numbers(before, g)


def test_a_row_scale_that_is_computed_stays_outside():
    """A multiply of scales before a dequantize is none of the epilogue's, in this family as in that of matmuls."""
    for family, scales, groups in (("matmul_compressed", (4, 2), dict(qtype="per_group", group_shape=[1, 4])),
                                   ("matmul", (1,), {})):
        g = gq.Graph()
        s = g.multiply(g.input("s", shape=scales, dtype="f32"), np.float32(0.5))
        a = g.dynamic_dequantize(g.input("x", shape=(4, 8), dtype="s8"), s, **groups)
        w = g.constant(np.ones((8, 3), np.int8))
        g.output(g.relu(g.matmul(a, g.dynamic_dequantize(w, g.constant(ONES), qtype="per_group", group_shape=[4, 1])
                                 if groups else g.dequantize(w, scales=[0.25]))))
        before = g.copy()
        assert Fuse(family).apply(g)[0] == 1
        assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["multiply", "partition"]
        check_same_numbers(before, g)


@pytest.mark.parametrize(("change", "reason"), [
    (dict(weights=lambda g: g.input("w", shape=(8, 3), dtype="u4")), "packed at compile time"),
    (dict(weights=lambda g: g.input("w", shape=(8, 3), dtype="f8_e4m3fnuz")), "the weights are f8_e4m3fnuz: kernels"),
    (dict(x="s8", source=dict(qtype="per_channel", axis=0, scales=[0.5] * 4)), "has one scale, or scales of rows and"),
    (dict(shape=(8, 4), transpose_a=True), "is dequantized to f32, and not transposed"),
    (dict(x="f32", shape=(8, 4), transpose_a=True), "with compressed weights the input is not transposed"),
    (dict(x="bf16", options=dict(qtype="per_group", group_shape=[4, 1], dtype="bf16")), "groups of 4 rows are no"),
    (dict(x="bf16", scales=np.float32([2.0**-127]), options=dict(dtype="bf16")), "round finite and normal numbers"),
    (dict(x="f16", options=dict(qtype="per_group", group_shape=[4, 1], dtype="f16")), "the input is f16"),
    (dict(w=np.ones((2, 8, 3), UINT4), shape=(2, 4, 8), scales=np.ones(1, np.float32), options={}), "are one matrix"),
    (dict(scales=np.ones(8, np.float32), options=dict(qtype="per_channel", axis=0)), "not along the columns"),
    (dict(zps=np.full((2, 3), 1 << 22, np.int32)), "zero points are beyond 22 bits"),
    (dict(x="f32"), "groups of 4 rows are not a multiple of 8"),
    (dict(x="f32", zps=np.full((1, 3), -1 << 22, np.int32), scales=ONES[:1],
          options=dict(qtype="per_group", group_shape=[8, 1])), "zero points are beyond 22 bits"),
])
def test_refusals(change, reason):
    assert reason in refusal(graph(**change))


def test_sums_beyond_s32_are_refused():
    k = 1 << 19
    w, zps = np.full((k, 3), 15, UINT4), np.full(1, -48, np.int32)
    assert "beyond s32" in refusal(graph(w, np.ones(1, np.float32), zps, shape=(1, k), options={}))


def test_groups_of_rows_and_weights_must_agree():
    g = gq.Graph()
    a = g.dynamic_dequantize(g.input("x", shape=(4, 8), dtype="s8"), g.input("s", shape=(4, 2), dtype="f32"),
                             qtype="per_group", group_shape=[1, 4])
    w = g.constant(np.ones((8, 3), np.int8))
    g.output(g.matmul(a, g.dynamic_dequantize(w, g.constant(np.ones((4, 3), np.float32)), qtype="per_group",
                                              group_shape=[2, 1])))
    assert refusal(g) == "the input has scales of 2 groups, the weights of 4"


def test_a_source_with_zero_points_is_refused():
    """Even of one group a row, which integers take without them."""
    for zps in (True, False):
        g = gq.Graph()
        parameters = [g.input(name, shape=(4, 1), dtype=dtype) for name, dtype in (("s", "f32"), ("z", "s8"))]
        a = g.dynamic_dequantize(g.input("x", shape=(4, 8), dtype="s8"), *parameters[:1 + zps], qtype="per_group",
                                 group_shape=[1, 8])
        w = g.dynamic_dequantize(g.constant(np.ones((8, 3), UINT4)), g.constant(ONES[:1]), qtype="per_group",
                                 group_shape=[8, 1])
        g.output(g.matmul(a, w))
        if zps:
            assert "needs scales per group, and no zero points" in refusal(g)
        else:
            assert Fuse("matmul_compressed").apply(g) == (1, [])


@pytest.mark.parametrize(("rows", "zps"), [(2, False), (1, True)])
def test_a_source_that_integers_do_not_take_is_multiplied_as_f32(rows, zps):
    """Its groups are of several rows, or it has zero points: what dequantizes it stays outside."""
    g = gq.Graph()
    dims = (4 // rows, 2)
    parameters = [g.input("s", shape=dims, dtype="f32"), *([g.input("z", shape=dims, dtype="s8")] if zps else [])]
    a = g.input("x", shape=(4, 8), dtype="s8")
    a = g.dynamic_dequantize(a, *parameters, qtype="per_group", group_shape=[rows, 4])
    w = g.constant(np.ones((8, 3), UINT4))
    g.output(g.matmul(a, g.dynamic_dequantize(w, g.constant(ONES[:1]), qtype="per_group", group_shape=[8, 1])))
    before = g.copy()
    count, refusals = Fuse("matmul_compressed").apply(g)
    assert count == 1
    assert all("in groups of rows, and no zero points" in r.reason for r in refusals)
    (node,) = [n for n in g.nodes if n.op.name == "partition"]
    assert [n.op.name for n in node.attrs["body"].nodes] == ["dynamic_dequantize", "matmul"]
    check_same_numbers(before, g)


def test_what_does_not_fuse_folds():
    g = graph(w=np.ones((8, 3), INT4), shape=(8, 4), transpose_a=True)
    run_passes(g)
    assert "dynamic_dequantize" not in [n.op.name for n in g.nodes]
