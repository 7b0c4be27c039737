"""Small f32 networks of the usual kinds, with data, to quantize."""
import numpy as np

from graphq.ir import Graph

SAME = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1], "data_format": "NCX",
        "weights_format": "OIX"}
POINT = {**SAME, "pads_begin": [0, 0], "pads_end": [0, 0]}


def convolutional(seed=0, spread=0.0):
    """Convolutions with a batch normalization, a hard-swish, a depthwise one, a residual sum, a pool and a classifier.

    `spread`: how far apart the channels' ranges are, as a standard deviation of their logarithm.
    """
    g, rng = Graph("convolutional"), np.random.default_rng(seed)

    def normal(*shape, fan=1.0):
        return rng.normal(0, fan**-0.5, shape).astype(np.float32)

    x = g.input("x", dtype="f32", shape=(1, 3, 8, 8))
    y = g.convolution(x, normal(8, 3, 3, 3, fan=27), **SAME, name="first")
    scale = np.exp(rng.normal(0, spread, 8)).astype(np.float32)
    y = g.batch_norm_inference(y, scale, normal(8) * 0.1, normal(8) * 0.1,
                               np.float32(rng.uniform(0.5, 2, 8)), data_format="NCX", epsilon=1e-5)
    y = g.hard_swish(y)
    z = g.convolution(y, normal(8, 1, 3, 3, fan=9), normal(8) * 0.1, **SAME, groups=8, name="depthwise")
    z = g.convolution(g.relu(z), normal(8, 8, 1, 1, fan=8), normal(8) * 0.1, **POINT, name="point")
    y = g.add(y, z)
    y = g.reduce_mean(y, axes=[2, 3])
    g.output(g.matmul(y, normal(8, 5, fan=8), normal(5) * 0.1, name="classifier"), name="y")
    batches = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    return g, batches


def perceptron(seed=0):
    """Two dense layers on rows of any number."""
    g, rng = Graph("perceptron"), np.random.default_rng(seed)
    x = g.input("x", dtype="f32", shape=(None, 16))
    w = rng.normal(0, 0.25, (16, 32)).astype(np.float32)
    y = g.relu(g.matmul(x, w, rng.normal(0, 0.1, 32).astype(np.float32), name="hidden"))
    g.output(g.matmul(y, rng.normal(0, 0.2, (32, 4)).astype(np.float32), name="logits"), name="y")
    return g, [{"x": rng.standard_normal((6, 16)).astype(np.float32)} for _ in range(3)]


def attention(seed=0):
    """One head of attention with a layer norm before it: products of two activations, of any length."""
    g, rng = Graph("attention"), np.random.default_rng(seed)
    x = g.input("x", dtype="f32", shape=(1, None, 16))
    gamma = np.exp(rng.normal(0, 1, 16)).astype(np.float32)
    y = g.layer_norm(x, gamma, np.zeros(16, np.float32), keep_stats=False, name="normalized")
    q, k, v = (g.matmul(y, rng.normal(0, 0.25, (16, 16)).astype(np.float32), name=name) for name in "qkv")
    p = g.softmax(g.multiply(g.matmul(q, k, transpose_b=True, name="scores"), np.float32(0.25)), axis=-1)
    g.output(g.add(x, g.matmul(p, v, name="mixed")), name="y")
    return g, [{"x": rng.standard_normal((1, n, 16)).astype(np.float32)} for n in (6, 9, 4)]
