"""One form of axes, scales, products and vectors; text in and text out, with the negatives."""
from functools import partial

import numpy as np
import pytest

import graphq as gq
from graphq.passes import (
    CubeAsProducts,
    DropMultiplyByOne,
    DropRepeatedRelu,
    UniformChannelsArePerTensor,
    positive_axis,
)
from graphq.passes.normal_forms import SplitBiasOfRows, VectorAsColumn
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4,6]")


@pytest.mark.parametrize("call", [
    "softmax(x, axis={})", 'quantize(x, dtype=u8, qtype="per_channel", axis={}, scales=[1, 2, 3, 4, 5, 6])'])
def test_positive_axis(call):
    check(positive_axis, f"%0 = {call.format(-1)}\n return %0", f"%0 = {call.format(1)}\n return %0", count=1)
    check(positive_axis, f"%0 = {call.format(1)}\n return %0")


def test_positive_axes_of_all_nodes():
    """Nodes that are in normal form, or of no known rank, stand before and between those that are not."""
    axes = [0, -1, 1, -2, -2]
    text = "\n".join(f"%{k} = softmax({'x' if not k else f'%{k - 1}'}, axis={{}})" for k in range(5)) + "\n return %4"
    check(positive_axis, text.format(*axes), text.format(*(axis % 2 for axis in axes)), count=3)
    check(positive_axis, "%0 = softmax(y, axis=-1)\n %1 = softmax(x, axis=-1)\n return %0, %1",
          "%0 = softmax(y, axis=-1)\n %1 = softmax(x, axis=1)\n return %0, %1", inputs="x: f32[4,6], y: f32[*]",
          sizes={"y": (3,)}, count=1)


def test_positive_axis_of_dequantize():
    text = '%0 = dequantize(x, qtype="per_channel", axis={}, scales=[1, 2, 3, 4], zps=[1, 2, 3, 4])\n return %0'
    check(positive_axis, text.format(-2), text.format(0), inputs="x: u8[4,6]", count=1)
    check(positive_axis, text.format(-2), inputs="x: u8[*]", sizes={"x": (4, 6)})


@pytest.mark.parametrize("shape,axis", [("[]", -1), ("[4]", 7), ("[4]", -9), ("[2,3]", 0), ("[2,3]", 1)])
def test_axis_of_per_tensor_is_ignored(shape, axis):
    """A scalar's axis can never be positive: this must come to an end."""
    check(positive_axis, f"%0 = dequantize(x, scales=[0.5], axis={axis})\n return %0",
          "%0 = dequantize(x, scales=[0.5])\n return %0", inputs=f"x: u8{shape}")


def test_softmax_statistics_stay_as_they_are():
    check(positive_axis, "%0, %1 = softmax(x, axis=-1, keep_stats=true)\n return %0, %1")


@pytest.mark.parametrize("zps,after", [("", ""), (", zps=[7, 7, 7]", ", zps=[7]")])
def test_uniform_channels(zps, after):
    text = '%0 = quantize(x, dtype=u8, qtype="per_channel", axis=0, scales=[0.5, 0.5, 0.5]{})\n return %0'
    check(UniformChannelsArePerTensor(), text.format(zps),
          f"%0 = quantize(x, dtype=u8, scales=[0.5]{after})\n return %0", inputs="x: f32[3,2]", count=1)


@pytest.mark.parametrize("scales,zps", [("[0.5, 0.5, 0.25]", ""), ("[0.5, 0.5, 0.5]", ", zps=[7, 7, 8]"), ("[]", "")])
def test_different_channels_stay(scales, zps):
    n = 3 if scales != "[]" else 0
    check(UniformChannelsArePerTensor(),
          f'%0 = dequantize(x, qtype="per_channel", scales={scales}{zps})\n return %0', inputs=f"x: u8[2,{n}]")


@pytest.mark.parametrize("call", ["multiply(x, %1)", "multiply(%1, x)", "divide(x, %1)"])
@pytest.mark.parametrize("one", ["f32[]{1}", "f32[1]{1}", "f32[6]{1, 1, 1, 1, 1, 1}", "f32[1,1]{1}"])
def test_multiply_by_one(call, one):
    check(DropMultiplyByOne(), f"%1 = constant(value={one})\n %y = {call}\n return %y",
          "return x as y", count=1)


@pytest.mark.parametrize("call,one", [
    ("divide(%1, x)", "f32[]{1}"), ("multiply(x, %1)", "f32[]{1.0000001}"), ("multiply(x, %1)", "f32[1,1,1]{1}"),
    ("multiply(x, %1)", "f32[6]{1, 1, 1, 1, 1, 2}"), ("multiply(x, %1)", "bf16[1]{2}"), ("add(x, %1)", "f32[]{0}"),
    ("multiply(x, %1)", "f32[]{nan}")])
def test_other_factors_stay(call, one):
    check(DropMultiplyByOne(), f"%1 = constant(value={one})\n %y = {call}\n return %y")


def test_a_factor_that_is_no_constant_stays():
    check(DropMultiplyByOne(), "%0 = multiply(x, y)\n return %0", inputs="x: f32[4], y: f32[]")


def test_multiply_by_one_keeps_types():
    check(DropMultiplyByOne(), "%0 = constant(value=f32[1]{1})\n %1 = multiply(x, %0)\n return %1",
          inputs="x: bf16[4]")
    unknown = "%0 = constant(value=f32[1,1]{1})\n %1 = multiply(x, %0)\n return %1"
    check(DropMultiplyByOne(), unknown, inputs="x: f32[*]", sizes={"x": (3,)})  # the result has another rank
    check(DropMultiplyByOne(), unknown.replace("[1,1]", "[]"), "return x as out0", inputs="x: f32[*]",
          sizes={"x": (3,)})


def test_cube():
    check(CubeAsProducts(), "%0 = pow(x, beta=3)\n return %0", "%0 = square(x)\n %1 = multiply(%0, x)\n return %1")
    check(CubeAsProducts(), "%0 = pow(x, beta=3)\n return %0", inputs="x: f16[4,6]")
    check(CubeAsProducts(), "%0 = pow(x, beta=2.5)\n return %0")


def test_repeated_relu():
    check(DropRepeatedRelu(), "%0 = relu(x)\n %1 = relu(%0)\n %2 = relu(%1)\n return %2",
          "%0 = relu(x)\n return %0", count=2)
    check(DropRepeatedRelu(), "%0 = relu(x)\n %1 = relu(%0)\n return %1, %0")
    check(DropRepeatedRelu(), "%0 = relu(x)\n %1 = relu(%0)\n %2 = exp(%0)\n return %1, %2")
    check(DropRepeatedRelu(), "%0 = relu(x)\n %1 = tanh(%0)\n return %1")


@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_constant_vector_becomes_a_column(transpose_b):
    g, rng = gq.Graph("columns"), np.random.default_rng(0)
    x, v, row = (g.input(n, dtype="f32", shape=s) for n, s in (("x", (None, 4, 6)), ("v", (6,)), ("row", (6,))))
    w = rng.standard_normal(6).astype(np.float32)
    g.output(g.matmul(x, w, transpose_b=transpose_b), name="y")
    g.output(g.matmul(x, v), name="not constant")
    g.output(g.matmul(row, w), name="no matrix")
    out = g.copy()
    assert VectorAsColumn()(out) == 1
    batch = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (3, 4, 6)), ("v", (6,)), ("row", (6,)))}
    for name, y in gq.reference(g, batch).items():
        np.testing.assert_allclose(gq.reference(out, batch)[name], y, rtol=1e-6)


@pytest.mark.parametrize("x, attrs", [
    ("f32", ""), ("f16", ""), ("bf16", ", dtype=f32"), ("f32", ", transpose_b=true")])
@pytest.mark.parametrize("bias", ["3,1", "2,3,1", "1", "2,1,4"])
def test_a_bias_of_rows_is_added_apart(x, attrs, bias):
    """The sum is of f32 until the bias is added, and of the matmul's dtype after it."""
    w = "4,5" if "transpose" in attrs else "5,4"
    total = {"f32": "", "f16": ", dtype=f16", "bf16": ", dtype=f32"}[x]
    check(SplitBiasOfRows(), f"%0 = matmul(x, w, b{attrs})\n return %0",
          f"%0 = matmul(x, w{'' if x == 'f32' else ', dtype=f32'}{attrs.replace(', dtype=f32', '')})\n"
          f" %1 = add(%0, b{total})\n return %1",
          inputs=f"x: {x}[2,3,5], w: {x}[{w}], b: {x}[{bias}]", count=1)


@pytest.mark.parametrize("w, b", [("5,4", "4"), ("5,4", "1,1,4"), ("5,1", "1"), ("*", "3,1"), ("5,?", "1"),
                                  ("5,?", "3,1"), ("5,4", "*"), ("5,4", "?,1")])
def test_a_bias_of_columns_or_of_unknown_size_stays(w, b):
    g = gq.parse(f"graph(x: f32[2,3,5], w: f32[{w}], b: f32[{b}]) {{\n %0 = matmul(x, w, b)\n return %0\n}}")
    assert SplitBiasOfRows()(g) == 0
