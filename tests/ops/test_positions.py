"""non_zero, unique, bit_cast and tensor_scatter against the specification, and what they refuse."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError
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


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "s8"])
def test_unique(dtype, axis, ordered):
    """Against a dictionary of the elements or slices, in the order of their first places."""
    unique = lookup("unique").reference
    for _ in range(5):
        x = whole(*rng.integers(1, 5, 3), dtype=DTYPES[dtype].numpy)
        rows = [s.astype(np.float32).ravel().tolist() for s in ([x[p] for p in np.ndindex(*x.shape)] if axis is None
                                                                 else np.moveaxis(x, axis, 0))]
        first = {tuple(row): rows.index(row) for row in rows}
        keys = sorted(first) if ordered else list(first)
        y, places, inverse, counts = unique(x, axis=axis, sorted=ordered)
        assert y.dtype == x.dtype and {a.dtype for a in (places, inverse, counts)} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(y, np.take(x.ravel() if axis is None else x, [first[k] for k in keys], axis or 0))
        assert places.tolist() == [first[k] for k in keys] and counts.tolist() == [rows.count(list(k)) for k in keys]
        assert inverse.tolist() == [keys.index(tuple(row)) for row in rows]


def test_unique_types(infer):
    rest = ("s64[?]",) * 3
    assert infer("unique", "f32[2,3]") == infer("unique", "f32[*]") == ("f32[?]", *rest)
    assert infer("unique", "f32[2,3]", axis=-1) == ("f32[2,?]", *rest)
    assert infer("unique", "f32[*]", axis=1) == ("f32[*]", *rest)
    with pytest.raises(GraphError, match="axis must be in .* got 2"):
        infer("unique", "f32[2,3]", axis=2)


def test_bit_cast(run, infer):
    x = rng.standard_normal(9).astype(np.float32)
    np.testing.assert_array_equal(run("bit_cast", run("bit_cast", x, dtype="s32"), dtype="f32"), x)
    assert run("bit_cast", np.uint8([0, 1, 2]), dtype="boolean").tolist() == [False, True, True]
    codes = np.arange(-8, 8).astype(DTYPES["s4"].numpy)
    assert run("bit_cast", codes, dtype="u4").astype(int).tolist() == [*range(8, 16), *range(8)]
    assert infer("bit_cast", "f16[2,?]", dtype="bf16") == "bf16[2,?]"
    with pytest.raises(GraphError, match="dtype must have 32 bits as .*, got u8"):
        infer("bit_cast", "f32[2]", dtype="u8")


def test_tensor_scatter_types(infer):
    assert infer("tensor_scatter", "f32[2,?,4]", "f32[2,3,?]", "s64[2]") == "f32[2,?,4]"
    for types in (("f32[2,3,4]", "f32[2,4,4]"), ("f32[2,3,4]", "f32[2,1,3]"), ("f32[2,3,4]", "f32[2,1]")):
        with pytest.raises(GraphError, match="does not fit into"):
            infer("tensor_scatter", *types)
    with pytest.raises(GraphError, match="along axis 0, which may not be 0"):
        infer("tensor_scatter", "f32[2,4]", "f32[1,4]", axis=0)
    with pytest.raises(GraphError, match="a place for each of 2"):
        infer("tensor_scatter", "f32[2,3,4]", "f32[2,3,4]", "s64[3]")
