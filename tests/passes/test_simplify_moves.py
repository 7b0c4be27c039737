"""Reshapes and transposes that do nothing, or what one would do; text in and text out, with the negatives."""
from functools import partial

import pytest

from graphq.passes import (
    DropNoopReshape,
    DropNoopTranspose,
    MergeReshapes,
    MergeTransposes,
    TransposeAsReshape,
)
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4,6]")


@pytest.mark.parametrize("shape", ["[4,6]", "[4,-1]", "[-1,6]", "[0,0], special_zero=true"])
def test_noop_reshape(shape):
    check(DropNoopReshape(), f"%y = static_reshape(x, shape={shape})\n return %y", "return x as y", count=1)


def test_noop_reshape_keeps_others():
    check(DropNoopReshape(), "%0 = static_reshape(x, shape=[6,4])\n return %0")
    check(DropNoopReshape(), "%0 = static_reshape(x, shape=[-1,6])\n return %0",
          inputs="x: f32[?,6]", sizes={"x": (2, 6)})


def test_merge_reshapes():
    check(MergeReshapes(), "%0 = static_reshape(x, shape=[3,8])\n %1 = static_reshape(%0, shape=[2,-1])\n return %1",
          "%0 = static_reshape(x, shape=[2,12])\n return %0", count=1)
    check(MergeReshapes(), """%0 = static_reshape(x, shape=[24])
          %1 = static_reshape(%0, shape=[0,1], special_zero=true)
          %2 = static_reshape(%1, shape=[2,2,6])
          return %2""", "%0 = static_reshape(x, shape=[2,2,6])\n return %0", count=2)


@pytest.mark.parametrize("end", ["return %1, %0", "%2 = relu(%0)\n return %1, %2"])
def test_merge_reshapes_needs_a_single_user(end):
    check(MergeReshapes(), f"%0 = static_reshape(x, shape=[3,8])\n %1 = static_reshape(%0, shape=[2,12])\n {end}")


def test_merge_reshapes_needs_a_known_shape():
    check(MergeReshapes(), "%0 = static_reshape(x, shape=[-1,3])\n %1 = static_reshape(%0, shape=[-1,2])\n return %1",
          inputs="x: f32[?,6]", sizes={"x": (2, 6)})


def test_merge_transposes():
    text = "%0 = static_transpose(x, order={})\n %1 = static_transpose(%0, order={})\n return %1"
    check(MergeTransposes(), text.format([1, 2, 0], [-1, 0, 1]),
          "%0 = static_transpose(x, order=[0,1,2])\n return %0", inputs="x: u8[2,3,4]", count=1)
    check(MergeTransposes(), text.format([1, 0, 2], [2, 0, 1]),
          "%0 = static_transpose(x, order=[2,1,0])\n return %0", inputs="x: f32[2,3,4]", count=1)


@pytest.mark.parametrize("end", ["return %1, %0", "%2 = relu(%0)\n return %1, %2"])
def test_merge_transposes_needs_a_single_user(end):
    check(MergeTransposes(), f"%0 = static_transpose(x, order=[1,0])\n %1 = static_transpose(%0, order=[1,0])\n {end}")


@pytest.mark.parametrize("shape, order, after", [
    ("[2,8,1,1]", [0, 2, 3, 1], "[2,1,1,8]"), ("[2,1,5,6]", [0, 2, 3, 1], "[2,5,6,1]"), ("[3,0]", [1, 0], "[0,3]")])
def test_transpose_as_reshape(shape, order, after):
    check(TransposeAsReshape(), f"%0 = static_transpose(x, order={order})\n return %0",
          f"%0 = static_reshape(x, shape={after})\n return %0", inputs=f"x: f32{shape}", count=1)


def test_transpose_as_reshape_keeps_others():
    check(TransposeAsReshape(), "%0 = static_transpose(x, order=[1,0])\n return %0")
    check(TransposeAsReshape(), "%0 = static_transpose(x, order=[1,0])\n return %0", inputs="x: f32[?,1]",
          sizes={"x": (2, 1)})


def test_noop_transpose():
    check(DropNoopTranspose(), "%0 = static_transpose(x, order=[0,-1])\n return %0", "return x as out0", count=1)
    check(DropNoopTranspose(), "%0 = static_transpose(x, order=[1,0])\n return %0")
    check(DropNoopTranspose(), "%0 = static_transpose(x, order=[])\n return %0", "return x as out0", inputs="x: f32[]")
