"""One form of axes, scales, products and vectors; text in and text out, with the negatives.

Dynamic quantization by constants becomes static; ConvInteger a convolution.
"""
from functools import partial

import numpy as np
import pytest

import graphq as gq
from graphq.ir.parse import parse
from graphq.passes import (
    CubeAsProducts,
    DropMultiplyByOne,
    DropRepeatedRelu,
    UniformChannelsArePerTensor,
    positive_axis,
)
from graphq.passes.normal_forms import ConvIntegerAsConvolution, RowScalesAsGroups, SplitBiasOfRows, VectorAsColumn
from graphq.passes.requantize import DequantizeByGroups, StaticDequantize, StaticQuantize
from graphq.rewrite.rule import ANY
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


ATTRS = "strides=[1,1], pads_begin=[0,1], pads_end=[0,0], dilations=[1,1]"


@pytest.mark.parametrize("dtype, zps, attrs", [("u8", "{3, 250}", ', axis=0, qtype="per_channel"'),
                                               ("s8", "{-3, 7}", ', axis=-1, qtype="per_channel"')])
def test_dequantize_by_constants(dtype, zps, attrs):
    check_pass(StaticDequantize(), before=f"""
        graph(x: {dtype}[2,2]) {{
          %s = constant(value=f32[2]{{0.5, 0.25}})
          %z = constant(value=s32[2]{zps})
          %0 = dynamic_dequantize(x, %s, %z{attrs})
          return %0
        }}""", after=f"""
        graph(x: {dtype}[2,2]) {{
          %0 = dequantize(x, scales=[0.5, 0.25], zps=[{zps.strip("{}")}]{attrs})
          return %0
        }}""")


@pytest.mark.parametrize("shape, axis, group_axis, scales, group_shape", [
    ("[4,3]", 1, 0, "f32[2,3]{1, 2, 3, 4, 5, 6}", [2, 1]),
    ("[3,4]", 0, -1, "f32[3,2]{1, 4, 2, 5, 3, 6}", [1, 2]),
    ("[5,4,3]", -1, 1, "f32[1,2,3]{1, 2, 3, 4, 5, 6}", [5, 2, 1]),
    ("[3,2,4]", -3, 2, "f32[3,1,2]{1, 4, 2, 5, 3, 6}", [1, 2, 2]),
])
def test_scales_of_all_groups(shape, axis, group_axis, scales, group_shape):
    zps = scales.replace("f32", "s8")
    check_pass(DequantizeByGroups(), before=f"""
        graph(x: s8{shape}) {{
          %0 = dequantize(x, qtype="per_channel", axis={axis}, scales=[1, 2, 3, 4, 5, 6], zps=[1, 2, 3, 4, 5, 6],
                          group_axis={group_axis})
          return %0
        }}""", after=f"""
        graph(x: s8{shape}) {{
          %0 = constant(value={scales})
          %1 = constant(value={zps})
          %2 = dynamic_dequantize(x, %0, %1, qtype="per_group", group_shape={group_shape})
          return %2
        }}""")


def test_constants_of_4_bits_become_such_of_8():
    check_pass(StaticDequantize(), before="""
        graph(x: f32[3,2]) {
          %w = constant(value=s4[2]{-8, 7})
          %s = constant(value=f32[]{0.5})
          %z = constant(value=s4[]{3})
          %0 = dynamic_dequantize(%w, %s, %z)
          %1 = multiply(x, %0)
          return %1
        }""", after="""
        graph(x: f32[3,2]) {
          %0 = constant(value=s8[2]{-8, 7})
          %1 = dequantize(%0, scales=[0.5], zps=[3])
          %2 = multiply(x, %1)
          return %2
        }""")


def test_constants_of_4_bits_that_a_matmul_takes_stay():
    check_pass(StaticDequantize(), before="""
        graph(x: f32[3,2]) {
          %w = constant(value=u4[2,2]{1, 2, 3, 15})
          %s = constant(value=f32[]{0.5})
          %0 = dynamic_dequantize(%w, %s)
          %1 = matmul(x, %0)
          return %1
        }""")


def test_quantize_by_constants():
    check_pass(StaticQuantize(), before="""
        graph(x: f32[4,3]) {
          %s = constant(value=f32[]{0.5})
          %0 = dynamic_quantize(x, %s, dtype=s8)
          return %0
        }""", after="""
        graph(x: f32[4,3]) {
          %0 = quantize(x, dtype=s8, scales=[0.5])
          return %0
        }""")


@pytest.mark.parametrize("inputs, statements", [
    ("x: u8[4,3], s: f32[]", "%0 = dynamic_dequantize(x, s)"),
    ("x: u8[4,3], z: s32[]", "%s = constant(value=f32[]{0.5})\n %0 = dynamic_dequantize(x, %s, z)"),
    ("x: s4[4,3]", "%s = constant(value=f32[]{0.5})\n %0 = dynamic_dequantize(x, %s)"),
    ("x: u8[4,3]", "%s = constant(value=f32[]{inf})\n %0 = dynamic_dequantize(x, %s)"),
    ("x: u8[4,3]", "%s = constant(value=f32[]{0.5})\n %z = constant(value=s32[]{256})\n"
                   "%0 = dynamic_dequantize(x, %s, %z)"),
    ("x: u8[4,3]", "%s = constant(value=f16[]{0.5})\n %0 = dynamic_dequantize(x, %s)"),
    ("x: s8[2,2]", '%s = constant(value=f32[1,2]{1, 2})\n'
                   '%0 = dynamic_dequantize(x, %s, qtype="per_group", group_shape=[2,1])'),
])
def test_what_stays_a_dynamic_dequantize(inputs, statements):
    check_pass(StaticDequantize(), before=f"graph({inputs}) {{\n {statements}\n return %0\n}}")


@pytest.mark.parametrize("zps, attrs, left", [
    ("", "", "dequantize(x, scales=[1])"), (", z", "", "dynamic_dequantize(x, %2, z, axis=0)")])
def test_conv_integer_is_a_convolution(zps, attrs, left):
    one = "" if not zps else "%2 = constant(value=f32[]{1})\n"
    check_pass(ConvIntegerAsConvolution(), before=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2], z: u8[]) {{
          %0 = conv_integer(x, w{zps}, {ATTRS})
          %1 = cast(%0, dtype=f32)
          return %1
        }}""", after=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2], z: u8[]) {{
          {one}%3 = {left}
          %4 = dequantize(w, scales=[1])
          %1 = convolution(%3, %4, {ATTRS}, data_format="NCX", weights_format="OIX")
          return %1
        }}""")


def test_a_bias_of_integers_is_added_to_the_sums():
    """As ONNX Runtime's older quantizer writes it, computed from the scale of the run."""
    check_pass(ConvIntegerAsConvolution(), before=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2], b: s32[1,2,1,1]) {{
          %0 = conv_integer(x, w, {ATTRS})
          %1 = add(b, %0)
          %2 = cast(%1, dtype=f32)
          return %2
        }}""", after=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2], b: s32[1,2,1,1]) {{
          %3 = dequantize(x, scales=[1])
          %4 = dequantize(w, scales=[1])
          %5 = convolution(%3, %4, {ATTRS}, data_format="NCX", weights_format="OIX")
          %6 = cast(b, dtype=f32)
          %2 = add(%5, %6)
          return %2
        }}""")


@pytest.mark.parametrize("end", ["return %0", "%1 = cast(%0, dtype=s8)\n return %1",
                                 "%1 = cast(%0, dtype=f32)\n return %1, %0"])
def test_sums_that_are_needed_as_integers_stay(end):
    check_pass(ConvIntegerAsConvolution(), before=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2]) {{
          %0 = conv_integer(x, w, {ATTRS})
          {end}
        }}""")


def test_sums_that_could_wrap_stay():
    check_pass(ConvIntegerAsConvolution(), before=f"""
        graph(x: u8[1,40000,1,1], w: s8[1,40000,1,2]) {{
          %0 = conv_integer(x, w, {ATTRS})
          %1 = cast(%0, dtype=f32)
          return %1
        }}""")


@pytest.mark.parametrize("zps", ["none, zw", "z, zw", "z, zws", "none, zws"])
@pytest.mark.parametrize("bias", [False, True])
def test_zero_points_of_weights(zps, bias):
    g = check_pass(ConvIntegerAsConvolution(), before=f"""
        graph(x: u8[1,3,4,5], w: s8[2,3,2,2], z: u8[], zw: s8[1], zws: s8[2], b: s32[2,1,1]) {{
          %0 = conv_integer(x, w, {zps}, {ATTRS})
          {"%1 = add(%0, b)" if bias else ""}
          %2 = cast(%{1 if bias else 0}, dtype=f32)
          return %2
        }}""", after=ANY, count=1)
    assert [n.attrs["qtype"] for n in g.nodes_of(("dynamic_dequantize",))][-1] == (
        "per_channel" if zps.endswith("s") else "per_tensor")


@pytest.mark.parametrize("w, zw", [("s8[*]", ""), ("s8[?,3,2,2]", ""), ("s8[2,3,2,2]", ", none, zw")])
def test_weights_and_zero_points_of_unknown_shapes_stay(w, zw):
    graph = parse(f"""graph(x: u8[1,3,4,5], w: {w}, zw: s8[*]) {{
      %0 = conv_integer(x, w{zw}, {ATTRS})
      %1 = cast(%0, dtype=f32)
      return %1
    }}""")
    assert ConvIntegerAsConvolution()(graph) == 0


BY_ROW = "x: s8[4,6], s: f32[4], w: f32[6,2], b: f32[2]"


@pytest.mark.parametrize("axis", [0, -2])
def test_scales_of_rows_are_those_of_groups(axis):
    for bias in ("", ", b"):
        check_pass(RowScalesAsGroups(), f"""
            %0 = dynamic_dequantize(x, s, qtype="per_channel", axis={axis})
            %1 = matmul(%0, w{bias})
            return %1""", f"""
            %0 = static_reshape(s, shape=[-1, 1])
            %1 = dynamic_dequantize(x, %0, qtype="per_group", group_shape=[1, 6])
            %2 = matmul(%1, w{bias})
            return %2""", inputs=BY_ROW, count=1)


@pytest.mark.parametrize("inputs, axis, more", [
    ("x: s8[6,4], s: f32[6], w: f32[6,2]", 0, ", transpose_a=true"), ("x: s8[4,6], s: f32[6], w: f32[6,2]", 1, ""),
    ("x: s8[3,4,6], s: f32[4], w: f32[6,2]", 1, ""), ("x: s8[4,?], s: f32[4], w: f32[6,2]", 0, "")])
def test_scales_that_are_not_those_of_rows_of_a_matrix(inputs, axis, more):
    check_pass(RowScalesAsGroups(), f"""%0 = dynamic_dequantize(x, s, qtype="per_channel", axis={axis})
        %1 = matmul(%0, w{more})\n return %1""", inputs=inputs, sizes={"x": (4, 6)} if "?" in inputs else None)


def test_rows_of_known_scales_run_in_integers():
    """As with per_group; the quantize by the same scales stays a step of its own."""
    g = gq.Graph()
    x, s = g.input("x", shape=(None, 6), dtype="f32"), g.input("s", shape=(None,), dtype="f32")
    rows = dict(qtype="per_channel", axis=0)
    q = g.dynamic_dequantize(g.dynamic_quantize(x, s, dtype="s8", **rows), s, **rows)
    g.output(g.matmul(q, g.dequantize(g.constant(np.arange(12, dtype=np.int8).reshape(6, 2)), scales=[0.5])), name="y")
    model = gq.compile(g, threads=1, strict=True)
    feeds = {"x": np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6), "s": np.float32([0.1, 0.2, 0.05, 1])}
    assert np.array_equal(model(feeds), model.formula(**feeds))
    np.testing.assert_allclose(model(feeds), gq.reference(g, feeds), rtol=1e-6)
    assert str(model.coverage()).startswith("100%")
