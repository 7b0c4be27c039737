"""Values: what each operator emits, as LLVM's text, and the constants that numbers become."""
import re

import numpy as np
import pytest
from llvmlite import ir

from graphq.kernels.jit.values import F32, F64, I1, I8, I32, I64, Builder, Value, c64, constant, joined, smaller

WIDE = ir.VectorType(I32, 4)


def emitted(emit, *kinds):
    """The instructions that `emit(*values)` emits, of parameters x0, x1, ..., and its result's type."""
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), "f")
    for k, x in enumerate(function.args):
        x.name = f"x{k}"
    block = function.append_basic_block()
    b = Builder(ir.IRBuilder(block))
    result = emit(*(Value(b, x) for x in function.args))
    text = [str(x).split(" = ")[-1].replace('"', "") for x in block.instructions]
    text = [re.sub(r"(<[^<>]*>|\w+)\*", "ptr", re.sub(r"%\.\d+", "%_", x)) for x in text]
    return text, getattr(result, "type", None)


@pytest.mark.parametrize("emit, kind, text", [
    (lambda x: x + 1, I64, "add i64 %x0, 1"), (lambda x: 1 + x, I64, "add i64 1, %x0"),
    (lambda x: x - 1, F32, "fsub float %x0, 0x3ff0000000000000"), (lambda x: 2 - x, I64, "sub i64 2, %x0"),
    (lambda x: x * 3, WIDE, "mul <4 x i32> %x0, <i32 3, i32 3, i32 3, i32 3>"),
    (lambda x: x // 2, I64, "sdiv i64 %x0, 2"), (lambda x: x.udiv(2), I64, "udiv i64 %x0, 2"),
    (lambda x: x >> 2, I64, "ashr i64 %x0, 2"), (lambda x: x.shr(2), I64, "lshr i64 %x0, 2"),
    (lambda x: x << 2, I64, "shl i64 %x0, 2"), (lambda x: x & 7, I64, "and i64 %x0, 7"),
    (lambda x: ~x, I64, "xor i64 %x0, -1"), (lambda x: x / x, F32, "fdiv float %x0, %x0"),
    (lambda x: x < 3, I64, "icmp slt i64 %x0, 3"), (lambda x: x.ult(3), I64, "icmp ult i64 %x0, 3"),
    (lambda x: x <= x, F32, "fcmp ole float %x0, %x0"), (lambda x: x.ne(0), I64, "icmp ne i64 %x0, 0"),
    (lambda x: x.sext(I64), WIDE, "sext <4 x i32> %x0 to <4 x i64>"),
    (lambda x: x.to_float(F32), WIDE, "sitofp <4 x i32> %x0 to <4 x float>"),
    (lambda x: x.to_float(F64), F32, "fpext float %x0 to double"),
    (lambda x: x.to_float(F32), F64, "fptrunc double %x0 to float"),
    (lambda x: x.lane(2), WIDE, "extractelement <4 x i32> %x0, i32 2")])
def test_one_instruction(emit, kind, text):
    assert emitted(emit, kind)[0] == [text]


def test_memory():
    text, kind = emitted(lambda x: (x + 8).load(I8), I64)
    assert text[1:] == ["inttoptr i64 %_ to ptr", "load i8, ptr %_, align 1"] and kind == I8
    text, _ = emitted(lambda x, y: x.store(y, 64), WIDE, I64)
    assert text == ["inttoptr i64 %x1 to ptr", "store <4 x i32> %x0, ptr %_, align 64"]


def test_numbers_take_the_type_of_the_other_operand():
    text, kind = emitted(lambda x, y: (x < y).select(1, y), I32, I32)
    assert text[1] == "select  i1 %_, i32 1, i32 %x1" and kind == I32
    text, _ = emitted(lambda x: smaller(5, x), I64)
    assert text == ["icmp slt i64 5, %x0", "select  i1 %_, i64 5, i64 %x0"]


def test_constants_belong_to_any_builder():
    assert emitted(lambda x: constant(I64, 2) * x, I64)[0] == ["mul i64 2, %x0"]
    assert emitted(lambda x: x.builder.value(I64, 2) * 3, I64)[0] == ["mul i64 2, 3"]


BYTES, BITS, WORDS, FLOATS = (ir.VectorType(x, 2) for x in (I8, I1, I32, F32))
A_TENTH = float(np.float32(0.1))


@pytest.mark.parametrize("value, kind, number", [
    (lambda: constant(I64, 2) * 3, I64, 6), (lambda: 1 - constant(I32, 3), I32, -2),
    (lambda: -3 - c64(2) // 2, I64, -4), (lambda: constant(I32, 2**31 - 1) + 1, I32, -2**31),
    (lambda: constant(I8, 64) << 1, I8, -128), (lambda: c64(-7) // 2, I64, -3), (lambda: c64(7) // -2, I64, -3),
    (lambda: c64(-2**63) // 2, I64, -2**62), (lambda: c64(-6) // 2, I64, -3),
    (lambda: constant(I8, -2).udiv(2), I8, 127), (lambda: constant(I8, -1).urem(16), I8, 15),
    (lambda: c64(-8) >> 1, I64, -4), (lambda: constant(I8, -8).shr(1), I8, 124),
    (lambda: ~(c64(6) & 3 | c64(9) ^ 8), I64, -4), (lambda: c64(-1) < 0, I1, True),
    (lambda: c64(-1).ult(0), I1, False), (lambda: (c64(3) >= 3).select(5, c64(6)), I64, 5),
    (lambda: constant(I8, -1).zext(I32), I32, 255), (lambda: constant(I8, -1).sext(I64), I64, -1),
    (lambda: constant(I1, 1).sext(I8), I8, -1), (lambda: c64(300).trunc(I8), I8, 44),
    (lambda: c64(2).trunc(I1), I1, False), (lambda: c64(-1).trunc(I1), I1, True),
    (lambda: constant(F32, -0.0) * 1.0, F32, -0.0),
    (lambda: constant(F32, 0.1) + 0.2, F32, float(np.float32(0.1) + np.float32(0.2))),
    (lambda: 1 / constant(F64, 3), F64, 1 / 3), (lambda: constant(F32, float("nan")).ne(1.0), I1, False),
    (lambda: constant(F32, -2.7).to_int(I32), I32, -2), (lambda: c64(3).to_float(F32), F32, 3.0),
    (lambda: constant(F64, 0.1).to_float(F32), F32, A_TENTH), (lambda: smaller(4, c64(3)), I64, 3),
    (lambda: constant(BYTES, [100, -3]) + 100, BYTES, [-56, 97]),
    (lambda: constant(BYTES, [1, 2]) < 2, BITS, [True, False]),
    (lambda: Value(None, ir.Constant(BYTES, None)).eq(0).select(3, constant(WORDS, 4)), WORDS, [3, 3]),
    (lambda: Value(None, ir.Constant(FLOATS, None)) + 1.0, FLOATS, [1.0, 1.0]),
    (lambda: constant(F32, -0.0).splat(2) * 2.0, FLOATS, [-0.0, -0.0]),
    (lambda: constant(BYTES, 3).sext(I32) * 2, WORDS, [6, 6]), (lambda: constant(I32, 3).splat(2), WORDS, [3, 3])])
def test_operations_on_constants_alone_are_constants(value, kind, number):
    x = value()
    assert x.builder is None and x.type == kind and str(x.ir) == str(constant(kind, number).ir)


def test_constants_keep_their_bits_as_another_type():
    assert emitted(lambda x: x + constant(BYTES, 1).as_type(ir.IntType(16)), ir.IntType(16))[0] == [
        "add i16 %x0, bitcast (<2 x i8> <i8 1, i8 1> to i16)"]
    assert emitted(lambda x: x + constant(I32, 1).as_type(F32).splat(2), FLOATS)[0] == [
        "fadd <2 x float> %x0, <float bitcast (i32 1 to float), float bitcast (i32 1 to float)>"]


def test_what_has_to_be_emitted_needs_a_builder():
    for emit in (lambda: c64(64).load(I64), lambda: constant(BYTES, 1).lane(0), lambda: c64(1).opaque(),
                 lambda: constant(F32, 0).as_type(I32).splat(2) + 1,
                 lambda: constant(F32, 2).math("sqrt"), lambda: c64(0).load_where(constant(BITS, 1), BYTES)):
        with pytest.raises((TypeError, AssertionError), match="builder"):
            emit()


def test_splat():
    assert emitted(lambda x: x.splat(1), I32) == ([], I32)
    assert emitted(lambda x: x.splat(4), I32)[1] == WIDE


def test_a_vector_of_scalars():
    text, kind = emitted(lambda x, y: joined([x, y]), I8, I8)
    assert kind == BYTES and text == ["insertelement <2 x i8> <i8 undef, i8 undef>, i8 %x0, i32 0",
                                      "insertelement <2 x i8> %_, i8 %x1, i32 1"]
