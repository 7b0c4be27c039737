"""Where operands lie: of every shape that broadcasts, of inputs, constants and parameters, beside sums and alone."""
import numpy as np
import pytest

import graphq as gq

SHAPES = [(2, 3, 5), (3, 5), (5,), (1,), (), (2, 1, 5), (2, 3, 1), (1, 3, 1), (2, 1, 1), (3, 1)]


def ran(g, seed=0):
    """What the compiled graph gives, and its formula."""
    rng = np.random.default_rng(seed)
    feeds = {v.name: rng.integers(0, 99, v.type.dims).astype(np.uint8) if v.dtype.name == "u8"
             else rng.normal(size=v.type.dims).astype(np.float32) for v in g.inputs}
    model = gq.compile(g, threads=1, strict=True)
    return model(feeds), model.formula(feeds), gq.reference(g, feeds)


def test_operands_of_every_shape():
    g = gq.Graph()
    y = g.input("x", dtype="f32", shape=(2, 3, 5))
    rng = np.random.default_rng(1)
    for k, shape in enumerate(SHAPES):
        operand = g.input(f"i{k}", dtype="f32", shape=shape) if k % 2 else g.constant(
            rng.normal(size=shape).astype(np.float32))
        y = (g.add, g.multiply)[k % 2](y, operand)
    g.output(y, name="y")
    got, formula, want = ran(g)
    assert np.array_equal(got, formula) and np.array_equal(got, want)


@pytest.mark.parametrize("shape", SHAPES)
def test_operands_beside_sums(shape):
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(2, 3, 4)), scales=[0.5])
    w = g.dequantize(g.constant(np.arange(-10, 10, dtype=np.int8).reshape(4, 5)), scales=[0.25])
    y = g.add(g.matmul(x, w), g.input("r", dtype="f32", shape=shape))
    g.output(g.quantize(y, dtype="s8", qtype="per_channel", axis=2, scales=[1.0, 2.0, 4.0, 8.0, 16.0]), name="y")
    got, formula, want = ran(g)
    assert np.array_equal(got, formula) and np.array_equal(got, want)
