"""The sums of bf16 in pairs, beside exact fractions that are rounded here."""
from fractions import Fraction

import numpy as np
import pytest
from float_arrays import float_array, tiny_arrays

from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.numbers.float_sums import BLOCK, float_sums, tile_sums

SMALLEST = Fraction(1, 2**126)


def rounded(x):
    """A fraction as f32 to nearest even, with an exponent without bounds; 0 below the smallest normal number."""
    if x == 0:
        return x
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2)**exponent
    unit = Fraction(2)**(exponent - 23)
    near = round(x / unit) * unit  # round() takes ties to even
    return near if abs(near) >= SMALLEST else Fraction(0)


def fraction(x):
    return Fraction(float(x)) if abs(float(x)) >= SMALLEST else Fraction(0)


def stated(a, w):
    """The sum of one row and one column as docs/numbers.md states it."""
    total = Fraction(0)
    for start in range(0, len(a), BLOCK):
        chain = Fraction(0)
        for k in range(start, min(start + BLOCK, len(a)), 2):
            for i in (k + 1, k):
                if i < len(a):
                    chain = rounded(chain + fraction(a[i]) * fraction(w[i]))
        total = rounded(total + chain)
    return float(total)


@pytest.mark.parametrize("k", [0, 1, 2, 7, BLOCK + 5])
@pytest.mark.parametrize("tiny", [True, False])
def test_pairs_of_bf16(k, tiny):
    a, w = tiny_arrays(3, k, 5) if tiny else (float_array("bf16", (3, k)), float_array("bf16", (k, 5)))
    wanted = [[stated(row, column) for column in w.T] for row in a]
    assert np.array_equal(tile_sums(a, w), np.array(wanted, np.float32).reshape(3, 5))


@pytest.mark.parametrize("part, wanted", [(2**-150, 0), (1.5 * 2**-151, 0), (2**-151, 2**-126)])
def test_a_sum_is_subnormal_or_not_before_it_is_rounded_to_a_subnormal_number(part, wanted):
    """2^-126 - 2^-150 lies between 2^-126 and the next subnormal number, and is not a f32 of 24 bits above either."""
    one, small = 2.0**-63, 2.0**-75
    a = np.array([[-small, one]], np.float32).astype(STORAGE["bf16"])
    w = np.array([[part / small], [one]], np.float32).astype(STORAGE["bf16"])
    assert tile_sums(a, w) == np.float32(wanted)


def test_zeros_keep_their_signs_and_other_types_their_order():
    a, w = (np.array(x, np.float32).astype(STORAGE["bf16"]) for x in ([[-1e-40, 0]], [[1], [0]]))
    assert np.signbit(tile_sums(a, w)).tolist() == [[False]]  # blocks add to +0
    for dtype in ("f32", "f16"):
        a, w = float_array(dtype, (4, 9), 1), float_array(dtype, (9, 3), 2)
        assert np.array_equal(tile_sums(a, w), float_sums(a, w))


@pytest.mark.parametrize("batch, other", [((2, 3), (2, 3)), ((2, 1), (3,)), ((2,), ()), ((), (2,))])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_batches_are_summed_one_by_one(dtype, batch, other):
    """Of an odd number of products."""
    a, w = float_array(dtype, (*batch, 4, 7), 1), float_array(dtype, (*other, 7, 5), 2)
    got, outer = tile_sums(a, w), np.broadcast_shapes(batch, other)
    many, more = np.broadcast_to(a, (*outer, 4, 7)), np.broadcast_to(w, (*outer, 7, 5))
    assert got.shape == (*outer, 4, 5)
    for k in np.ndindex(outer):
        assert np.array_equal(got[k], tile_sums(many[k], more[k]))
