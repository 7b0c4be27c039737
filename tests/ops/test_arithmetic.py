"""Arithmetic of integers and f64, choose and cast: numbers by hand, what wraps, and what is refused."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES, bf16, boolean, f32
from graphq.errors import GraphError, InputError

A, B = np.int64([7, -7, 7, -7, 0, 6]), np.int64([3, 3, -3, -3, 5, -2])
VALUES = {"add": [10, -4, 4, -10, 5, 4], "subtract": [4, -10, 10, -4, -5, 8], "multiply": [21, -21, -21, 21, 0, -12],
          "divide": [2, -2, -2, 2, 0, -3], "maximum": [7, 3, 7, -3, 5, 6], "minimum": [3, -7, -3, -7, 0, -2],
          "modulo": [1, 2, -2, -1, 0, 0], "remainder": [1, -1, 1, -1, 0, 0], "and": [3, 1, 5, -7, 0, 6],
          "or": [7, -5, -1, -3, 5, -2], "xor": [4, -6, -6, 4, 5, -8]}
DIVISIONS = ("divide", "modulo", "remainder")


@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "s64"])
@pytest.mark.parametrize("function", VALUES)
def test_integers(run, function, dtype):
    a, b = (x.astype({"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64}[dtype]) for x in (A, B))
    np.testing.assert_array_equal(run("arithmetic", a, b, function=function), VALUES[function])
    np.testing.assert_array_equal(run("arithmetic", a[:1, None], b, function=function)[0, :2],
                                  [VALUES[function][0]] * 2)  # of two shapes


def test_integers_without_a_sign_wrap(run):
    a, b = np.uint8([200, 3, 7]), np.uint8([100, 5, 2])
    for function, want in {"add": [44, 8, 9], "subtract": [100, 254, 5], "multiply": [32, 15, 14],
                           "divide": [2, 0, 3], "modulo": [0, 3, 1], "remainder": [0, 3, 1]}.items():
        np.testing.assert_array_equal(run("arithmetic", a, b, function=function), want)


def test_shifts_beyond_the_width_leave_the_sign(run):
    """By Python's integers, which have no width."""
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        x = np.array([1, 5, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
        for n in (0, 1, 7, 8, 40, 64, 100):
            bits = np.full(4, n, dtype)
            assert run("arithmetic", x, bits, function="shift_right").tolist() == [v >> n for v in x.tolist()]
            want = np.array([(v << n) % 2**(8 * x.itemsize) for v in x.tolist()], f"u{x.itemsize}").view(dtype)
            np.testing.assert_array_equal(run("arithmetic", x, bits, function="shift_left"), want)


@pytest.mark.parametrize("function", DIVISIONS)
def test_an_integer_divided_by_zero(run, function):
    with pytest.raises(InputError, match="an integer is divided by zero"):
        run("arithmetic", A, np.int64([1, 2, 3, 4, 0, 6]), function=function)


def test_floats_divided_by_zero(run):
    a = np.float64([1, -1, 0])
    np.testing.assert_array_equal(run("arithmetic", a, np.zeros(3), function="divide"), [np.inf, -np.inf, np.nan])
    for zero in (np.zeros(3), np.zeros(3, np.float32)):
        assert np.isnan(run("arithmetic", a.astype(zero.dtype), zero, function="remainder")).all()
    for dtype in (np.float64, np.float32, np.float16, bf16.numpy):
        a, b = np.array([5.5, -5.5, 5.5, -5.5], dtype), np.array([2, 2, -2, -2], dtype)
        assert run("arithmetic", a, b, function="remainder").astype(float).tolist() == [1.5, -1.5, 1.5, -1.5]
        assert run("arithmetic", a, b, function="modulo").astype(float).tolist() == [1.5, 0.5, -0.5, -1.5]


@pytest.mark.parametrize("types, function", [
    (("f32[4]", "f32[4]"), "add"), (("f64[4]", "f64[4]"), "xor"),
    
    (("boolean[4]", "boolean[4]"), "add"), (("s32[4]", "s64[4]"), "add"), (("s32[4]", "s32[3]"), "add")])
def test_what_arithmetic_refuses(infer, types, function):
    with pytest.raises(GraphError):
        infer("arithmetic", *types, function=function)


def test_choose(run, infer):
    cond, a, b = np.array([[True], [False]]), np.int8([1, 2, 3]), np.int8([[7]])
    np.testing.assert_array_equal(run("choose", cond, a, b), [[1, 2, 3], [7, 7, 7]])
    assert infer("choose", "boolean[2,1]", "f64[3]", "f64[]") == "f64[2,3]"
    for types in (("s8[2]", "f32[2]", "f32[2]"), ("boolean[2]", "f32[2]", "f64[2]"), ("boolean[2]", "u4[2]", "u4[2]")):
        with pytest.raises(GraphError):
            infer("choose", *types)


@pytest.mark.parametrize("dtype, least, most", [("s8", -128, 127), ("u8", 0, 255), ("s32", -2**31, 2**31 - 1),
                                                ("u32", 0, 2**32 - 1), ("s64", -2**63, 2**63 - 1),
                                                ("u64", 0, 2**64 - 1)])
def test_casts_of_floats_to_integers(run, dtype, least, most):
    """Towards zero; beyond the range its nearest end, at the very end too; NaN is 0."""
    ends = np.float64([most + 1, float(least) * 2 - 1, np.inf, -np.inf, np.nan, 1e300])
    assert run("cast", ends, dtype=dtype).tolist() == [most, least, most, least, 0, most]
    assert run("cast", np.float64([1.9, 0.5, -0.9, -0.0]), dtype=dtype).tolist() == [1, 0, 0, 0]
    if dtype[1:] in ("8", "32"):
        inside = np.float64([most, most + 0.5, least, least - 0.5])
        assert run("cast", inside, dtype=dtype).tolist() == [most, most, least, least]
    assert run("cast", np.float32([2, 3]), dtype=dtype).tolist() == [2, 3]


def test_other_casts(run, infer):
    assert run("cast", np.int32([300, -1, 128]), dtype="u8").tolist() == [44, 255, 128]
    assert run("cast", np.float32([0, -0.0, 0.25, np.nan, -3]), dtype=boolean).tolist() == [False, False, True, True,
                                                                                         True]
    assert run("cast", np.array([True, False]), dtype="s8").tolist() == [1, 0]
    assert run("cast", np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8]), dtype=bf16).astype(np.float32).tolist() == [
        1, 1 + 2.0**-6]  # ties to even
    assert run("cast", np.int32([2**24 + 1]), dtype=f32).tolist() == [2**24]
    assert infer("cast", "u4[2,?]", dtype="f6_e2m3") == "f6_e2m3[2,?]"


def values(dtype):
    """All numbers of a dtype of at most 8 bits, as f64: by its bits, or by its range."""
    if dtype.kind != "float":
        return np.arange(int(dtype.min), int(dtype.max) + 1)
    return np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float64)


@pytest.mark.parametrize("source", [t for t in DTYPES.values() if t.bits <= 8], ids=str)
def test_casts_of_every_value_of_small_types(run, source):
    """To the nearest value of the target, found by comparing distances; integers wrap by Python's modulo."""
    x = values(source)
    for target in (t for t in DTYPES.values() if t.bits <= 8 and t.name not in ("boolean", "f8_e8m0")):
        got = run("cast", x.astype(source.numpy), dtype=target).astype(np.float64)
        for v, y in zip(x.tolist(), got.tolist(), strict=True):
            if target.kind == "int":
                low, high = int(target.min), int(target.max)
                whole = 0 if v != v else int(min(max(v, -2.0**31), 2.0**31 - 1))
                want = min(max(whole, low), high) if source.kind == "float" and target.bits == 8 else \
                    (whole - low) % 2**target.bits + low
                assert y == want, (target, v)
            elif v != v:
                assert y != y if target.bits == 8 else y == 0, target
            else:
                finite = (z := values(target))[np.isfinite(z)]
                inside = min(max(v, finite.min()), finite.max())
                assert abs(y - inside) == abs(finite - inside).min(), (target, v)


def test_casts_to_powers_of_two(run):
    """Magnitudes are rounded up, as far as there are greater powers."""
    x = np.float32([0, 1, -1, 1.25, 3, 2.0**-127, 2.0**-126 * 1.5, 3e38, np.inf, np.nan, 1e-45])
    got = run("cast", x, dtype="f8_e8m0").astype(np.float64)
    want = [2.0**-127, 1, 1, 2, 4, 2.0**-126, 2.0**-125, 2.0**127, np.nan, np.nan, 2.0**-126]
    np.testing.assert_array_equal(got, want)
