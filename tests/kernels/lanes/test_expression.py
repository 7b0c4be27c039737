"""Expressions: building and refusing, the NumPy meaning, and pickled stores."""
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.lanes import elementary, quantizing
from graphq.kernels.lanes import expression as ex
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import STORAGE, acc, const, fused, load, op

X, Y = load(0, "f32", "vector"), load(1, "f32", "row")


def test_equal_expressions_are_one_object():
    assert (X + 1.0) * Y is (X + 1.0) * Y
    assert X + Y is not Y + X
    assert const(0.0) is not const(-0.0)
    assert const(float("nan")) is const(float("nan"))
    assert const(0.1) is const(float(np.float32(0.1)))
    assert Epilogue(X, "f32") == Epilogue(X, "f32") != Epilogue(X, "f16")
    assert len({Epilogue(X, "f32"), Epilogue(X + 0.0, "f32"), Epilogue(X, "f32")}) == 2


@pytest.mark.parametrize(("build", "message"), [
    (lambda: op("cosine", X), "unknown operation 'cosine'"),
    (lambda: op("add", X), r"add\(f32\): takes"),
    (lambda: X + acc(), r"add\(f32, s32\): takes"),
    (lambda: op("select", X, X, X), r"select\(f32, f32, f32\)"),
    (lambda: op("shl", acc(), acc()), "the shift count must be a constant"),
    (lambda: op("shl", acc(), 32), "the shift count must be a constant"),
    (lambda: acc() + 0.5, r"const\(0.5, 's32'\)"),
    (lambda: acc() + 2**31, "not a number of this type"),
    (lambda: load(-1, "f32", "vector"), r"load\(-1"),
    (lambda: load(0, "f64", "vector"), "dtypes are f32"),
    (lambda: load(0, "f32", "diagonal"), "kinds vector, row, column, scalar"),
    (lambda: load(0, "f32", "table"), "table of s8 and u8"),
    (lambda: op("lookup", X, acc()), r"lookup\(f32, s32\): takes"),
    (lambda: load(0, "u8", "table") + 1, r"add\(table, number\): takes"),
    (lambda: Epilogue(load(0, "u8", "table"), "u8"), "a table expression cannot be stored as u8"),
    (lambda: Epilogue(X, "u8"), "a f32 expression cannot be stored as u8"),
    (lambda: Epilogue(X < Y, "u8"), "a bool expression cannot be stored as u8"),
    (lambda: Epilogue(X + load(0, "f32", "row"), "f32"), "a slot is loaded in two ways"),
    (lambda: evaluate(X, None, [np.zeros(3)]), "operand 0 is float64, the expression loads f32"),
    (lambda: ex.define("f32 -> f32")(elementary.exp), "a second operation named 'exp'"),
    (lambda: X if X > 0 else -X, "<gt: bool> has no truth value, .* use select instead of `if`"),
    (lambda: max(X, 0), "has no truth value, .* maximum and minimum instead of max and min"),
    (lambda: ex.select(X == 0, X, X), r"select\(False, .* op\('eq', a, b\) compares in each lane"),
])
def test_bad_expressions_are_refused(build, message):
    with pytest.raises(KernelError, match=message):
        build()


def test_a_store_knows_its_operands():
    epilogue = Epilogue(op("to_f32", acc()) * load(2, "f32", "vector") + Y, "bf16")
    assert epilogue.loads == ((1, "f32", "row"), (2, "f32", "vector"))
    assert (epilogue.slots, epilogue.uses_acc) == (3, True)
    assert (Epilogue(const(1.0), "f32").slots, Epilogue(X, "f32").uses_acc) == (0, False)


def test_arithmetic_is_f32_one_operation_at_a_time():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 50)).astype(np.float32)
    got = evaluate((X * Y + 0.1) / 3.0 - X, None, [x, y])
    expected = ((x * y + np.float32(0.1)) / np.float32(3)) - x
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


def nearest(x):
    """The f32 nearest to a Fraction, ties to even."""
    size = abs(x)
    exponent = -149
    while size >= Fraction(2) ** (exponent + 24):
        exponent += 1
    rounded = round(size / Fraction(2) ** exponent) * Fraction(2) ** exponent  # round() takes ties to even
    return np.float32(np.inf if rounded >= 2**128 else float(rounded)) * np.float32(-1 if x < 0 else 1)


def test_fused_rounds_the_exact_sum_once():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 3000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    c = rng.integers(0, 2**32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        near = a[:1000] * b[:1000] * np.float32(-1 + 2.0**-23)  # cancels nearly all of the product
    small = rng.integers(1, 200, 1000).astype(np.float32) * np.float32(2.0**-75)  # subnormal sums, ties among them
    a, b, c = (np.concatenate(x) for x in ((a, a[:1000], small), (b, b[:1000], small[::-1]),
                                           (c, near, small * np.float32(2.0**-74))))
    one = np.float32(1)  # ties of the f64 sum that f32's bits do not show: 1 + 2**-24 + something tiny
    ties = [(one, one + np.float32(2.0**-23), t) for t in np.float32([2.0**-24, -2.0**-24, 3e-45, -3e-45])]
    ties += [(np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), t) for t in np.float32([1e-40, -1e-40, 0])]
    triples = [*zip(a, b, c, strict=True), *ties]
    for x, y, z in triples:
        if np.isfinite([x, y, z]).all():
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            got = fused(x, y, z)
            assert got.dtype == np.float32 and got == nearest(exact), (x, y, z)


@pytest.mark.parametrize("end", [np.inf, -np.inf])
def test_infinite_sums_of_both_signs_stay(end):
    one, large, end = np.float32(1), np.float32(3e38), np.float32(end)
    for terms in ((one, one, end), (end, one, one), (-end, -one, one), (np.copysign(large, end), large, one)):
        assert fused(*terms) == end
    beside = fused(np.float32([0.1, 1]), np.float32(0.3), np.array([0.7, end], np.float32))
    assert beside[0] == fused(np.float32(0.1), np.float32(0.3), np.float32(0.7)) and beside[1] == end


def test_fused_follows_ieee_at_the_edges():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    assert fused(inf, np.float32(2), np.float32(1)) == inf and np.isnan(fused(inf, np.float32(1), -inf))
    assert np.isnan(fused(inf, np.float32(0), np.float32(1))) and np.isnan(fused(np.float32(1), np.float32(1), nan))
    assert np.signbit(fused(np.float32(-1e-30), np.float32(1e-30), np.float32(0)))  # underflows to -0
    assert not np.signbit(fused(np.float32(1), np.float32(-2), np.float32(2)))  # cancels to +0
    assert fused(np.ones((2, 1), np.float32), np.ones(3, np.float32), np.float32(1)).shape == (2, 3)


def test_integers_wrap():
    x = np.array([2**31 - 1, -(2**31), 70_000], np.int32)
    a = load(0, "s32", "vector")
    np.testing.assert_array_equal(evaluate(a + 1, None, [x]), np.array([-(2**31), -(2**31) + 1, 70_001], np.int32))
    np.testing.assert_array_equal(evaluate(a * a, None, [x]), (x.astype(np.int64)**2).astype(np.int32))
    np.testing.assert_array_equal(evaluate(op("shr", a, 28), None, [x]), [7, 8, 0])
    np.testing.assert_array_equal(evaluate(op("sar", a, 28), None, [x]), [7, -8, 0])
    assert evaluate(const(2**31 - 1, "s32") + 1, None, []) == -(2**31)  # scalars too, without a warning


def test_max_and_min_take_the_second_operand_on_nan_and_zeros():
    x, y = np.array([np.nan, 1, -0.0, 0.0], np.float32), np.array([1, np.nan, 0.0, -0.0], np.float32)
    for f in (ex.maximum, ex.minimum):
        got = evaluate(f(X, Y), None, [x, y])
        np.testing.assert_array_equal(got.view(np.int32), y.view(np.int32))


@pytest.mark.parametrize("dtype", STORAGE)
def test_every_storage_type_loads_exactly_and_stores_back(dtype):
    if STORAGE[dtype].itemsize < 4:
        x = np.arange(1 << 8 * STORAGE[dtype].itemsize, dtype=np.uint32).astype(f"u{STORAGE[dtype].itemsize}")
    else:
        x = np.array([0, 1, 0x7F7FFFFF, 0x80000000, 0x80000001, 0xFF800000], np.uint32)
    x = x.view(STORAGE[dtype])
    loaded = evaluate(load(0, dtype, "vector"), None, [x])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.testing.assert_array_equal(loaded.astype(np.float64), x.astype(np.float64))
    stored = evaluate(Epilogue(load(0, dtype, "vector"), dtype), None, [x])
    assert stored.dtype == STORAGE[dtype]
    with np.errstate(invalid="ignore"):
        number = x == x
        np.testing.assert_array_equal(stored[number].view(np.uint8), x[number].view(np.uint8))
        assert np.isnan(stored[~number].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats_round_to_nearest_even(dtype):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65519.9, 65520, 3.4e38,
                                     2**-25, 2**-24 * 1.5, np.inf, -np.inf], np.float32)])
    got = evaluate(Epilogue(X, dtype), None, [x])
    with np.errstate(all="ignore"):
        expected = x.astype(STORAGE[dtype])
    number = x == x
    np.testing.assert_array_equal(got[number].view(np.uint16), expected[number].view(np.uint16))
    assert np.isnan(got[~number].astype(np.float32)).all()


def test_operands_broadcast():
    a = np.arange(6, dtype=np.int32).reshape(2, 3)
    rows, scalar = np.array([[10], [20]], np.int8), np.array(0.5, np.float32)
    expr = op("to_f32", acc() + load(0, "s8", "row")) * load(1, "f32", "scalar")
    np.testing.assert_array_equal(evaluate(expr, a, [rows, scalar]), (a + rows) * np.float32(0.5))


def test_a_store_is_pickled_and_has_a_text_of_its_own():
    y = elementary.gelu_erf(op("to_f32", acc() + load(0, "s32", "vector")) * load(1, "f32", "vector"))
    y = ex.select(y < float("inf"), y * 1e-45, const(-0.0)) + 0.1
    epilogue = Epilogue(quantizing.quantize(y, load(2, "f32", "scalar"), 3.0, "u8"), "u8")
    again = pickle.loads(pickle.dumps(epilogue))
    assert again == epilogue and again.expr is epilogue.expr and repr(again) == repr(epilogue)
    assert repr(epilogue).startswith("Epilogue((('acc', (), 's32', None), ('load', (), 's32', (0, 's32', 'vector')), "
                                     "('add', (0, 1), 's32', None), ('to_f32', (2,), 'f32', None), ")
    others = [Epilogue(x, "f32") for x in (y, y + 0.0, y + -0.0, y + y, acc("f32"))]
    others += [Epilogue(acc(), dtype) for dtype in ("s32", "s8", "u8")]
    assert len({repr(x) for x in (epilogue, *others)}) == 1 + len(others)


def test_long_chains_need_no_recursion():
    y = X
    for _ in range(3000):
        y = y + 1.0
    assert evaluate(y, None, [np.zeros(1, np.float32)]) == 3000
    epilogue = Epilogue(y, "f32")
    assert repr(epilogue).count("'add'") == 3000
    assert pickle.loads(pickle.dumps(epilogue)) == epilogue


def test_shared_parts_are_evaluated_once():
    y = X
    for _ in range(200):  # 2**200 paths
        y = y + y
    assert evaluate(y * 2.0**-100 * 2.0**-100, None, [np.ones(1, np.float32)]) == np.inf


@pytest.mark.parametrize("value, dtype, kept", [
    (2**31 - 1, "s32", 2**31 - 1), (-2**31, "s32", -2**31), (2**31, "s32", None), (-2**31 - 1, "s32", None),
    (3.0, "s32", 3), (0.5, "s32", None), (True, "bool", True), (0, "bool", False), (7, "bool", True), (1, "u8", None),
    (1e39, "f32", np.inf), (-1e39, "f32", -np.inf), (0.1, "f32", float(np.float32(0.1)))])
def test_constants_are_numbers_of_their_type(value, dtype, kept):
    if kept is None:
        with pytest.raises(KernelError, match="not a number of this type"):
            const(value, dtype)
    else:
        made = const(value, dtype)
        assert made.dtype == dtype and made.value == kept and type(made.value) is type(kept)


@pytest.mark.parametrize("x, want", [
    (2147483520, 2147483520), (2**31, -2**31), (-2**31, -2**31), (-2147483904, -2**31), (np.nan, -2**31),
    (np.inf, -2**31), (2.5, 2), (-3.5, -4), (0.49999997, 0)])
def test_floats_that_s32_does_not_hold_become_its_least(x, want):
    assert evaluate(op("round_s32", load(0, "f32", "vector")), None, [np.float32([x])]).tolist() == [want]


def nearest_s32(x):
    """What Arm makes of floats: the nearest s32, ties to even, and 0 of NaN."""
    return np.clip(np.rint(np.nan_to_num(np.float64(x))), -2**31, 2**31 - 1).astype(np.int32)


@pytest.mark.parametrize("dtype", quantizing.RANGES)
@pytest.mark.parametrize("name", ["quantize", "quantize_quotient", "exp"])
def test_results_do_not_depend_on_how_a_machine_rounds_what_s32_does_not_hold(name, dtype, monkeypatch):
    x = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 2**31, -2**31, 1e10, -1e10, 0.5, -1.5, 300.25, 0])
    zp = 3.0
    y = {"quantize": lambda: quantizing.quantize(X, 4.0, zp, dtype), "exp": lambda: elementary.exp(X),
         "quantize_quotient": lambda: quantizing.quantize_quotient(X, 0.25, 4.0, zp, dtype)}[name]()
    epilogue = Epilogue(y, "f32" if name == "exp" else dtype)
    before = evaluate(epilogue, None, [x])
    monkeypatch.setitem(ex.BASIC, "round_s32", replace(ex.BASIC["round_s32"], numpy=nearest_s32))
    after = evaluate(epilogue, None, [x])
    assert np.array_equal(before, after, equal_nan=True) and before.dtype == after.dtype
