"""How far outputs are from the reference's, for `graphq run --compare` and for the cases of benchmarks/benchdnn.py."""
from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from graphq.dtypes import DType
from graphq.ir import Value


@dataclass(frozen=True)
class Deviation:
    """The distance of a compiled graph's output from the reference's, and whether it is small enough.

    `output` is its name, `text` the distance in words ("2 steps, in 1.0e-03 of the elements"), and `passed` says
    whether it is within the limits of `compare`.
    """

    output: str
    text: str
    passed: bool

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


def compare(name: str, got: np.ndarray, wanted: np.ndarray, value: Value) -> Deviation:
    """How far `got`, the output `name`, is from the reference's result `wanted`; `value` has its dtype.

    Integers pass if at most 1 + size / 10,000 elements differ, each by one step. Other numbers pass if they differ by
    at most 1e-5 of the largest element in f32 and f64, by 2 ulp in bf16 and f16, and by 1 ulp in narrower floats. Other
    shapes, and NaN or infinities at other places, do not pass.
    """
    dtype = value.dtype
    if got.shape != wanted.shape:
        return Deviation(name, f"shape {list(got.shape)}, not {list(wanted.shape)}", False)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Deviation(name, "equal", True)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not (same | np.isfinite(a)).all():
        return Deviation(name, f"not finite in {np.count_nonzero(~(same | np.isfinite(a)))} elements", False)
    apart = np.abs(a - b)[~same]
    share = apart.size / a.size
    if dtype.kind in ("int", "bool"):
        passed = bool(apart.max() <= 1 and share <= 1e-4 + 1 / a.size)
        return Deviation(name, f"{int(apart.max())} steps, in {share:.1e} of the elements", passed)
    largest = float(np.abs(b[np.isfinite(b)]).max())
    if dtype.bits >= 32:
        ratio = float(apart.max()) / max(largest, 1e-30)
        return Deviation(name, f"{ratio:.1e} of the largest", ratio <= 1e-5)
    ulps = float((apart / _ulp(b[~same], dtype)).max())
    passed = ulps <= (1 if dtype.bits <= 8 else 2)
    return Deviation(name, f"{ulps:.1f} ulp, in {share:.1e} of the elements", passed)


def _ulp(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between neighbouring numbers of a narrow float type, at each element of `x`."""
    info = ml_dtypes.finfo(dtype.numpy)
    exponent = np.frexp(np.abs(x))[1] - 1
    return np.maximum(np.ldexp(1.0, exponent - info.nmant), float(info.smallest_subnormal))
