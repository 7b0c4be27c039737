"""Trigonometric and hyperbolic functions against wider floats, or against C's: correctly rounded, over all of f32."""
import math

import numpy as np
import pytest

rng = np.random.default_rng(64)
WIDE = np.finfo(np.longdouble).nmant > 60
"""Whether long doubles are wider than f64: then f64 results that round to the wrong f32 show."""
NAMES = {"sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
         "sinh": "sinh", "cosh": "cosh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
EDGES = np.float32([0, -0.0, 1, -1, 0.75, np.nextafter(np.float32(0.75), np.float32(0)), 1e-45, -1e-40, 3.4028235e38,
                    89, 89.5, -89.5, np.pi / 2, np.pi, 1e7, 2**24, np.inf, -np.inf, np.nan])
X = np.concatenate([EDGES, rng.integers(0, 2**32, 20000, np.uint64).astype(np.uint32).view(np.float32),
                    *(rng.uniform(-a, a, 10000).astype(np.float32) for a in (1, 100))])


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_the_rounded_exact_result(run, name):
    got = run(name, X)
    with np.errstate(all="ignore"):
        want = getattr(np, NAMES[name])(X.astype(np.longdouble)).astype(np.float32)
    if not WIDE:
        np.testing.assert_array_almost_equal_nulp(got[np.isfinite(got)], want[np.isfinite(got)], 1)
    else:
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(got))


def test_angles_that_are_nearly_multiples_of_a_right_angle(run):
    """Reduction by an f64 pi would lose all digits of these."""
    x = np.float32([16367173 * 2.0**72, 6381956970095103 * 2.0**797 % 2.0**127, 13493038.0, 5.319372648326541e37])
    with np.errstate(all="ignore"):
        np.testing.assert_array_almost_equal_nulp(run("cos", x), np.float32([math.cos(v) for v in x]), 1)
        np.testing.assert_array_almost_equal_nulp(run("tan", x), np.float32([math.tan(v) for v in x]), 1)


@np.errstate(all="ignore")
def test_narrow_floats_are_rounded_from_f32(run, float_dtype):
    from graphq.dtypes import DTYPES

    x = rng.uniform(-1, 1, 100).astype(DTYPES[float_dtype].numpy)
    for name in NAMES:
        want = run(name, x.astype(np.float32)).astype(x.dtype)
        np.testing.assert_array_equal(run(name, x).view(f"u{x.itemsize}"), want.view(f"u{x.itemsize}"))
