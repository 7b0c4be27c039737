"""The results of a row have the same bits alone and in a batch, though many outputs lie next to rounding ties."""
import numpy as np
import pytest
from level_graphs import numbers

import graphq as gq

X, W = 0.1, 0.3
"""The scales of activations and weights. Outputs have scales of 2 * X * W * n, so one in 2n lies next to a tie."""


def layer(shape, product, fine=64):
    """A graph that quantizes `product` of the graph and dequantized rows of u8."""
    g = gq.Graph()
    y = product(g, g.dequantize(g.input("x", shape=(None, *shape), dtype="u8"), scales=[X], zps=[3]))
    g.output(g.quantize(y, dtype="s8", scales=[2 * X * W * fine], zps=[-7]), name="y")
    return g


def weights(g, *shape, dtype="s8"):
    return g.dequantize(g.constant(numbers(shape, dtype, 5) >> 4 | 1), scales=[W])


def dense(k, n, *, turned=False, bias=False, positions=()):
    def product(g, x):
        w = weights(g, n, k) if turned else weights(g, k, n)
        return g.matmul(x, w, np.float32(X * W) * numbers((n,), "s8", 7) if bias else None, transpose_b=turned)
    return layer((*positions, k), product)


def convolution(size, channels, outputs, kernel, groups=1):
    return layer((*size, channels), lambda g, x: g.convolution(
        x, weights(g, *kernel, channels // groups, outputs), groups=groups, strides=[1] * len(size),
        pads_begin=[k // 2 for k in kernel], pads_end=[k // 2 for k in kernel]))


def of_two(m, n, k=150, *, turned=False):
    """A product of two activations, m x k and k x n."""
    g = gq.Graph()
    a = g.dequantize(g.input("x", shape=(None, m, k), dtype="u8"), scales=[X], zps=[3])
    b = g.dequantize(g.input("z", shape=(None, n, k) if turned else (None, k, n), dtype="s8"), scales=[W])
    g.output(g.quantize(g.matmul(a, b, transpose_b=turned), dtype="s8", scales=[2 * X * W * 1024]), name="y")
    return g


def compressed(g, x):
    scales = np.full((2, 60), W, np.float32)
    w = g.constant((numbers((160, 60), "u8", 5) >> 4).astype(gq.dtypes.u4.numpy))
    zps = np.full((2, 60), 7).astype(gq.dtypes.u4.numpy)
    return g.matmul(x, g.dynamic_dequantize(w, scales, zps, qtype="per_group", group_shape=[80, 1]))


FAMILIES = {
    "matmul": dense(1024, 128), "weights transposed": dense(1024, 128, turned=True), "bias": dense(700, 90, bias=True),
    "few columns": dense(900, 20), "one column": dense(900, 1), "one column, transposed": dense(900, 1, turned=True),
    "one position": dense(300, 90, positions=(1,)), "positions": dense(300, 90, positions=(5,)),
    "two activations": of_two(3, 9), "two activations, one row": of_two(1, 9),
    "two activations, transposed": of_two(1, 9, turned=True), "two activations, one column": of_two(4, 1),
    "3x3": convolution((4, 5), 24, 40, (3, 3)), "one pixel": convolution((1, 1), 200, 40, (1, 1)),
    "one channel": convolution((6, 5), 200, 1, (1, 1)), "groups": convolution((4, 5), 32, 24, (3, 3), 4),
    "depthwise": convolution((6, 5), 40, 40, (3, 3), 40), "a sequence": convolution((9,), 40, 24, (3,)),
    "weights of 4 bits": layer((160,), compressed),
    "means": layer((4, 5, 24), lambda g, x: g.reduce_mean(x, axes=[1, 2]), 4),
    "softmax": layer((40,), lambda g, x: g.multiply(g.softmax(x, axis=-1), 900.0), 1),
    "floats": layer((300,), lambda g, x: g.matmul(g.exp(g.multiply(x, -1.0)), weights(g, 300, 90)), 8),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_alone(name):
    g = FAMILIES[name]
    model = gq.compile(g, threads=2)
    assert model.rows_mix is None
    given = [numbers((48, *v.type.shape[1:]), v.dtype.name, k) for k, v in enumerate(g.inputs)]
    together = model(*given)
    alone = np.concatenate([model(*(x[k:k + 1] for x in given)) for k in range(len(together))])
    assert np.array_equal(alone, together) and np.array_equal(together, model.formula(*given))
    assert np.unique(together).size > 3
