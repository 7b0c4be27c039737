"""The range of a tensor: scale and zero point equal the operation's reference, of any size and special values."""
import numpy as np
import pytest
from guarded_memory import guarded

from graphq.kernels.moves.extremes import plan_range
from graphq.kernels.target.isa import LEVELS
from graphq.ops.matmul import dynamic_range
from graphq.plan.plan import Target

RNG = np.random.default_rng(7)
VALUES = {
    "both signs": lambda x: x, "positive": lambda x: abs(x) + 1, "negative": lambda x: -abs(x) - 1,
    "zero": lambda x: x * 0, "constant": lambda x: np.full_like(x, 3), "subnormal": lambda x: x * np.float32(1e-44),
    "huge": lambda x: np.sign(x) * np.float32(3e38),
}
SPECIAL = {"nan": [np.nan], "inf": [np.inf], "-inf": [-np.inf], "both infinities": [np.inf, -np.inf],
           "nan after inf": [np.inf, np.nan], "-nan": [-np.nan]}


def scale_and_zero_point(x, threads):
    """What the kernels store, on memory that ends with the tensor."""
    source, found = guarded(x), np.zeros(2 * 64, np.float32)
    scale, zp = np.zeros(1, np.float32), np.zeros(1, np.uint8)
    extremes, last = plan_range(x.size, Target(LEVELS[0], threads))
    assert extremes.blocks <= 64
    extremes.run(extremes.arguments({"source": source.ctypes.data, "extremes": found.ctypes.data}))
    last.run(last.arguments({"extremes": found.ctypes.data, "scale": scale.ctypes.data, "zero_point": zp.ctypes.data}))
    return scale[0], zp[0]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 15, 63, 64, 65, 1000, 1024, 1025, 70_001, 300_000])
def test_any_count(count, threads):
    for name, change in VALUES.items():
        with np.errstate(all="ignore"):
            x = change(RNG.standard_normal(count).astype(np.float32))
        assert scale_and_zero_point(x, threads) == dynamic_range.reference(x), name


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("count", [2, 65, 20_000])
def test_special_values_at_any_place(special, count):
    for _ in range(5):
        x = RNG.standard_normal(count).astype(np.float32)
        x[RNG.choice(count, len(SPECIAL[special]), replace=False)] = SPECIAL[special]
        got, want = scale_and_zero_point(x, 2), dynamic_range.reference(x)
        assert np.array_equal(got[0], want[0], equal_nan=True) and got[1] == want[1]


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("first", [True, False])
def test_special_values_in_the_first_and_the_last_of_several_blocks(special, first):
    x = RNG.standard_normal(300_000).astype(np.float32)
    assert plan_range(x.size, Target(LEVELS[0], 2))[0].blocks > 1
    x[:len(SPECIAL[special])] = SPECIAL[special]
    x = x if first else x[::-1].copy()
    got, want = scale_and_zero_point(x, 2), dynamic_range.reference(x)
    assert np.array_equal(got[0], want[0], equal_nan=True) and got[1] == want[1]


@pytest.mark.parametrize("x, scale, zp", [
    ([0, 2, -3, -2.5, 1.34, 0.5], 0.0196078438, 153), ([-1, -2.1, -1.3, -2.5, -3.34, -4], 0.0156862754, 255),
    ([1, 2.1, 1.3, 2.5, 3.34, 4, 1.5, 2.6, 3.9, 4, 3, 2.345], 0.0156862754, 0)])
def test_the_examples_of_the_specification(x, scale, zp):
    assert scale_and_zero_point(np.array(x, np.float32), 1) == (np.float32(scale), zp)
