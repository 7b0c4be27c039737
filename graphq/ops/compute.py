"""How the operations' NumPy bodies round: decorators that widen the operands of a body and round its results.

Arithmetic runs in f32, one IEEE operation at a time; transcendental functions run in f64 and are rounded to f32 once,
so that results do not depend on the CPU. bf16 and f16 results are rounded from that f32. NumPy's warnings are
suppressed.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
Body: TypeAlias = Callable[..., Any]


def quiet(f: Body) -> Body:
    """Run `f` with NumPy's floating point warnings off: infinities and NaN are values like others here."""

    @functools.wraps(f)
    def run(*args: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args, **attrs)

    return run


def in_f32(f: Body) -> Body:
    """Run the body on f32 operands; s32 operands stay s32.

    The result has the dtype of the attribute `dtype`. Without it, or if it is None, it has the dtype of the operands,
    or f32 if they differ.
    """
    return _computed_in(np.dtype(np.float32), f)


def in_f64(f: Body) -> Body:
    """Run the body on f64 operands and round to f32 once, then to the operands' dtype."""
    return _computed_in(np.dtype(np.float64), f)


def _computed_in(wide: np.dtype, f: Body) -> Body:
    @quiet
    @functools.wraps(f)
    def run(*args: Array, **attrs: Any) -> Array:
        dtypes = {a.dtype for a in args}
        out = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        if attrs.get("dtype") is not None:
            out = attrs["dtype"].numpy
        if out == np.int32:
            return np.asarray(f(*args, **attrs), dtype=out)
        return rounded(f(*(a.astype(wide) for a in args), **attrs), out)

    return run


def rounded(y: Any, dtype: np.dtype) -> Array:
    """`y` rounded to f32, and from there to `dtype`."""
    return np.asarray(np.asarray(y).astype(np.float32).astype(dtype))


def widened(x: Array) -> Array:
    """A float array as f32, which is exact; an s32 array as it is."""
    return x if x.dtype == np.int32 else x.astype(np.float32)


def limited(x: Array, low: float, high: float) -> Array:
    """`x` limited to [low, high] as f32; NaN stays, and so does the sign of a zero."""
    a, b = np.float32(low), np.float32(high)
    return np.where(x < a, a, np.where(x > b, b, x))


@np.vectorize(otypes=[np.float64])
def c_erf(x: float) -> float:
    """The error function in f64, from the C library."""
    return math.erf(x)


@np.vectorize(otypes=[np.float64])
def erfc(x: float) -> float:
    """The complementary error function in f64, from the C library."""
    return math.erfc(x)
