"""How far an output may be from the reference's, by dtype."""
import numpy as np
import pytest

import graphq as gq
from graphq.commands.deviation import compare


def check(dtype, got, wanted):
    g = gq.Graph()
    value = g.input("x", dtype=dtype, shape=(len(wanted),))
    a, b = (np.asarray(x, np.float32).astype(value.dtype.numpy) for x in (got, wanted))
    return compare("x", a, b, value)


@pytest.mark.parametrize("dtype, got, wanted, passed", [
    ("f32", [1, 2, np.nan, np.inf], [1, 2, np.nan, np.inf], True),
    ("f32", [1, 2], [1.00001, 2], True),
    ("f32", [1, 2], [1.0001, 2], False),
    ("f32", [1, np.nan], [1, 2], False),
    ("f32", [1, np.inf], [1, -np.inf], False),
    ("f32", [0, 0], [0, np.inf], False),
    ("bf16", [1, 1.015625], [1, 1], True),
    ("bf16", [1, 1.0234375], [1, 1], False),
    ("f16", [1, 1.001953125], [1, 1], True),
    ("f16", [1, 1.0029296875], [1, 1], False),
    ("f8_e4m3", [1, 1.125], [1, 1], True),
    ("f8_e4m3", [1, 1.25], [1, 1], False),
    ("u8", [3, 4], [3, 5], True),
    ("u8", [3, 4], [3, 6], False),
    ("u8", [3, 4], [4, 5], False),
    ("s8", [1] * 20000, [0] * 3 + [1] * 19997, True),
    ("s8", [1] * 20000, [0] * 4 + [1] * 19996, False),
])
def test_compare(dtype, got, wanted, passed):
    assert check(dtype, got, wanted).passed == passed


def test_another_shape_is_too_far():
    value = gq.Graph().input("x", dtype="f32", shape=(1, 2))
    deviation = compare("y", np.ones(2, np.float32), np.ones((1, 2), np.float32), value)
    assert not deviation.passed and str(deviation) == "y: shape [2], not [1, 2]"
