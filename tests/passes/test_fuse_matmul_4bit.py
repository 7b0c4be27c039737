"""FuseMatmul4bit: what becomes a partition, and why other matmuls with 4-bit weights do not."""
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
    a = g.dequantize(g.input("x", shape=shape, dtype=x), **(source or dict(scales=[0.5], zps=[3])))
    w = np.arange(24).reshape(8, 3).astype(UINT4) if w is None else w
    parameters = [g.constant(p) for p in (scales, zps) if p is not None]
    options = dict(qtype="per_group", group_shape=[4, 1]) if options is None else options
    w = g.dynamic_dequantize(g.constant(w) if weights is None else weights(g), *parameters, **options)
    g.output(g.relu(g.matmul(a, w, **matmul)))
    return g


def refusal(g):
    """The deepest reason."""
    count, refusals = Fuse("matmul_4bit").apply(g)
    assert count == 0
    return max(refusals, key=lambda r: r.depth).reason


def test_one_partition_of_the_same_numbers():
    g = graph(zps=np.array([[1, 2, 3], [4, 5, 6]], UINT4))
    before = g.copy()
    assert Fuse("matmul_4bit").apply(g) == (1, [])
    (node,) = [n for n in g.nodes if n.op.name == "partition"]
    assert node.attrs["anchor"] == "matmul_4bit"
    assert [n.op.name for n in node.attrs["body"].nodes] == ["dequantize", "dynamic_dequantize", "matmul", "relu"]
    check_same_numbers(before, g)


@pytest.mark.parametrize(("change", "reason"), [
    (dict(w=np.ones((8, 3), np.int8)), "the weights are s8: kernels with scales in groups take s4 and u4"),
    (dict(weights=lambda g: g.input("w", shape=(8, 3), dtype="u4")), "packed at compile time"),
    (dict(x="s8", source=dict(qtype="per_channel", axis=0, scales=[0.5] * 4)), "has one scale and is not transposed"),
    (dict(shape=(8, 4), transpose_a=True), "has one scale and is not transposed"),
    (dict(w=np.ones((2, 8, 3), UINT4), shape=(2, 4, 8), scales=np.ones(1, np.float32), options={}), "are one matrix"),
    (dict(scales=np.ones(8, np.float32), options=dict(qtype="per_channel", axis=0)), "is not the columns'"),
    (dict(zps=np.full((2, 3), 200, np.int32)), "must fit in s8, the zero points are 200 to 200"),
])
def test_refusals(change, reason):
    assert reason in refusal(graph(**change))


def test_sums_beyond_s32_are_refused():
    k = 1 << 19
    w, zps = np.full((k, 3), 15, UINT4), np.full(1, -112, np.int32)
    assert "beyond s32" in refusal(graph(w, np.ones(1, np.float32), zps, shape=(1, k), options={}))


def test_what_does_not_fuse_folds():
    g = graph(w=np.ones((8, 3), INT4), shape=(8, 4), transpose_a=True)
    run_passes(g)
    assert "dynamic_dequantize" not in [n.op.name for n in g.nodes]
