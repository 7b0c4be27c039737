"""Rotary position embedding: by a kernel, equal to the reference, and near the specification's formula."""
import numpy as np
import pytest
from one_onnx_node import run

import graphq as gq
from graphq.errors import ParseError

rng = np.random.default_rng(23)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rows, angles", [((2, 3, 4), (2, 1, 4)), ((2, 3, 4), (1, 3, 1)), ((1, 1, 5), (1, 1, 1)),
                                          ((3, 2, 1), (3, 2, 1))])
def test_as_the_reference(width, rows, angles, interleaved):
    """Tails of all lengths, numbers behind the pairs, and angles that rows share."""
    for size, half in ((2, 1), (7, 3), (34, 17), (128, 64), (80, 32), (5, 0)):
        g = gq.Graph()
        x, cos, sin = (g.input(name, shape=shape, dtype="f32") for name, shape in (
            ("x", (*rows, size)), ("cos", (*angles, half)), ("sin", (*angles, half))))
        g.output(g.rotary_embedding(x, cos, sin, interleaved=interleaved), name="y")
        feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in g.inputs}
        np.testing.assert_array_equal(gq.compile(g, isa=width, strict=True)(feeds), gq.reference(g, feeds))


@pytest.mark.parametrize("of", ["x: f32[2,3,4,6], c: f32[2,1,4,4], s: f32[2,1,4,4]",
                                "x: f32[2,3,4,6], c: f32[2,1,4,3], s: f32[2,1,4,2]",
                                "x: f32[2,3,4,6], c: f32[2,1,3,3], s: f32[2,1,3,3]",
                                "x: f32[2,4,6], c: f32[2,1,4,3], s: f32[2,1,4,3]",
                                "x: f16[2,3,4,6], c: f32[2,1,4,3], s: f32[2,1,4,3]"])
def test_types(of):
    with pytest.raises(ParseError, match="rotary_embedding.*(must be|must have)"):
        gq.parse(f"graph g({of}) {{\n %y = rotary_embedding(x, c, s)\n return %y\n}}")


def by_formula(x, cos, sin, interleaved):
    """The specification's sums in f64, of x [batch, tokens, heads, size] and angles [batch, tokens, half]."""
    y, half = x.astype(np.float64), cos.shape[-1]
    for b, t, k in np.ndindex(cos.shape):
        first, second = (2 * k, 2 * k + 1) if interleaved else (k, half + k)
        c, s, u, v = float(cos[b, t, k]), float(sin[b, t, k]), x[b, t, :, first], x[b, t, :, second]
        y[b, t, :, first], y[b, t, :, second] = c * u - s * v, s * u + c * v
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
def test_onnx_operator(interleaved):
    for _ in range(6):
        batch, tokens, heads, half, places = (int(n) for n in rng.integers(1, 6, 5))
        size, partial = 2 * half + int(rng.choice([0, 4])), {"rotary_embedding_dim": 2 * half}
        x = rng.standard_normal((batch, tokens, heads, size)).astype(np.float32)
        cos, sin = rng.standard_normal((2, places, half)).astype(np.float32)
        positions = rng.integers(0, places, (batch, tokens))
        want = by_formula(x, cos[positions], sin[positions], interleaved)
        attrs = {"opset": 23, "interleaved": interleaved, **partial}
        got = run("RotaryEmbedding", x.reshape(batch, tokens, -1), cos, sin, positions, num_heads=heads, **attrs)
        np.testing.assert_allclose(got.reshape(x.shape), want, rtol=1e-5, atol=1e-6)
        got = run("RotaryEmbedding", x.swapaxes(1, 2), cos[positions], sin[positions], **attrs)
        np.testing.assert_allclose(got.swapaxes(1, 2), want, rtol=1e-5, atol=1e-6)
