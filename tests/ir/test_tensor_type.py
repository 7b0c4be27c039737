"""Types: texts, sizes and limits; arrays that graphs keep, converted exactly or refused."""
import ml_dtypes
import numpy as np
import pytest

from graphq.dtypes import DTYPES, bf16, f16, f32, f64, s8, s32, s64, u8, u64
from graphq.errors import GraphError
from graphq.ir.names import check_name, choice, counted, listing, quote, suggestion
from graphq.ir.tensor_type import MAX_ELEMENTS, MAX_RANK, TensorType, check_dims, check_size, frozen, shapes_agree


def test_shapes_agree():
    assert shapes_agree(None, (2,)) and shapes_agree((2,), None) and shapes_agree((2, None), (None, 3))
    assert shapes_agree((), ()) and not shapes_agree((2,), (2, 2)) and not shapes_agree((2, 3), (2, 4))
    assert shapes_agree((1, 3), (2, 3), ones=True) and not shapes_agree((1, 3), (2, 3))
    assert not shapes_agree((2, 3), (1, 3), ones=True) and not shapes_agree((1,), (2, 3), ones=True)


def test_types():
    t = TensorType(bf16, (2, 3, 4))
    assert (str(t), t.known, t.dims, t.size, t.nbytes) == ("bf16[2,3,4]", True, (2, 3, 4), 24, 48)
    assert str(TensorType(u8, ())) == "u8[]" and TensorType(u8, ()).size == 1
    for open_, text in (((2, None), "f32[2,?]"), (None, "f32[*]")):
        t = TensorType(f32, open_)
        assert str(t) == text and not t.known
        with pytest.raises(GraphError, match="is not known yet"):
            _ = t.dims


@pytest.mark.parametrize("shape, dims", [(None, None), (3, (3,)), ([2, None], (2, None)), ((), ()),
                                         (np.array([2, 3]), (2, 3)), ([0], (0,))])
def test_dimensions(shape, dims):
    made = check_dims(shape, "x")
    assert made == dims and (made is None or all(d is None or type(d) is int for d in made))


@pytest.mark.parametrize("shape, message", [
    (1.5, "x: a shape must be a list of dimensions, got 1.5"), ([-1], r"must be a non-negative int or None, got -1 in"),
    ([2, 1.5], r"got 1.5 in \[2, 1.5\]"), ([True], "got True"), (["3"], "got '3'")])
def test_dimensions_that_are_refused(shape, message):
    with pytest.raises(GraphError, match=message):
        check_dims(shape, "x")


def test_limits():
    check_size([1] * MAX_RANK, "x")
    with pytest.raises(GraphError, match="x: a shape of 65 dimensions, but NumPy's limit is 64"):
        check_size([1] * (MAX_RANK + 1), "x")
    check_size([MAX_ELEMENTS], "x")
    check_size([2**24, None, 2**24], "x")
    for dims in ([MAX_ELEMENTS + 1], [2**24, 2**24, 2], [0, MAX_ELEMENTS, 2]):
        with pytest.raises(GraphError, match=r"has more than 2\*\*48 elements"):
            check_size(dims, "x")


@pytest.mark.parametrize("value, options, dtype", [
    (1, {}, f32), (2.5, {}, f32), ([1, 2], {}, f32), ([1.5], {}, f32), (np.float64(1), {}, f32), (np.int64(3), {}, f32),
    (np.array([1, 2]), {}, s64), (np.array([1.0]), {}, f32), (np.int8([1]), {}, s8), (np.float16(1), {}, f16),
    (7, {"real": f16}, f16), (np.array([1.0]), {"real": f64}, f64), ([1, 2], {"dtype": s32}, s32),
    (np.int64(3), {"dtype": s64}, s64), (2.0, {"dtype": u8}, u8)])
def test_dtypes_of_arrays(value, options, dtype):
    made = frozen(value, "x", **options)
    assert made.dtype == dtype.numpy and not made.flags.writeable and np.array_equal(made, np.asarray(value))


def test_what_can_change_is_copied():
    array = np.arange(6, dtype=np.float32)
    kept = frozen(array, "x")
    array[0] = 9
    assert kept[0] == 0 and frozen(kept, "x") is not array
    safe = np.frombuffer(bytes(24), np.float32)
    assert frozen(safe, "x") is safe and frozen(safe[1:3], "x").base is not None
    view = array[:]
    view.flags.writeable = False
    assert frozen(view, "x") is not view
    strided = np.frombuffer(bytes(24), np.float32)[::2]
    made = frozen(strided, "x")
    assert made is not strided and made.flags.c_contiguous


@pytest.mark.parametrize("value, dtype, message", [
    (1e39, f32, "1e[+]39 does not fit into f32"), (70000.0, f16, "70000.0 does not fit into f16"),
    ([1, 300], u8, "300 does not fit into u8"), ([-1], u8, "-1 does not fit into u8"), (0.5, s8, "0.5 does not fit"),
    (np.array([2**63], np.uint64), s64, "does not fit into s64"), (np.array([-1]), u64, "-1 does not fit into u64"),
    (2**2000, f32, "an int of 2001 bits does not fit into f32"), ([float("nan")], s8, "nan does not fit")])
def test_numbers_that_do_not_fit(value, dtype, message):
    with pytest.raises(GraphError, match=f"x: .*{message}"):
        frozen(value, "x", dtype)


def test_infinities_and_nan_stay():
    made = frozen([np.inf, -np.inf, np.nan], "x", f16)
    assert np.isposinf(made[0]) and np.isneginf(made[1]) and np.isnan(made[2])
    assert frozen(np.array([np.inf]), "x", DTYPES["bf16"]).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("value, message", [
    ([1, None], "elements must be numbers of one NumPy dtype, got Python objects: NoneType, int"),
    ("abc", "x: "), ([[1], [2, 3]], "x: list is not an array"), ([2**70], "x: ")])
def test_what_is_no_array(value, message):
    with pytest.raises(GraphError, match=message):
        frozen(value, "x", u8 if value == [2**70] else None)


def test_names():
    assert [quote(x) for x in ("abc", "a.b_1", "_x", "1a", "a b", "inf", "none", "return", "graph", "as", "infinite",
                               "", 'q"')] == ["abc", "a.b_1", "_x", '"1a"', '"a b"', '"inf"', '"none"', '"return"',
                                              '"graph"', '"as"', "infinite", '""', '"q\\""']
    check_name("x", "here")
    for bad in ("", None, 3):
        with pytest.raises(GraphError, match=f"here: a name must be a non-empty string, got {bad!r}"):
            check_name(bad, "here")


def test_phrases():
    assert [listing(x) for x in ([1], [1, 2], [1, 2, 3])] == ["1", "1 or 2", "1, 2 or 3"]
    assert listing("ab", "and") == "a and b"
    assert [counted(n, "block") for n in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
    assert suggestion("matmull", ["matmul", "relu"]) == "; did you mean matmul?" and suggestion("zzz", ["relu"]) == ""
    assert suggestion("aaa", ["aab", "aac", "aad", "aae"]).count(",") == 2
    assert suggestion("ab", ["cdab"]) == "; did you mean cdab?" and suggestion("ab", ["cdab"], cutoff=0.7) == ""
    assert choice("zzz", ["a", "b", "a"]) == "; there are a, b"
    assert choice("zzz", [f"n{k}" for k in range(8)]).endswith("n6, n7")
    assert choice("zzz", [f"n{k}" for k in range(10)]).endswith("n6, n7 and 2 more")
    assert choice("n1", ["n1x", "q"]) == "; did you mean n1x?"
