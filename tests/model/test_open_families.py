"""Every kernel family at open sizes: models and thread counts share a process, small shapes come first and last.

Nothing of a plan's sizes may stay behind in the process: neither in its caches nor in the memory that models share.
"""
import gc
import re

import numpy as np
import pytest
from artifacts import opened

import graphq as gq
from graphq.base.sizes import Trace
from graphq.ir import TensorType
from graphq.kernels.families import FAMILIES
from graphq.model import saved_models
from graphq.passes import PIPELINE, run_passes

NCX = {"data_format": "NCX"}
OIX = {"weights_format": "OIX"}
SHAPES = [(4, 4), (17, 20), (9, 8), (4, 4)]


def quantized(v):
    g = v.graph
    return g.dequantize(g.quantize(v, scales=[0.05], zps=[7], dtype="u8"), scales=[0.05], zps=[7])


def image(g, channels, dtype="f32"):
    return g.input("x", dtype="f32" if dtype == "u8" else dtype, shape=(1, channels, None, None))


def weights(g, rng, dtype, *shape):
    if dtype == "u8":
        return g.dequantize(g.constant(rng.integers(-127, 128, shape, dtype=np.int8)), scales=[0.01])
    w = g.constant(rng.standard_normal(shape).astype(np.float32))
    return w if dtype == "f32" else g.type_cast(w, dtype=dtype)


def convolution(dtype, channels, k, groups=1, outputs=None, stride=1):
    def make(g, rng):
        x, out = image(g, channels, dtype), outputs or channels
        w = weights(g, rng, dtype, out, channels // groups, k, k)
        return g.convolution(quantized(x) if dtype == "u8" else x, w, strides=[stride] * 2, pads_begin=[k // 2] * 2,
                             pads_end=[k // 2] * 2, groups=groups, **NCX, **OIX)
    return make


def in_parts(g, rng):
    """Weights from 0 to 255 are the sum of several s8 weights, so taps are repeated."""
    w = g.dequantize(g.constant(rng.integers(0, 256, (8, 8, 3, 3)).astype(np.uint8)), scales=[0.01])
    return g.convolution(quantized(image(g, 8)), w, pads_begin=[1, 1], pads_end=[1, 1], **NCX, **OIX)


def transposed(g, rng):
    return g.conv_transpose(quantized(image(g, 8)), weights(g, rng, "u8", 8, 4, 3, 3), strides=[2, 2],
                            pads_begin=[1, 1], pads_end=[1, 1], **NCX, weights_format="IOX")


def tokens(g, size=16, dtype="f32"):
    return g.input("x", dtype=dtype, shape=(None, None, size))


def compressed(g, rng):
    w = g.constant(rng.integers(-7, 8, (16, 24), dtype=np.int8))
    return g.matmul(tokens(g), g.dequantize(w, qtype="per_channel", axis=1, scales=[0.1] * 24))


def attention(g, rng):
    x = quantized(tokens(g))
    return quantized(g.matmul(g.softmax(g.matmul(x, x, transpose_b=True), axis=-1), x))


def joined(g, rng):
    x = quantized(image(g, 8))
    return quantized(g.concat(x, g.relu(x), axis=1))


POOL = {"kernel": [2, 2], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], **NCX}

MAKERS = {
    "depthwise of f32": convolution("f32", 64, 3, 64),
    "depthwise of bf16, two outputs a channel": convolution("bf16", 8, 1, 8, 16, stride=2),
    "depthwise of f16, few channels": convolution("f16", 5, 1, 5),
    "depthwise of u8": convolution("u8", 64, 3, 64),
    "convolution of u8": convolution("u8", 8, 3, outputs=16),
    "convolution of f32, grouped": convolution("f32", 8, 3, 2, stride=2),
    "convolution of pixels": convolution("u8", 16, 1),
    "convolution of u8 weights in parts": in_parts,
    "conv_transpose": transposed,
    "max_pool": lambda g, rng: g.max_pool(image(g, 16), **POOL),
    "avg_pool": lambda g, rng: quantized(g.avg_pool(quantized(image(g, 16)), **POOL, exclude_pad=True)),
    "interpolate": lambda g, rng: g.interpolate(image(g, 8), mode="bilinear", scales=[2.0, 1.5], **NCX),
    "concat": joined,
    "row": lambda g, rng: g.softmax(quantized(image(g, 4)), axis=-1),
    "reduce": lambda g, rng: g.reduce_mean(image(g, 4), axes=[2, 3]),
    "eltwise": lambda g, rng: quantized(g.sigmoid(quantized(image(g, 4)))),
    "matmul of u8": lambda g, rng: quantized(g.matmul(quantized(tokens(g)), weights(g, rng, "u8", 16, 24))),
    "matmul of bf16": lambda g, rng: g.matmul(tokens(g, dtype="bf16"), weights(g, rng, "bf16", 16, 24)),
    "matmul of compressed weights": compressed,
    "products of activations": attention,
    "lstm": lambda g, rng: g.lstm(tokens(g, 32), g.constant(rng.standard_normal((32, 8)).astype(np.float32)))[0],
    "gru": lambda g, rng: g.gru(tokens(g, 24), g.constant(rng.standard_normal((24, 8)).astype(np.float32)))[0],
    "pad": lambda g, rng: g.pad(image(g, 6), pads_begin=[0, 0, 1, 2], pads_end=[0, 0, 2, 1]),
    "static_transpose": lambda g, rng: g.static_transpose(image(g, 6), order=[0, 3, 1, 2]),
}


def graph(name, seed):
    g = gq.Graph(f"model{seed}")
    g.output(MAKERS[name](g, np.random.default_rng(seed)), name="y")
    return g


def traces():
    gc.collect()
    return {id(x) for x in gc.get_objects() if type(x) is Trace}


@pytest.fixture(scope="module", autouse=True)
def no_trace_stays():
    """Once all models of this file are freed, nothing in the process has a trace of theirs."""
    before = traces()
    yield
    assert traces() <= before


def with_sizes(x, sizes):
    left = iter(sizes)
    return tuple(next(left) if d is None else d for d in x.type.shape)


def plans_in(path):
    """The JSON of the plans in a file."""
    build, sections = opened(path)
    return [sections[number].decode() for _, number in build["plans"]]


def test_no_family_is_missing():
    anchors = set()
    for name in MAKERS:
        g = graph(name, 0)
        g = g.specialize({v.name: TensorType(v.dtype, with_sizes(v, (4, 4))) for v in g.inputs})
        run_passes(g, PIPELINE)
        anchors |= {node.attrs["anchor"] for node in g.nodes_of(["partition"])}
    assert anchors == {f.name for f in FAMILIES}


@pytest.mark.parametrize("name", MAKERS)
def test_models_and_thread_counts_share_a_process(name, tmp_path):
    """And a file has every plan of a model, without a name of the source; the loaded model gives the same results."""
    models = [gq.compile(graph(name, seed), threads=threads) for seed, threads in ((0, 1), (1, 2), (0, 2))]
    x = models[0].signature.inputs[0]
    for sizes in SHAPES:
        data = np.random.default_rng(0).standard_normal(with_sizes(x, sizes)).astype(x.dtype.numpy)
        for model in models:
            assert model(data).tobytes() == model.formula(data).tobytes(), (sizes, model.options.threads)
    assert not any(model.plans.for_each_shape for model in models)
    model = models[1]
    model.save(tmp_path / "m")
    saved_models.save(tmp_path / "kept", model.plans, key="key")
    texts, plans = plans_in(tmp_path / "m"), len(model.plans.all())
    assert plans_in(tmp_path / "kept") == texts and len(texts) == plans > 0
    assert not re.search("graphq|builtins|_operator|functools|partial|lambda", "".join(texts))
    again = gq.load_compiled(tmp_path / "m")
    for sizes in SHAPES:
        data = np.random.default_rng(1).standard_normal(with_sizes(x, sizes)).astype(x.dtype.numpy)
        assert again(data).tobytes() == model(data).tobytes()
    assert len(again.plans.all()) == plans


def test_one_plan_for_images_of_a_class():
    """Sizes that equal a number of channels, change the chains of ties, or make a pool's window small are no others."""
    rng = np.random.default_rng(2)
    g = gq.Graph("images")
    x = g.dequantize(g.input("x", dtype="u8", shape=(1, 16, None, None)), scales=[0.02], zps=[120])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (8, 16, 3, 3), dtype=np.int8)), scales=[0.01])
    y = g.convolution(x, w, pads_begin=[1, 1], pads_end=[1, 1], **NCX, **OIX)
    y = g.quantize(g.relu(y), scales=[0.1], zps=[10], dtype="u8")
    g.output(g.reduce_mean(g.dequantize(y, scales=[0.1], zps=[10]), axes=[2, 3], keep_dims=True), name="y")
    model = gq.compile(g)
    for height, width in ((12, 10), (8, 8), (8, 3), (2, 2), (15, 8), (3, 15)):
        data = rng.integers(0, 256, (1, 16, height, width), dtype=np.uint8)
        want = gq.compile(g.specialize({"x": gq.TensorType(g.inputs[0].dtype, data.shape)}))(data)
        np.testing.assert_array_equal(model(data), want)
    assert len(model.plans.by_class[2, 2]) == 1
