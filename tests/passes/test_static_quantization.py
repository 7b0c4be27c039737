"""Dynamic quantization by constants becomes static; ConvInteger a convolution."""
import pytest

from graphq.ir.parse import parse
from graphq.passes.static_quantization import (
    ConvIntegerAsConvolution,
    DequantizeByGroups,
    StaticDequantize,
    StaticQuantize,
)
from graphq.rewrite.rule import ANY
from graphq.testing import check_pass

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
    ("x: u8[4,3]", "%s = constant(value=f32[]{-0.5})\n %0 = dynamic_dequantize(x, %s)"),
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
