"""Digests as in test_same_bits.py, of all kinds of kernels; they are equal on every machine.

Whoever moves a digest raises `NUMBERS` in graphq/model/fingerprint.py, and lists the change first in CHANGELOG.md.
"""
from itertools import cycle

import numpy as np
import pytest
from bits import digest, feed
from level_graphs import numbers
from levels import LEVELS

import graphq as gq


def floats(shape, seed):
    """Floats that no version of NumPy changes."""
    return numbers(shape, "s8", seed).astype(np.float32) / np.float32(77)


def net(shape, *build, dtype="f32"):
    """A graph of the outputs of functions of a graph and its input x."""
    g = gq.Graph()
    x = g.input("x", shape=shape, dtype=dtype)
    for k, f in enumerate(build):
        g.output(f(g, x), name=f"y{k}")
    return g


def convolved(g, x, channels=8, groups=1):
    """A convolution of 3 x 3 taps with padding, a stride and a bias."""
    taps = {"strides": [2, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "groups": groups}
    w, bias = g.constant(floats((3, 3, channels // groups, 24), 1)), floats(24, 2)
    return g.relu(g.convolution(x, w, bias, dilations=[1, 1], **taps))


def windows(op, **attrs):
    return lambda g, x: getattr(g, op)(x, kernel=[3, 2], strides=[2, 1], pads_begin=[1, 0], pads_end=[1, 1], **attrs)


def by_features(op, **attrs):
    """A norm with a factor and a summand for each of 24 features."""
    return lambda g, x: getattr(g, op)(x, *(floats(24, k) for k in (3, 4)[:2 - (op == "rms_norm")]), **attrs)


def batch_normed(g, x):
    return g.batch_norm_inference(x, *(floats(24, k) for k in (3, 4, 5)), np.abs(floats(24, 6)), epsilon=1e-3)


def layer(op):
    """A recurrent layer of 9 units; the rows of the LSTM have lengths."""
    gates = {"lstm": 4, "gru": 3}[op]

    def build(g, x):
        w = g.constant(floats((gates * 9, 9), 7))
        more = [None, None, None, g.constant(np.int32([5, 2, 4]))] if op == "lstm" else []
        return getattr(g, op)(g.matmul(x, g.constant(floats((12, gates * 9), 8))), w, *more)[0]

    return build


def attended(g, x):
    """Causal attention of two heads, by products and a softmax."""
    q, k, v = (g.static_transpose(g.static_reshape(g.matmul(x, g.constant(floats((12, 16), s))), shape=[2, 7, 2, 8]),
                                  order=[0, 2, 1, 3]) for s in (1, 2, 3))
    hidden = np.where(np.tri(7, dtype=bool), np.float32(0), -np.float32(np.inf))
    return g.matmul(g.softmax(g.add(g.multiply(g.matmul(q, k, transpose_b=True), 0.35), hidden), axis=-1), v)


def cached(g, x):
    """Attention with caches of 9 tokens and rotary positions."""
    key, value = (g.matmul(x, g.constant(floats((32, 16), s))) for s in (1, 2))
    past, angles = ([g.constant(floats(shape, s)) for s in (3, 4)] for shape in ((2, 2, 9, 8), (9, 4)))
    return g.cached_attention(x, np.int32([6, 8]), np.array([9], np.int32), key, value, *past, *angles, heads=4,
                              groups=2, scale=0.35, capacity=9)[0]


def product(g, x, n=33):
    return g.matmul(x, g.constant(floats((300, n), 9).astype(x.dtype.numpy)))


def dynamic(g, x):
    """A product whose source is quantized by its own range."""
    s, z = g.dynamic_range(x)
    q = g.dynamic_dequantize(g.dynamic_quantize(x, s, z, dtype="u8"), s, z)
    return g.matmul(q, g.dequantize(g.constant(numbers((300, 33), "s8", 9)), scales=[0.01]))


def kept_in_bytes(g, x):
    """Weights of 8 bits with a scale for each column, next to floats."""
    w = g.dequantize(g.constant(numbers((300, 33), "s8", 5)), qtype="per_channel", axis=1,
                     scales=np.abs(floats(33, 6)).tolist())
    return g.matmul(x, w)


def each(*ops, **attrs):
    return [lambda g, x, op=op: getattr(g, op)(x, **attrs) for op in ops]


def reduced(*ops):
    return [lambda g, x, op=op, k=k: getattr(g, op)(x, axes=[k], keep_dims=False) for op in ops for k in (1, 2)]


def resized(mode):
    return lambda g, x: g.interpolate(x, sizes=[9, 4], mode=mode)


def narrow(dtype):
    """Operations of floats of 16 bits."""
    return net((5, 300), lambda g, x: product(g, x), lambda g, x: g.softmax(x, axis=-1),
               lambda g, x: g.softmax(x, axis=-1, mode="stepwise"),
               lambda g, x: g.layer_norm(x, use_affine=False, keep_stats=False), dtype=dtype)


IMAGE = (2, 7, 9, 24)
GRAPHS = {
    "f32 convolution": (lambda: net((2, 7, 9, 8), convolved), {}),
    "f32 depthwise": (lambda: net(IMAGE, lambda g, x: convolved(g, x, 24, 24)), {}),
    "pools": (lambda: net(IMAGE, windows("max_pool"), windows("avg_pool", exclude_pad=True),
                          windows("avg_pool", exclude_pad=False)), {}),
    "norms": (lambda: net(IMAGE, by_features("layer_norm", keep_stats=False), by_features("rms_norm"), batch_normed,
                          by_features("group_norm", groups=4, keep_stats=False)), {}),
    "recurrent layers": (lambda: net((5, 3, 12), layer("lstm"), layer("gru")), {}),
    "causal attention": (lambda: net((2, 7, 12), attended), {}),
    "attention with caches": (lambda: net((2, 3, 32), cached), {}),
    "f16": (lambda: narrow("f16"), {}), "bf16": (lambda: narrow("bf16"), {}),
    "products of bf16": (lambda: net((5, 300), product), {"precision": "bf16"}),
    "convolutions of bf16": (lambda: net((2, 7, 9, 8), convolved), {"precision": "bf16"}),
    "one row": (lambda: net((1, 300), product, lambda g, x: product(g, x, 1), kept_in_bytes), {}),
    "run-time ranges": (lambda: net((5, 300), dynamic), {}),
    "run-time ranges by row": (lambda: net((5, 300), dynamic), {"ranges": "rows"}),
    "weights of 8 bits": (lambda: net((5, 300), kept_in_bytes), {}),
    "functions": (lambda: net((203,), *each(
        "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "mish"),
        *each("elu", alpha=0.7)), {}),
    "reductions": (lambda: net((5, 21, 13), *reduced(
        "reduce_max", "reduce_l1", "reduce_prod"),
        *each("cum_sum", axis=1), *each("log_softmax", axis=2)), {}),
    "resizing": (lambda: net((2, 5, 7, 3), resized("linear"), resized("nearest")), {}),
}
"""Functions that make graphs, and options of `compile`."""
DIGESTS = {
    "f32 convolution": "135f66743b710596",
    "f32 depthwise": "8445f8df3a91ce10",
    "pools": "654450b7c7f3ec67",
    "norms": "7df7fe4026fccb2a",
    "recurrent layers": "c7fb0cfd64b33a0a",
    "causal attention": "20ee41bc681a7100",
    "attention with caches": "e446eabb040f2a40",
    "f16": "5abb85cc2480a6c2",
    "bf16": "25ecab69d8423c8c",
    "products of bf16": "93c03c04e9b8ddb9",
    "convolutions of bf16": "911006f28b98fa65",
    "one row": "2e6ee4ac19dc67ca",
    "run-time ranges": "6f38fc283dfc0477",
    "run-time ranges by row": "ad9d0342d182e8c3",
    "weights of 8 bits": "5dede42ebfa49dd3",
    "functions": "5a0ca415c3435277",
    "reductions": "28b119c33b972bd7",
    "resizing": "57442fe3675cf5ce",
}


@pytest.mark.parametrize(("case", "level"), [*zip(GRAPHS, cycle(LEVELS[:2]))], indirect=["level"])
def test_outputs_have_their_digest(case, level):
    make, options = GRAPHS[case]
    g = make()
    model = gq.compile(g, isa=level, threads=2, **options)
    given = {str(v.name): feed(v) for v in g.inputs}
    assert digest(model(given)) == DIGESTS[case]
