"""Each user of a dequantize gets its own."""
from functools import partial

from graphq.passes import (
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
