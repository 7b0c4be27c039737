"""Compiled concats: the formula's bits at every level, copies where nothing changes, the reference's numbers."""
import numpy as np
import pytest
from compiled import compiled_beside_reference as check

import graphq as gq

SHAPES = [  # axis, shapes
    (-1, [(2, 3, 4, 5), (2, 3, 4, 70), (2, 3, 4, 1)]), (0, [(2, 5), (1, 5), (3, 5)]), (1, [(2, 3, 4), (2, 1, 4)]),
    (2, [(1, 1, 3), (1, 1, 4)]), (1, [(4, 1), (4, 1)]), (0, [(3,)]),
    (-1, [(0, 3), (0, 4)]), (1, [(2, 2, 3), (2, 0, 3), (2, 1, 3)]),
]


def quantized(axis, shapes, scales, dtype="u8", out=(0.05, 3), epilogue=None):
    """Sources of the given (scale, zero point), and one of the result."""
    g = gq.Graph()
    xs = [g.dequantize(g.input(f"x{k}", dtype=dtype, shape=shape), scales=[scale], zps=[zp])
          for k, (shape, (scale, zp)) in enumerate(zip(shapes, scales, strict=True))]
    y = g.concat(*xs, axis=axis)
    y = y if epilogue is None else epilogue(g, y)
    g.output(g.quantize(y, dtype=dtype, scales=[out[0]], zps=[out[1]]), name="y")
    return g


@pytest.mark.parametrize("axis,shapes", SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_plain(axis, shapes, dtype):
    g = gq.Graph()
    g.output(g.concat(*(g.input(f"x{k}", dtype=dtype, shape=s) for k, s in enumerate(shapes)), axis=axis), name="y")
    got, want, report = check(g, None)
    assert got.tobytes() == want.tobytes() and "eltwise" not in report


@pytest.mark.parametrize("axis,shapes", SHAPES)
def test_sources_of_other_scales(level, axis, shapes):
    scales = [(0.05, 3), (0.0317, 120), (0.09, 0)][:len(shapes)]
    got, want, report = check(quantized(axis, shapes, scales), level)
    assert (got == want).all()
    if got.size:
        assert "copying" in report  # the first source has the scale of the result


def test_a_returned_relu_and_one_scale_for_each_channel(level):
    g = gq.Graph()
    xs = [g.dequantize(g.input(f"x{k}", dtype="s8", shape=(2, 3, c)), scales=[0.1]) for k, c in enumerate((3, 20))]
    y = g.relu(g.concat(*xs, axis=2))
    scales = np.linspace(0.02, 0.3, 23)
    g.output(g.quantize(y, dtype="u8", qtype="per_channel", axis=2, scales=scales.tolist(), zps=[*range(23)]), name="y")
    got, want, _ = check(g, level)
    assert (got == want).all()


def test_operands_that_do_not_vary_along_the_axis(level):
    def epilogue(g, y):
        return g.add(y, g.input("b", dtype="f32", shape=(3, 1)))

    got, want, _ = check(quantized(-1, [(2, 3, 4), (2, 3, 5)], [(0.05, 3), (0.1, 9)], epilogue=epilogue), level)
    assert (got == want).all()


def test_one_source_twice():
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(2, 3)), scales=[0.1])
    g.output(g.quantize(g.concat(x, x, axis=1), dtype="u8", scales=[0.2]), name="y")
    got, want, _ = check(g, None)
    assert (got == want).all()
