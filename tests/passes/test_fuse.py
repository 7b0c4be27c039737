"""Each user of a dequantize gets its own; what computes an operand of an epilogue joins the partition."""
from functools import partial

import pytest

from graphq.errors import CompileError
from graphq.ir.parse import parse
from graphq.passes import (
    Fuse,
    duplicate_dequantize,
    eliminate_common_subexpressions,
)
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4], y: f32[4]")


TWO_USERS = """%0 = dequantize(x, scales=[0.5])
  %1 = relu(%0)
  %2 = tanh(%0)
  return %1, %2"""


def test_each_user_gets_its_own():
    g = check(duplicate_dequantize, TWO_USERS, """%0 = dequantize(x, scales=[0.5])
          %1 = relu(%0)
          %2 = dequantize(x, scales=[0.5])
          %3 = tanh(%2)
          return %1, %3""", inputs="x: u8[4]", count=1)
    assert duplicate_dequantize(g) == 0 and eliminate_common_subexpressions(g) == 1


def test_a_returned_dequantize_is_left_to_the_return():
    check(duplicate_dequantize, "%d = dequantize(x, scales=[0.5])\n %1 = relu(%d)\n return %1, %d",
          "%d = dequantize(x, scales=[0.5])\n %1 = dequantize(x, scales=[0.5])\n %2 = relu(%1)\n return %2, %d",
          inputs="x: u8[4]", count=1)


def test_one_user_keeps_it():
    check(duplicate_dequantize, "%0 = dequantize(x, scales=[0.5])\n %1 = add(%0, %0)\n return %1", inputs="x: u8[4]")
    check(duplicate_dequantize, "%0 = dequantize(x, scales=[0.5])\n return %0, %0", inputs="x: u8[4]")
    check(duplicate_dequantize, "%0 = dequantize(x, scales=[0.5])\n %1 = relu(%0)\n %2 = exp(%0)\n return %1, %2",
          inputs="x: u16[4]")
    check(duplicate_dequantize, "%0 = relu(x)\n %1 = exp(%0)\n %2 = tanh(%0)\n return %1, %2")


@pytest.mark.parametrize("inputs, operand, op, joins", [
    ("a: f32[1], b: f32[3]", "multiply(a, b)", "multiply", True),
    ("a: f32[4,1], b: f32[3]", "multiply(a, b)", "multiply", True),
    ("a: f32[4,3], b: f32[3]", "multiply(a, b)", "multiply", False),
    ("a: f32[?], b: f32[3]", "multiply(a, b)", "multiply", False),
    ("a: u8[4,3]", "dequantize(a, scales=[0.5])", "add", True),
    ("a: s32[3]", "dequantize(a, scales=[0.5])", "add", True), ("a: f32[4,3]", "relu(a)", "add", False)])
def test_operands_of_an_epilogue(inputs, operand, op, joins):
    """Scales of rows and columns, and what is dequantized; other operations are computed before."""
    g = parse(f"""graph(x: u8[4,5], w: s8[5,3], {inputs}) {{
        %0 = dequantize(x, scales=[0.5])
        %1 = dequantize(w, scales=[0.25])
        %2 = matmul(%0, %1)
        %3 = {operand}
        %4 = {op}(%2, %3)
        return %4 }}""")
    assert Fuse("matmul")(g) == 1
    *others, partition = g.nodes
    assert [n.op.name for n in partition.attrs["body"].nodes] == [
        "dequantize", "dequantize", "matmul", *[operand.partition("(")[0]] * joins, op]
    assert [n.op.name for n in others] == [operand.partition("(")[0]] * (not joins)


@pytest.mark.parametrize("family, floats", [("concat", True), ("eltwise", False)])
def test_a_family_without_such_a_pattern(family, floats):
    with pytest.raises(CompileError, match=f"'{family}' has no fusion with floats={floats}"):
        Fuse(family, floats=floats)
    Fuse(family, floats=not floats)
