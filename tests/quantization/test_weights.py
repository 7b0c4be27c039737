"""Quantized weights: each channel by itself reaches the ends of its integers, whatever the product."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s8
from graphq.ops.quant import dequantize
from graphq.quantization.products import products
from graphq.quantization.scheme import Scheme
from graphq.quantization.weights import dequantized_weights, quantized_weights, rest_of_weights

RNG = np.random.default_rng(2)
SPREAD = np.float32([0.001, 1, 50, 0, 3, 1e-40, 0.2])  # one of seven channels holds zeros, one what is no normal number

# what the channels are of an array [7, ...], and the operation
PRODUCTS = {
    "matmul": (lambda w: w.T, "matmul(x, w)", (7, 4)),
    "transposed": (lambda w: w, "matmul(x, w, transpose_b=true)", (7, 4)),
    "convolution": (lambda w: w, 'convolution(c, w, weights_format="OIX", data_format="NCX")', (7, 4, 3, 2)),
    "channels last": (lambda w: np.moveaxis(w, 0, -1), 'convolution(c, w, weights_format="XIO", data_format="NCX")',
                      (7, 3, 2, 4)),
    "transposed convolution": (lambda w: np.moveaxis(w, 0, 1),
                               'conv_transpose(c, w, weights_format="IOX", data_format="NCX")', (7, 4, 3, 2)),
}


@pytest.mark.parametrize("bits,most", [(8, 127), (7, 64)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_channel_has_its_own_scale(name, bits, most):
    arrange, statement, shape = PRODUCTS[name]
    rows = RNG.uniform(-1, 1, shape).astype(np.float32) * SPREAD.reshape(-1, *[1] * (len(shape) - 1))
    w = np.ascontiguousarray(arrange(rows))
    g = gq.parse(f"graph(x: f32[5,4], c: f32[1,4,9,9], w: f32[{','.join(map(str, w.shape))}]) {{\n %y = {statement}\n"
                 " return %y\n}").specialise({}, {"w": w})
    product, = products(g)
    each, same = (Scheme(weight_bits=bits, per_channel=c) for c in (True, False))
    q, p = quantized_weights(product, w, each)
    assert p.dtype == s8 and p.zps == (0,) * 7 and q.dtype == np.int8
    integers = np.moveaxis(q, p.axis, 0)
    largest = np.abs(integers.astype(int)).reshape(7, -1).max(axis=1)
    np.testing.assert_array_equal(largest, np.array([1, 1, 1, 0, 1, 0, 1]) * most)
    top = np.abs(rows).reshape(7, -1).max(axis=1)
    np.testing.assert_array_equal(p.scales, np.where(top < 1e-30, 1, top / most).astype(np.float32))
    along = np.float32(p.scales).reshape(-1, *[1] * (w.ndim - 1))
    np.testing.assert_array_equal(integers, np.clip(np.rint(np.moveaxis(w, p.axis, 0) / along), -most, most))
    made = dequantized_weights(product, w, each)
    np.testing.assert_array_equal(made, dequantize.reference(q, **p.attrs))
    np.testing.assert_array_equal(rest_of_weights(product, w, each), w - made)
    one, whole = quantized_weights(product, w, same)
    assert whole.axis is None and whole.scales == (float(np.float32(np.abs(w).max() / most)),)
    np.testing.assert_array_equal(one, np.clip(np.rint(w / np.float32(whole.scales[0])), -most, most))
    assert np.abs(dequantized_weights(product, w, same) - w).max() <= whole.scales[0] * 0.5001
