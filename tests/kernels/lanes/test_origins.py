"""What expressions are functions of: bytes, several of them, numbers that are known, or anything else."""
import pytest

from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import acc, const, load, op
from graphq.kernels.lanes.origins import byte_type, decided_by_one_byte, origins

A, B = load(0, "u8", "vector"), load(1, "s8", "column")
ROW, WIDE, NUMBER = load(2, "u8", "row"), load(3, "f32", "vector"), load(4, "f32", "scalar")
X, Y = op("to_f32", A), op("to_f32", B)
Q = elementary.quantized(elementary.quantize(X * 2.0, NUMBER, 0.0, "s8"), "s8")


@pytest.mark.parametrize("x, dtype", [(A, "u8"), (B, "s8"), (ROW, None), (WIDE, None), (load(5, "u8", "scalar"), None),
                                      (Q, "s8"), (X, None), (acc(), None), (const(1, "s32"), None)])
def test_bytes_that_vary(x, dtype):
    assert byte_type(x) == dtype


def test_origins():
    both = X + Y
    of = origins(both * NUMBER, Q, bytes_={A, B, Q}, known={NUMBER})
    assert of[A] == of[X] == {A} and of[Y] == {B} and of[both] == {A, B} == of[both * NUMBER] and of[NUMBER] == set()
    assert of[Q] == {A}  # a byte that one byte decides is that byte's
    of = origins(Q, op("to_f32", Q) + WIDE, bytes_={A, Q}, known=())
    assert of[Q] == {Q} and of[NUMBER] == {NUMBER} and of[op("to_f32", Q) + WIDE] == {Q, WIDE}
    of = origins(X, bytes_=(), known={X})
    assert of[X] == set() and of[A] == {A}


@pytest.mark.parametrize("x, known, decided", [
    (X * 3.0, (), True), (X + X, (), True), (X + Y, (), False), (X * NUMBER, (), False), (X * NUMBER, {NUMBER}, True),
    (WIDE, (), False), (const(2.0), (), True), (op("to_f32", Q) + 1.0, {NUMBER}, True), (op("to_f32", Q), (), True),
    (op("to_f32", acc()), (), False), (X + op("to_f32", Q), {NUMBER}, True), (op("to_f32", ROW), (), False)])
def test_functions_of_one_byte(x, known, decided):
    assert decided_by_one_byte(x, known) is decided
