"""Stores: their forms, what they load, renaming, texts and pickles, and how results are stored."""
import pickle

import ml_dtypes
import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.lanes.epilogues import Epilogue, FastForm, SecondLook, evaluate
from graphq.kernels.lanes.expression import acc, const, load, op

TOTAL, SCALE, ZP, BAND = acc(), load(1, "f32", "column"), load(0, "s32", "scalar"), load(2, "s32", "column")
X = op("to_f32", TOTAL - ZP) * SCALE
EXACT, SECOND, FAST = op("high_u8", TOTAL), op("high_u8", TOTAL + ZP), op("high_u8", TOTAL + const(1, "s32"))
QUICK = FastForm(((EXACT, FAST),), TOTAL, BAND)
LOOK = SecondLook(((EXACT, SECOND),), op("ge", TOTAL, BAND), (SCALE,))
EPILOGUE = Epilogue(EXACT, "u8", QUICK, LOOK)


def test_forms():
    assert [EPILOGUE.form(x) for x in ("exact", "fast", "second_look")] == [EXACT, FAST, SECOND]
    assert {Epilogue(X, "f32").form(x) for x in ("exact", "fast", "second_look")} == {X}
    assert set(EPILOGUE.roots) == {EXACT, LOOK.needed, SECOND, FAST, SCALE, TOTAL, BAND}
    assert set(Epilogue(EXACT, "u8", QUICK).roots) == {EXACT, FAST, TOTAL, BAND} and Epilogue(X, "f32").roots == (X,)
    assert EPILOGUE.uses_acc and not Epilogue(SCALE, "f32").uses_acc


def test_what_is_loaded():
    assert Epilogue(X, "f32").loads == ((0, "s32", "scalar"), (1, "f32", "column")) and Epilogue(X, "f32").slots == 2
    assert EPILOGUE.loads == ((0, "s32", "scalar"), (1, "f32", "column"), (2, "s32", "column")) and EPILOGUE.slots == 3
    assert Epilogue(TOTAL, "s32").slots == 0 and Epilogue(load(4, "f32", "vector"), "f32").slots == 5


def test_renaming_reaches_every_expression():
    new = {ZP: load(7, "s32", "scalar"), BAND: load(5, "s32", "column"), SCALE: load(6, "f32", "column")}
    made = EPILOGUE.renamed(new)
    assert made.loads == ((5, "s32", "column"), (6, "f32", "column"), (7, "s32", "scalar"))
    assert made.second_look.factors == (new[SCALE],) and made.fast.band is new[BAND]
    assert made.second_look.needed is op("ge", TOTAL, new[BAND])
    assert made.form("second_look") is op("high_u8", TOTAL + new[ZP]) and made.form("fast") is FAST
    assert made.dtype == "u8" and Epilogue(X, "f32").renamed(new).second_look is None
    assert EPILOGUE.renamed({}) == EPILOGUE and Epilogue(EXACT, "u8", QUICK).renamed({}) == Epilogue(EXACT, "u8", QUICK)


@pytest.mark.parametrize("epilogue", [EPILOGUE, Epilogue(EXACT, "u8", QUICK), Epilogue(X, "f32"), Epilogue(X, "bf16")])
def test_texts_and_pickles(epilogue):
    again = pickle.loads(pickle.dumps(epilogue))
    assert again == epilogue and repr(again) == repr(epilogue) and again.expr is epilogue.expr
    assert repr(epilogue) != repr(Epilogue(EXACT, "u8")) and repr(epilogue).startswith("Epilogue(")


@pytest.mark.parametrize("make, message", [
    (lambda: Epilogue(TOTAL, "f32"), "a s32 expression cannot be stored as f32"),
    (lambda: Epilogue(X, "u8"), "a f32 expression cannot be stored as u8"),
    (lambda: Epilogue(EXACT, "u8", QUICK, LOOK._replace(pairs=((EXACT, X),))), "a f32 .* cannot be stored as u8"),
    (lambda: Epilogue(SCALE + load(1, "f32", "vector"), "f32"), "a slot is loaded in two ways")])
def test_epilogues_that_are_refused(make, message):
    with pytest.raises(KernelError, match=message):
        make()


def test_bf16_rounds_to_even():
    bits = np.uint32([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0xBF818000, 0x80000000, 0x7F800000])
    x = bits.view(np.float32)
    got = evaluate(Epilogue(load(0, "f32", "vector"), "bf16"), None, [x])
    assert got.dtype == ml_dtypes.bfloat16 and np.array_equal(got.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(
        np.uint16))
    nan = evaluate(Epilogue(load(0, "f32", "vector"), "bf16"), None, [np.float32([np.nan, -np.nan])])
    assert nan.view(np.uint16).tolist() == [0x7FC0, 0x7FC0]
    wide = evaluate(load(0, "bf16", "vector"), None, [np.array([1.5, -2, np.inf], ml_dtypes.bfloat16)])
    assert wide.dtype == np.float32 and wide.tolist() == [1.5, -2, np.inf]


def test_evaluation():
    total, zp, scale = np.int32([[5, -7], [9, 100]]), np.int32([[3]]), np.float32([[0.5, 2.0]])
    assert evaluate(X, total, [zp, scale]).tolist() == [[1.0, -20.0], [3.0, 194.0]]
    assert evaluate(Epilogue(X, "f16"), total, [zp, scale]).dtype == np.float16
    with pytest.raises(KernelError, match="operand 1 is float64, the expression loads f32"):
        evaluate(X, total, [zp, scale.astype(np.float64)])
