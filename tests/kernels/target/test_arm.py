"""Arm's levels, emulated elsewhere: every family with code of its own for a level gives what the formula says.

Outputs near rounding ties follow the formula as well, because kernels that settle them take long to compile.
"""
import numpy as np
import pytest
from dense import dense
from kernel_digests import recurrent
from level_graphs import compressed, looked_up, numbers, of_products, padded, rows

import graphq as gq
from graphq.kernels.target import arm, isa
from graphq.testing import random_inputs

NAMES = [level.name for level in arm.LEVELS]


def product(dtype):
    """A float product of odd sizes."""
    g = gq.Graph("product")
    w = g.constant(np.linspace(-1, 1, 33 * 21).reshape(33, 21).astype(gq.dtypes.as_dtype(dtype).numpy))
    g.output(g.matmul(g.input("x", shape=(7, 33), dtype=dtype), w), name="y")
    return g


def tails():
    """Dense layers of 1 to 7 rows, 1 to 17 k, and an odd number of columns; levels, rows and dtypes vary in turn."""
    return [dense(1 + k % 7, k, 2 * k - 1, x="us"[k % 2] + "8", out="f32", residual=False)
            for k in (*range(1, 9), 15, 16, 17)]


def grouped():
    """A convolution whose groups of four channels are joined; many outputs are ties."""
    g, w = gq.Graph("grouped"), numbers((3, 3, 4, 16), "s8", 3)
    w[..., ::4] //= 64
    y = g.convolution(g.dequantize(g.input("x", shape=(1, 5, 7, 16), dtype="s8"), scales=[0.25]), g.dequantize(
        g.constant(w), scales=[0.5]), strides=[1, 2], pads_begin=[1, 0], pads_end=[0, 1], dilations=[1, 1], groups=4)
    g.output(g.quantize(y, dtype="u8", scales=[1.0], zps=[100]), name="y")
    return g


def attention():
    """Attention of three tokens without caches, whose heads have seven numbers: four are transposed, then three."""
    g = gq.Graph("attention")
    tokens = [g.input(name, shape=(1, 3, heads * 7), dtype="f32") for name, heads in (("q", 2), ("k", 1), ("v", 1))]
    lengths = [g.constant(np.int32(x)) for x in ([2], [3])]
    y, *_ = g.cached_attention(tokens[0], *lengths, *tokens[1:], heads=2, groups=1, scale=0.4)
    g.output(y, name="y")
    return g


PRODUCTS = [*tails(), *of_products(), padded(1, 24), padded(24, 1), compressed("f32", "u4"), compressed("f32", "u8")]
PAIRED = [dense(13, 40, 17, out="f32", residual=False), dense(3, 24, 70, x="s8", zx=-9), dense(1, 8, 33, batch=(2,)),
          padded(24, 1), grouped()]
"""Products of two rows at once, in tiles of each size: k is a multiple of 8, and rows are odd."""
FLOATS = [*map(product, ("f32", "bf16", "f16")), recurrent("gru", False), rows(), looked_up(), attention()]
"""Code of the lowest level with these vectors."""


def bits(results):
    results = results if isinstance(results, dict) else {"y": results}
    return {name: np.asarray(x).tobytes() for name, x in results.items()}


@pytest.mark.parametrize(("name", "graphs"), [
    *((name, PRODUCTS[k::len(NAMES)]) for k, name in enumerate(NAMES)), (NAMES[0], FLOATS), (NAMES[-1], PAIRED)])
def test_families_give_the_bits_of_the_formula(name, graphs):
    with isa.emulate(name):
        for g in graphs:
            inputs = random_inputs(g)
            models = [gq.compile(g, isa=name, threads=threads, ties="formula") for threads in (1, 2)]
            wanted = bits(models[0].formula(inputs))
            for model in models:
                assert model.level.name == name
                assert bits(model(inputs)) == wanted, (g.name, model.threads)
