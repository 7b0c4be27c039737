"""Moves around quantize and dequantize, rewrites of canonicalize together, and their near misses."""
from functools import partial

import numpy as np
import pytest

import graphq as gq
from graphq.passes import (
    QuantizeBeforeReshape,
    QuantizeBeforeTranspose,
    ReshapeBeforeDequantize,
    TransposeBeforeDequantize,
    canonicalize,
)
from graphq.passes.pipeline import run_passes
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4,6]")


def test_transpose_before_dequantize():
    check(TransposeBeforeDequantize(), """%0 = dequantize(x, scales=[0.5], zps=[3])
          %y = static_transpose(%0, order=[1,0])
          return %y""", """%0 = static_transpose(x, order=[1,0])
          %y = dequantize(%0, scales=[0.5], zps=[3])
          return %y""", inputs="x: u8[2,3]", count=1)


@pytest.mark.parametrize("axis,after", [(0, 2), (1, 0), (2, 1), (-1, 1), (-3, 2)])
def test_the_channel_axis_moves_along(axis, after):
    scales = [0.5, 1.0, 2.0, 4.0][:(2, 3, 4)[axis]]
    check(TransposeBeforeDequantize(), f"""%0 = dequantize(x, qtype="per_channel", axis={axis}, scales={scales})
          %1 = static_transpose(%0, order=[1,2,0])
          return %1""", f"""%0 = static_transpose(x, order=[1,2,0])
          %1 = dequantize(%0, qtype="per_channel", axis={after}, scales={scales})
          return %1""", inputs="x: s8[2,3,4]", count=1)


@pytest.mark.parametrize("end", ["return %1, %0", "%2 = relu(%0)\n return %1, %2"])
def test_transpose_before_dequantize_needs_a_single_user(end):
    check(TransposeBeforeDequantize(), inputs="x: u8[2,3]",
          before=f"%0 = dequantize(x, scales=[0.5])\n %1 = static_transpose(%0, order=[1,0])\n {end}")


@pytest.mark.parametrize("shape", ["[6]", "[-1,6]", "[0,-1,1], special_zero=true"])
def test_reshape_before_dequantize(shape):
    check(ReshapeBeforeDequantize(), f"""%0 = dequantize(x, scales=[0.5], zps=[3])
          %y = static_reshape(%0, shape={shape})
          return %y""", f"""%0 = static_reshape(x, shape={shape})
          %y = dequantize(%0, scales=[0.5], zps=[3])
          return %y""", inputs="x: u8[2,3]", count=1)


def test_quantize_before_reshape():
    check(QuantizeBeforeReshape(), """%0 = static_reshape(x, shape=[3,8])
          %y = quantize(%0, dtype=u8, scales=[0.5], zps=[3])
          return %y""", """%0 = quantize(x, dtype=u8, scales=[0.5], zps=[3])
          %y = static_reshape(%0, shape=[3,8])
          return %y""", count=1)


def test_channels_that_a_reshape_keeps():
    check(ReshapeBeforeDequantize(), """%0 = dequantize(x, qtype="per_channel", axis=-1, scales=[0.5, 1, 2])
          %y = static_reshape(%0, shape=[2,1,3])
          return %y""", """%0 = static_reshape(x, shape=[2,1,3])
          %y = dequantize(%0, qtype="per_channel", axis=2, scales=[0.5, 1, 2])
          return %y""", inputs="x: u8[2,3]", count=1)
    check(QuantizeBeforeReshape(), """%0 = static_reshape(x, shape=[1,4,2,3])
          %y = quantize(%0, dtype=s8, qtype="per_channel", axis=1, scales=[0.5, 1, 2, 4])
          return %y""", """%0 = quantize(x, dtype=s8, qtype="per_channel", axis=0, scales=[0.5, 1, 2, 4])
          %y = static_reshape(%0, shape=[1,4,2,3])
          return %y""", count=1)


def test_reshapes_stay_where_they_move_channels():
    check(ReshapeBeforeDequantize(), """%0 = dequantize(x, qtype="per_channel", axis=0, scales=[0.5, 1])
          %1 = static_reshape(%0, shape=[3,2])
          return %1""", inputs="x: u8[2,3]")
    check(QuantizeBeforeReshape(), """%0 = static_reshape(x, shape=[2,12])
          %1 = quantize(%0, dtype=s8, qtype="per_channel", axis=0, scales=[0.5, 1])
          return %1""")


@pytest.mark.parametrize("axis,before", [(0, 1), (1, 2), (2, 0), (-1, 0), (-3, 1)])
def test_quantize_before_transpose(axis, before):
    scales = [0.5, 1.0, 2.0, 4.0][:(3, 4, 2)[axis]]
    check(QuantizeBeforeTranspose(), f"""%0 = static_transpose(x, order=[1,2,0])
          %1 = quantize(%0, dtype=s8, qtype="per_channel", axis={axis}, scales={scales})
          return %1""", f"""%0 = quantize(x, dtype=s8, qtype="per_channel", axis={before}, scales={scales})
          %1 = static_transpose(%0, order=[1,2,0])
          return %1""", inputs="x: f32[2,3,4]", count=1)


@pytest.mark.parametrize("move", ["static_reshape({}, shape=[6,4])", "static_transpose({}, order=[1,0])"])
def test_moves_between_quantize_and_dequantize_come_to_an_end(move):
    end = "%2 = quantize(%1, dtype=s8, scales=[0.25])\n return %2"
    start = f"%0 = dequantize(x, scales=[0.5])\n %1 = {move.format('%0')}"
    check(canonicalize, f"{start}\n {end}", f"""%0 = {move.format('x')}
          %1 = dequantize(%0, scales=[0.5])
          {end}""", inputs="x: u8[4,6]")


def test_a_flatten_between_dense_layers_does_not_keep_them_from_fusing():
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(2, 3, 4)), scales=[0.5])
    w = g.dequantize(g.constant(np.ones((12, 6), np.int8)), scales=[0.25])
    y = g.relu(g.matmul(g.static_reshape(x, shape=[2, 12]), w))
    g.output(g.quantize(g.static_reshape(y, shape=[2, 2, 3]), dtype="u8", scales=[0.5]))
    run_passes(g)
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["static_reshape", "partition", "static_reshape"]
    assert [n.attrs["anchor"] for n in g.nodes if n.op.name == "partition"] == ["matmul"]


def test_all_together():
    """Weights that were transposed twice on the way, per channel and uniformly so."""
    check(canonicalize, """%0 = dequantize(x, qtype="per_channel", axis=-1, scales=[0.5, 0.5, 0.5])
          %1 = static_transpose(%0, order=[1,0])
          %2 = static_reshape(%1, shape=[3,2])
          %3 = static_transpose(%2, order=[1,0])
          %4 = static_transpose(%3, order=[1,0])
          %5 = relu(%4)
          %6 = relu(%5)
          return %6""", """%0 = static_transpose(x, order=[1,0])
          %1 = dequantize(%0, scales=[0.5])
          %2 = relu(%1)
          return %2""", inputs="x: s8[2,3]")
    check(canonicalize, "%0 = relu(x)\n return %0")


TWO = "%0 = dequantize(x, scales=[0.5])\n %1 = {}\n %2 = relu(%0)\n return %1, %2"
PER_CHANNEL = 'qtype="per_channel", axis=1, scales=[1,2,3,4,5,6]'


@pytest.mark.parametrize("rewrite,inputs,text,reason", [
    ("DropNoopReshape", "x: f32[?,6]", "%0 = static_reshape(x, shape=[0,6], special_zero=true)\n return %0",
     "the shape is not known: f32[?,6]"),
    ("MergeReshapes", "x: f32[?,6]", "%0 = static_reshape(x, shape=[-1,3])\n %1 = static_reshape(%0, shape=[-1,2])\n"
     "return %1", "the final shape is not known"),
    ("MergeTransposes", "x: f32[4,6]", "%0 = static_transpose(x, order=[1,0])\n"
     "%1 = static_transpose(%0, order=[1,0])\n return %1, %0", "%0 = static_transpose(x) : f32[6,4] is also an output"),
    ("TransposeAsReshape", "x: f32[?,6]", "%0 = static_transpose(x, order=[1,0])\n return %0",
     "the shape is not known: f32[?,6]"),
    ("TransposeBeforeDequantize", "x: u8[4,6]", TWO.format("static_transpose(%0, order=[1,0])"), "is also used by"),
    ("ReshapeBeforeDequantize", "x: u8[4,6]", f"%0 = dequantize(x, {PER_CHANNEL})\n"
     "%1 = static_reshape(%0, shape=[24])\n return %1", "dequantize has a scale for each element of dimension 1"),
    ("QuantizeBeforeReshape", "x: f32[24]", "%0 = static_reshape(x, shape=[4,6])\n"
     f"%1 = quantize(%0, dtype=u8, {PER_CHANNEL})\n return %1", "quantize has a scale for each element of dimension 1"),
    ("QuantizeBeforeTranspose", "x: f32[6,4]", "%0 = static_transpose(x, order=[1,0])\n"
     "%1 = quantize(%0, dtype=u8, scales=[1])\n return %1, %0",
     "%0 = static_transpose(x) : f32[4,6] is also an output"),
    ("DropMultiplyByOne", "x: f32[6]", "%c = constant(value=f32[2,1]{1, 1})\n %0 = multiply(x, %c)\n return %0",
     "the result's type differs"),
    ("DropRepeatedRelu", "x: f32[6]", "%0 = relu(x)\n %1 = relu(%0)\n return %1, %0", "%0 = relu(x) : f32[6] is also"),
    ("CubeAsProducts", "x: bf16[6]", "%0 = pow(x, beta=3)\n return %0", "x is bf16"),
    ("StaticDequantize", "x: u8[6], s: f32[1]", "%0 = dynamic_dequantize(x, s)\n return %0", "are not constant"),
    ("StaticQuantize", "x: f32[6], s: f32[1]", "%0 = dynamic_quantize(x, s, dtype=u8)\n return %0", "are not constant"),
    ("ConvIntegerAsConvolution", "x: u8[1,40000,1,1], w: s8[1,40000,1,1]", "%0 = conv_integer(x, w)\n"
     "%1 = cast(%0, dtype=f32)\n return %1", "sums of 40000 products could wrap"),
    ("GatherBeforeDequantize", "x: u8[4,6], i: s32[2]", f"%0 = dequantize(x, {PER_CHANNEL})\n"
     "%1 = gather(%0, i, axis=1)\n return %1", "dequantize has a scale for each element of the axis"),
    ("PickBeforeDequantize", "x: u8[4,6]", f"%0 = dequantize(x, {PER_CHANNEL})\n"
     "%1 = slice(%0, axes=[1], starts=[1], ends=[3], steps=[1])\n return %1",
     "dequantize has a scale for each element of dimension 1"),
    ("PadBeforeDequantize", "x: u8[4,6]", "%0 = dequantize(x, scales=[0.5])\n"
     "%1 = pad(%0, pads_begin=[1,1], pads_end=[0,0], value=0.3)\n return %1", "no u8 dequantizes to 0.3"),
    ("QuantizeBeforePad", "x: f32[4,6]", "%0 = pad(x, pads_begin=[1,1], pads_end=[0,0])\n"
     "%1 = quantize(%0, dtype=u8, qtype=\"per_channel\", axis=0, scales=[1,2,3,4,5])\n return %1",
     "quantize has a scale for each channel"),
    ("ConcatBeforeDequantize", "x: u8[4,6], y: u8[4,6], w: f32[6,2]", "%0 = dequantize(x, scales=[0.5])\n"
     "%1 = dequantize(y, scales=[0.25])\n %2 = concat(%0, %1, axis=0)\n %3 = matmul(%2, w)\n return %3",
     "the operands are dequantized by different scales"),
    ("DropRequantize", "x: u8[6]", "%0 = dequantize(x, scales=[0.5])\n %1 = quantize(%0, dtype=u8, scales=[0.25])\n"
     "return %1", "the scales or zero points differ"),
    ("DropLimitBeforeQuantize", "x: f32[6]", "%0 = relu(x)\n %1 = quantize(%0, dtype=u8, scales=[0.5])\n return %1, %0",
     "%0 = relu(x) : f32[6] is also an output"),
    ("DropLimitAfterDequantize", "x: u8[6]", "%0 = dequantize(x, scales=[0.5])\n %1 = relu(%0)\n return %1, %0",
     "%0 = dequantize(x) : f32[6] is also an output"),
    ("RequantizePicked", "x: u8[1,4,4,2], w: f32[3,2,1,1]", """
     %0 = dequantize(x, qtype="per_channel", axis=3, scales=[1,2])
     %1 = max_pool(%0, kernel=[2,2], strides=[2,2], pads_begin=[0,0], pads_end=[0,0])
     %2 = convolution(%1, w, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1], weights_format="OIX")
     return %2""", "with scales per_channel"),
    ("FoldPadIntoConvolution", "x: f32[1,4,4,2], w: f32[3,2,1,1]",
     """%0 = pad(x, pads_begin=[0,1,1,0], pads_end=[0,0,0,0], value=1)
     %1 = convolution(%0, w, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1], weights_format="OIX")
     return %1""", "the padding is 1, 0 is 0"),
])
def test_near_misses_are_reported(rewrite, inputs, text, reason):
    misses = run_passes(gq.parse(f"graph({inputs}) {{\n{text}\n}}"), [canonicalize])
    assert any(m.rewrite == rewrite and reason in m.reason for m in misses), misses


@pytest.mark.parametrize("channels, fits", [(33025, True), (33026, False)])
def test_sums_of_integers_that_could_wrap(channels, fits):
    """2**31 // 255**2 products of bytes are the most, of each output, however many there are."""
    g = gq.parse(f"graph(x: u8[1,{channels},1,1], w: s8[5,{channels},1,1]) {{\n %0 = conv_integer(x, w)\n"
                 " %1 = cast(%0, dtype=f32)\n return %1\n}")
    run_passes(g, [canonicalize])
    assert bool(g.nodes_of(("convolution",))) == fits and bool(g.nodes_of(("conv_integer",))) != fits


def test_explain_names_near_misses_of_canonicalize():
    g = gq.parse("graph(x: u8[6]) {\n %0 = dequantize(x, scales=[0.5])\n"
                 "%1 = quantize(%0, dtype=u8, scales=[0.25])\n return %1\n}")
    assert "DropRequantize: the scales or zero points differ" in gq.compile(g).explain(full=True)


def test_what_is_far_from_a_rewrite_is_no_near_miss():
    g = gq.parse("""graph(x: f32[4,6]) {
      %0 = static_transpose(x, order=[1,0])
      %1 = static_reshape(%0, shape=[24])
      %c = constant(value=f32[]{2})
      %2 = multiply(%1, %c)
      %3 = relu(%2)
      %4 = quantize(%3, dtype=u8, scales=[0.5], zps=[3])
      return %4
    }""")
    assert run_passes(g, [canonicalize]) == []
