"""Values: what each operator emits, as LLVM's text, and the constants that numbers become."""
import re

import pytest
from llvmlite import ir

from graphq.kernels.jit.values import F32, F64, I8, I32, I64, Builder, Value, constant, smaller

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


def test_constants_belong_to_any_builder_and_are_not_folded():
    assert emitted(lambda x: constant(I64, 2) * x, I64)[0] == ["mul i64 2, %x0"]
    assert emitted(lambda x: x.builder.value(I64, 2) * 3, I64)[0] == ["mul i64 2, 3"]
    with pytest.raises(TypeError, match="mul of constants alone"):
        constant(I64, 2) * 3


def test_splat():
    assert emitted(lambda x: x.splat(1), I32) == ([], I32)
    assert emitted(lambda x: x.splat(4), I32)[1] == WIDE
