"""Operations on positions against loops over the specification's formulas, and what they refuse."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.ir.op import lookup

rng = np.random.default_rng(65)


def whole(*shape, dtype=np.float32):
    return rng.integers(-2, 3, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s64", "u8", "boolean"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_non_zero(infer, shape, dtype):
    x = whole(*shape).astype(DTYPES[dtype].numpy)
    got = lookup("non_zero").reference(x)
    want = [place for place in np.ndindex(*shape) if x[place]]
    assert got.dtype == np.int64 and got.shape == (len(shape), len(want)) and list(map(tuple, got.T)) == want
    assert infer("non_zero", f"{dtype}[{','.join(map(str, shape))}]") == f"s64[{len(shape)},?]"
