"""The stated orders of f32 sums are those of ONNX Runtime's kernels, bit for bit, whatever the sizes."""
import numpy as np
import pytest
from onnx_node import node_model
from onnx_runtime import results

from graphq.kernels.lanes.expression import fused
from graphq.kernels.numbers.sum_orders import DequantizedSum, chain_block, matmul_order

SHAPES = [(1, 96, 700), (1, 8, 33), (5, 1, 700), (1, 1, 129), (40, 1, 64), (6, 1, 2000), (6, 2, 2000), (3, 15, 900),
          (3, 17, 900), (7, 96, 700), (7, 16, 300), (3, 300, 500), (64, 64, 128), (2, 20, 1024), (7, 40, 3)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("m,n,k", SHAPES, ids=str)
def test_matmuls(m, n, k, transposed):
    rng = np.random.default_rng(k)
    x, w = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    order, block = matmul_order(m, n, k, transposed=transposed)
    scales = np.float32(0.0173), 90, np.float32([0.0031]), np.int32([0])
    literal = DequantizedSum(order, block, *scales, np.zeros(1, np.float32))
    rows, columns = (a.ravel() for a in np.indices((m, n)))
    a, b = literal.factors(x, w.T, np.arange(n))
    feeds = {"a": a, "b": np.ascontiguousarray(b if transposed else b.T)}
    model = node_model("Gemm", list(feeds.items()), {"transB": int(transposed)}, domain="")
    (want,) = results(model, feeds)
    got = literal.sums(x[rows], w.T[columns], columns).reshape(m, n)
    rows, columns = (m - m % 4, n) if order == "octets" and m > 1 else (m, n - n % 4) if order == "octets" else (m, n)
    assert np.array_equal(got[:rows, :columns], want[:rows, :columns])  # the last ones have an order of their own


@pytest.mark.parametrize("m, n, k, transposed, order", [
    (1, 96, 700, False, "quads"), (1, 96, 700, True, "octets"), (1, 1, 9, False, "quads"), (5, 1, 9, False, "octets"),
    (5, 1, 9, True, "chains"), (2, 2, 9, False, "chains"), (None, 9, 9, True, "chains"), (None, 1, 9, False, "octets")])
def test_orders_by_shape(m, n, k, transposed, order):
    assert matmul_order(m, n, k, transposed=transposed)[0] == order


@pytest.mark.parametrize("n, k, block", [
    (128, 1000, 128), (65, 1000, 128), (64, 1000, 256), (33, 1000, 256), (32, 1000, 512), (17, 1000, 512),
    (16, 1000, 1024), (8, 5000, 1024), (2, 5000, 1024), (64, 64, 128), (64, 65, 256), (16, 16, 128), (16, 17, 1024)])
def test_chains_of_few_columns_are_longer(n, k, block):
    assert chain_block(n, k) == block and matmul_order(7, n, k)[1] == block


@pytest.mark.parametrize("scales, zps, start", [([0.5, 3], [7, -9], [1, -2]), ([0.1], [5], [4]),
                                                ([0.1, 0.7], [0], [0])])
def test_factors_and_starts_of_columns(scales, zps, start):
    """An element of each list for all columns, or for each."""
    rng, columns = np.random.default_rng(0), np.array([1, 0, 1])
    x, w = rng.integers(0, 256, (3, 10)).astype(np.uint8), rng.integers(-128, 128, (3, 10)).astype(np.int8)
    sum_ = DequantizedSum("chains", 4, np.float32(0.3), 90, np.float32(scales), np.int32(zps), np.float32(start))
    left, right = sum_.factors(x, w, columns)
    at = [columns % len(values) for values in (scales, zps, start)]
    assert np.array_equal(left, (x.astype(np.float32) - 90) * np.float32(0.3))
    zp, scale = np.float32(zps)[at[1]][:, None], np.float32(scales)[at[0]][:, None]
    assert np.array_equal(right, (w.astype(np.float32) - zp) * scale)
    exact = (left.astype(float) * right).sum(axis=1) + np.float32(start)[at[2]]
    for order, taps in (("chains", 1), ("quads", 1), ("octets", 1), ("taps", 5)):
        got = sum_._replace(order=order, taps=taps).sums(x, w, columns)
        np.testing.assert_allclose(got, exact, rtol=1e-5)


@pytest.mark.parametrize("taps, k, block", [(3, 12, 3), (1, 7, 2), (7, 7, 8), (5, 0, 8), (0, 4, 8)])
def test_taps_are_summed_in_blocks_of_their_own(taps, k, block):
    rng, columns = np.random.default_rng(1), np.arange(20)
    x, w = rng.integers(0, 256, (20, k)).astype(np.uint8), rng.integers(-128, 128, (20, k)).astype(np.int8)
    sum_ = DequantizedSum("taps", block, np.float32(0.3), 90, np.float32([0.7]), np.int32([3]), np.float32([0.1]), taps)
    left, right = sum_.factors(x, w, columns)
    total, size = np.full(20, 0.1, np.float32), k // max(taps, 1)
    for tap in range(0, k, max(size, 1)):
        of_tap = np.zeros(20, np.float32)
        for start in range(tap, tap + size, block):
            chain = np.zeros(20, np.float32)
            for i in range(start, min(start + block, tap + size)):
                chain = fused(left[:, i], right[:, i], chain)
            of_tap += chain
        total += of_tap
    assert np.array_equal(sum_.sums(x, w, columns), total)
