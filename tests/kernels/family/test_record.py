"""Epilogues whose other operand has more dimensions than the anchor's result."""
import numpy as np
import pytest
from compiled import compiled_beside_reference

import graphq as gq

WINDOW = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "data_format": "NCX"}


def product(g: gq.Graph, kind: str) -> gq.Value:
    """The result of an anchor of a family."""
    x = g.input("x", dtype="f32", shape=(1, 1, 3, 24) if kind in ("pool", "conv", "interpolate") else (3, 24))
    match kind:
        case "softmax":
            return g.softmax(x, axis=-1)
        case "reduction":
            return g.reduce_sum(x, axes=[-1], keep_dims=True)
        case "floats":
            return g.matmul(x, g.input("w", dtype="f32", shape=(24, 8)))
        case "integers":
            weights = g.constant(np.arange(-96, 96, dtype=np.int8).reshape(24, 8))
            return g.matmul(g.dequantize(g.quantize(x, dtype="u8", scales=[0.1], zps=[9]), scales=[0.1], zps=[9]),
                            g.dequantize(weights, scales=[0.125]))
        case "pool":
            return g.avg_pool(x, kernel=[2, 2], exclude_pad=False, **WINDOW)
        case "conv":
            return g.convolution(x, g.input("w", dtype="f32", shape=(2, 1, 1, 1)), weights_format="OIX",
                                 dilations=[1, 1], **WINDOW)
        case "interpolate":
            return g.interpolate(x, mode="nearest", sizes=[6, 48], data_format="NCX")
    return g.concat(x, x, axis=0)


@pytest.mark.parametrize("kind", [
    "softmax", "reduction", "floats", "integers", "pool", "conv", "interpolate", "concat"])
@pytest.mark.parametrize("more", [(1,), (1, 1), (2,), (0,), (0, 1)])
def test_an_operand_of_an_epilogue_has_more_dimensions(kind, more):
    g = gq.Graph()
    y = product(g, kind)
    g.output(g.add(y, g.input("z", dtype="f32", shape=(*more, *y.shape))), name="y")
    got, want, _ = compiled_beside_reference(g, None)
    assert got.shape == want.shape == (*more, *y.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
