"""Weights that several operations use are packed once, and are in a file once."""
import ml_dtypes
import numpy as np
import pytest
from artifacts import opened

import graphq as gq
from graphq.testing import random_inputs

SIZE = 96


def weights(shape, dtype, copies):
    """A function that adds the weights: the same constant each time or, with `copies`, another one like it."""
    rng = np.random.default_rng(0)
    w = rng.integers(-7, 8, shape).astype(dtype)
    known = {}

    def add(g):
        return g.constant(w.copy()) if copies else known.setdefault(g, g.constant(w))

    return add


def chain(step, uses, shape, dtype="f32"):
    """A graph in which each of `uses` steps takes the result of the one before."""
    g = gq.Graph("chain")
    y = g.input("x", shape=shape, dtype=dtype)
    for k in range(uses):
        y = step(g, y, k)
    g.output(y, name="y")
    return g


def requantized(g, y, k):
    """A result in u8 again, with a scale of its own."""
    return g.dequantize(g.quantize(y, dtype="u8", scales=[0.5 + k], zps=[128]), scales=[0.5 + k], zps=[128])


def floats(copies, dtype, transposed=False):
    add = weights((SIZE, SIZE), dtype, copies)
    cast = dtype is not np.float32

    def step(g, y, k):
        y = g.type_cast(y, dtype="bf16") if cast else y
        return g.tanh(g.matmul(y, add(g), transpose_b=transposed, **(dict(dtype="f32") if cast else {})))

    return step, (5, SIZE)


def integers(copies):
    add = weights((SIZE, SIZE), np.int8, copies)

    def step(g, y, k):
        w = g.dequantize(add(g), scales=[0.02] * SIZE, zps=[0] * SIZE, qtype="per_channel", axis=1)
        return requantized(g, g.matmul(requantized(g, y, k), w), k)

    return step, (5, SIZE)


def compressed(copies, static):
    add = weights((SIZE, SIZE), np.dtype(ml_dtypes.int4), copies)
    scales = np.full((SIZE // 32, SIZE), 0.02, np.float32)

    def step(g, y, k):
        w = g.dynamic_dequantize(add(g), g.constant(scales), qtype="per_group", group_shape=[32, 1])
        return g.tanh(g.matmul(requantized(g, y, k) if static else y, w))

    return step, (5, SIZE)


def convolution(copies, quantized, groups=1):
    channels = 64
    add = weights((3, 3, channels // groups, channels), np.int8 if quantized else np.float32, copies)
    attrs = dict(strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], groups=groups,
                 data_format="NXC", weights_format="XIO")

    def step(g, y, k):
        if not quantized:
            return g.tanh(g.convolution(y, add(g), **attrs))
        w = g.dequantize(add(g), scales=[0.02], zps=[0])
        return requantized(g, g.convolution(requantized(g, y, k), w, **attrs), k)

    return step, (1, 6, 6, channels)


def recurrent(copies):
    units = 32
    add = weights((4 * units, units), np.float32, copies)
    into = weights((units, 4 * units), np.float32, copies)

    def step(g, y, k):
        return g.lstm(g.matmul(y, into(g)), g.multiply(add(g), np.float32(0.01)))[0]

    return step, (2, 3, units)


FAMILIES = {
    "f32": lambda copies: floats(copies, np.float32), "bf16": lambda copies: floats(copies, ml_dtypes.bfloat16),
    "transposed": lambda copies: floats(copies, np.float32, True), "int8": integers,
    "compressed": lambda copies: compressed(copies, False),
    "compressed, static": lambda copies: compressed(copies, True),
    "convolution": lambda copies: convolution(copies, False),
    "int8 convolution": lambda copies: convolution(copies, True),
    "depthwise": lambda copies: convolution(copies, False, 64),
    "int8 depthwise": lambda copies: convolution(copies, True, 64), "lstm": recurrent}


def large(sizes):
    """How many sizes are about as large as the largest."""
    return sum(n > 0.6 * max(sizes) for n in sizes)


def constants(model):
    (plan,) = model.plans.all()
    arrays = {id(b.data): b.data for b in plan.plan.buffers if isinstance(b.data, np.ndarray)}
    return [x.nbytes for x in arrays.values()]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_packed_and_saved_once(family, copies, tmp_path):
    """Three uses of the weights have as many arrays of their size as one use, at run time and in a file."""
    found = []
    for uses in (1, 3):
        step, shape = FAMILIES[family](copies)
        g = chain(step, uses, shape)
        model = gq.compile(g, threads=1)
        inputs = random_inputs(g, seed=1)
        assert np.array_equal(model(**inputs), model.formula(**inputs), equal_nan=True)
        file = tmp_path / f"{uses}.graphq"
        model.save(file)
        assert np.array_equal(gq.load_compiled(file, threads=1)(**inputs), model(**inputs))
        build, sections = opened(file)
        found.append((large(constants(model)), large([len(sections[k]) for *_, k in build["arrays"]])))
    assert found[0] == found[1]


def test_parts_of_a_model_share_weights():
    """The plans for two shapes, and a model that fetches an inner value."""
    add = weights((SIZE, SIZE), np.float32, False)
    g = gq.Graph("open")
    x = g.input("x", shape=(None, SIZE), dtype="f32")
    w = add(g)
    y = g.tanh(g.matmul(x, w), name="inner")
    g.output(g.matmul(y, w), name="y")
    model = gq.compile(g, threads=1)
    for rows in (1, 5, 40):
        inputs = {"x": np.ones((rows, SIZE), np.float32)}
        assert model(**inputs).shape == (rows, SIZE)
        model(**inputs, fetch="inner")
    plans = [*model.plans.all(), *(p for m in model._fetching.values() for p in m.plans.all())]
    packed = {id(b.data) for p in plans for b in p.plan.buffers
              if isinstance(b.data, np.ndarray) and b.data.nbytes > w.data.nbytes}
    assert len(plans) > 3 and len(packed) == 1
