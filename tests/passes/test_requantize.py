"""What leaves quantized numbers as they are is dropped; text in and text out, with the negatives."""
from functools import partial

import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s8, s16
from graphq.ops.quant import dequantize, quantize
from graphq.passes.requantize import (
    DropLimitAfterDequantize,
    DropLimitBeforeQuantize,
    DropRequantize,
    RequantizePicked,
)
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: u8[4,6]")


PARAMETERS = ["scales=[0.1], zps=[3]", "scales=[0.003]",
              'qtype="per_channel", axis=0, scales=[1,0.2,3e-30,4e30], zps=[5,6,7,0]']


@pytest.mark.parametrize("dtype", ["u8", "s8", "u16", "s16"])
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_equal_parameters_undo_each_other(parameters, dtype):
    text = f"%0 = dequantize(x, {parameters})\n %1 = quantize(%0, dtype={dtype}, {parameters})\n"
    check(DropRequantize(), f"{text} %2 = dequantize(%1, scales=[0.5])\n return %2",
          "%0 = dequantize(x, scales=[0.5])\n return %0", inputs=f"x: {dtype}[4,6]", count=1)


@pytest.mark.parametrize("zero", [-128, 0, 127])
def test_each_integer_comes_back_for_any_scale(zero):
    every = np.arange(-128, 128).astype(np.int8)
    scales = np.random.default_rng(0).uniform(-37, 36, 2000)
    for scale in (1.1754944e-38, 1e36, *(10**scales).tolist()):
        attrs = {"scales": [scale], "zps": [zero]}
        numbers = dequantize.reference(every, **attrs)
        assert np.array_equal(quantize.reference(numbers, dtype=s8, **attrs), every), scale


@pytest.mark.parametrize("zero", [-2**15, 77, 2**15 - 1])
def test_each_integer_of_16_bits_comes_back_for_any_scale(zero):
    every = np.arange(-2**15, 2**15).astype(np.int16)
    for scale in (1.1754944e-38, 1e33, *(10**np.random.default_rng(0).uniform(-37, 33, 50)).tolist()):
        attrs = {"scales": [scale], "zps": [zero]}
        numbers = dequantize.reference(every, **attrs)
        assert np.array_equal(quantize.reference(numbers, dtype=s16, **attrs), every), scale


@pytest.mark.parametrize("second", ["dtype=s8, scales=[0.1], zps=[3]", "dtype=u8, scales=[0.1], zps=[4]",
                                    "dtype=u8, scales=[0.11], zps=[3]", "dtype=u8, scales=[0.1]",
                                    'dtype=u8, qtype="per_channel", axis=0, scales=[0.1,0.1,0.1,0.1], zps=[3,3,3,3]'])
def test_other_parameters_stay(second):
    check(DropRequantize(), f"%0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = quantize(%0, {second})\n return %1")


@pytest.mark.parametrize("scales, zps", [([1, 3, 2, 1], [5, 6, 7, 5]), ([1, 2, 2, 1], [5, 6, 4, 5])])
def test_parameters_that_differ_in_a_channel_between_others_stay(scales, zps):
    first, second = (f'qtype="per_channel", axis=0, scales={s}, zps={z}'
                     for s, z in (([1, 2, 2, 1], [5, 6, 7, 5]), (scales, zps)))
    check(DropRequantize(), f"%0 = dequantize(x, {first})\n %1 = quantize(%0, dtype=u8, {second})\n return %1")


PER = 'qtype="per_channel", axis={}, scales={}'


@pytest.mark.parametrize("first, second, goes", [
    (PER.format(0, [1, 2, 3, 4]), PER.format(1, [1, 2, 3, 4]), False),
    (PER.format(0, [1, 2, 3, 4]), PER.format(0, [1, 2, 3, 4]), True),
    ("axis=0, scales=[2]", "axis=1, scales=[2]", True), (PER.format(2, [2]), "axis=2, scales=[2]", False),
    ("axis=2, scales=[2]", PER.format(2, [2]), False)])
def test_axes_matter_for_channels_only(first, second, goes):
    check(DropRequantize(), f"%0 = dequantize(x, {first})\n %1 = quantize(%0, dtype=u8, {second})\n return %1",
          "return x as out0" if goes else None, inputs="x: u8[4,4,1]")


@pytest.mark.parametrize("scale", ["1e-38", "2e36"])
def test_scales_at_the_ends_of_f32_stay(scale):
    check(DropRequantize(), f"%0 = dequantize(x, scales=[{scale}])\n %1 = quantize(%0, dtype=u8, scales=[{scale}])\n "
          "return %1")


def test_a_second_user_or_a_returned_value_stays():
    text = "%0 = dequantize(x, scales=[0.1])\n %1 = quantize(%0, dtype=u8, scales=[0.1])\n return %1, %0"
    check(DropRequantize(), text)


def test_quantize_then_dequantize_stays():
    text = "%0 = quantize(x, dtype=u8, scales=[0.1])\n %1 = dequantize(%0, scales=[0.1])\n return %1"
    check(DropRequantize(), text, inputs="x: f32[4,6]")


LIMITED = [  # the limit, what is quantized, whether it goes
    ("relu", "dtype=u8, scales=[0.1]", True), ("relu", "dtype=s8, scales=[0.1], zps=[-128]", True),
    ("relu", "dtype=u8, scales=[0.1], zps=[1]", False), ("relu", "dtype=s8, scales=[0.1]", False),
    ("relu", 'dtype=u8, qtype="per_channel", axis=0, scales=[1,2,3,4]', True),
    ("relu", 'dtype=u8, qtype="per_channel", axis=0, scales=[1,2,3,4], zps=[0,0,1,0]', False),
    ("clamp, min=0, max=6", "dtype=u8, scales=[0.02352941]", True),  # 6 / 255, as quantizers choose
    ("clamp, min=0, max=6", "dtype=u8, scales=[0.023]", True),
    ("clamp, min=0, max=6", "dtype=u8, scales=[0.0237]", False),
    ("clamp, min=-1, max=1", "dtype=s8, scales=[0.0078]", True),
    ("clamp, min=-1, max=1", "dtype=s8, scales=[0.0079]", False),
    (f"clamp, min=0, max={np.finfo(np.float32).max}", "dtype=u8, scales=[0.1]", True),
    ("clamp, min=-1e39, max=1e39", "dtype=u8, scales=[0.1]", True),  # infinite as f32
    ("clamp, min=1e39, max=1e39", "dtype=u8, scales=[0.1]", False),
    ("relu", "dtype=f8_e4m3, scales=[0.1]", False),
    *((limit, f"dtype={dtype}, scales=[-0.1]", False)
      for limit in ("relu", "clamp, min=-26, max=0") for dtype in ("u8", "s8")),
]


@pytest.mark.parametrize("limit,parameters,goes", LIMITED)
def test_limits_before_quantize(limit, parameters, goes):
    op, _, attrs = limit.partition(", ")
    before = f"%0 = {op}(x{', ' * bool(attrs)}{attrs})\n %1 = quantize(%0, {parameters})\n return %1"
    check(DropLimitBeforeQuantize(), before, f"%0 = quantize(x, {parameters})\n return %0" if goes else None,
          inputs="x: f32[4,600]")


@pytest.mark.parametrize("limit,parameters,goes", [
    ("relu", "scales=[0.1]", True), ("relu", "scales=[0.1], zps=[1]", False),
    ("clamp, min=0, max=127.5", "scales=[0.5]", True), ("clamp, min=0, max=127.4", "scales=[0.5]", False),
    ("clamp, min=0, max=26", "scales=[0.1]", True), ("clamp, min=0, max=25", "scales=[0.1]", False),
    ("relu", 'qtype="per_channel", axis=0, scales=[1,2,3,4]', True),
    ("clamp, min=-1, max=600", 'qtype="per_channel", axis=0, scales=[1,2,3,4]', False)])
def test_limits_after_dequantize(limit, parameters, goes):
    op, _, attrs = limit.partition(", ")
    before = f"%0 = dequantize(x, {parameters})\n %1 = {op}(%0{', ' * bool(attrs)}{attrs})\n return %1"
    check(DropLimitAfterDequantize(), before, f"%0 = dequantize(x, {parameters})\n return %0" if goes else None,
          inputs="x: u8[4,600]")


def test_limits_with_a_second_user_stay():
    check(DropLimitBeforeQuantize(), "%0 = relu(x)\n %1 = quantize(%0, dtype=u8, scales=[0.1])\n return %1, %0",
          inputs="x: f32[4]")
    check(DropLimitAfterDequantize(), "%0 = dequantize(x, scales=[0.1])\n %1 = relu(%0)\n return %1, %0")


POOL = "max_pool(%0, strides=[2,2], pads_begin=[1,0], pads_end=[1,0], kernel=[2,2]{})"
PICK = {"pool": POOL.format(""), "nearest": 'interpolate(%0, mode="nearest", sizes=[8,10])'}
CONV = "convolution(%1, w, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1])"


@pytest.mark.parametrize("pick", PICK)
def test_what_a_product_takes_is_quantized_again(pick):
    again = "dequantize({}, scales=[0.1], zps=[3])"
    before = f"%0 = {again.format('x')}\n %1 = {PICK[pick]}\n"
    product = f"%2 = {CONV}\n return %2"
    check(RequantizePicked(), before + product,
          f"{before} %2 = quantize(%1, dtype=u8, scales=[0.1], zps=[3])\n %3 = {again.format('%2')}\n "
          f"%4 = {CONV.replace('%1', '%3')}\n return %4",
          inputs="x: u8[1,4,5,3], w: f32[1,1,3,2]", count=1)
    check(RequantizePicked(), before + "%2 = exp(%1)\n return %2", inputs="x: u8[1,4,5,3]")


@pytest.mark.parametrize("x, parameters", [
    ("s16[1,4,5,3]", "scales=[0.1]"), ("u8[1,4,5,3]", 'qtype="per_channel", axis=3, scales=[0.1,0.2,0.3]'),
    ("u8[1,4,5,3]", "scales=[1e-39]"), ("u8[1,?,5,3]", "scales=[0.1]")])
def test_what_is_not_quantized_again(x, parameters):
    """Types and scales that no product takes or that do not come back, and windows of unknown sizes."""
    check(RequantizePicked(), f"%0 = dequantize(x, {parameters})\n %1 = {PICK['pool']}\n %2 = {CONV}\n return %2",
          inputs=f"x: {x}, w: f32[1,1,3,2]", sizes={"x": (1, 4, 5, 3)})


@pytest.mark.parametrize("rewrite, text", [
    (DropRequantize, "%0 = dequantize(x, scales=[0.1])\n %1 = quantize(%0, dtype=f8_e4m3, scales=[0.1])"),
    (DropLimitBeforeQuantize, "%d = dequantize(x, scales=[1])\n %0 = relu(%d)\n"
                              " %1 = quantize(%0, dtype=f8_e4m3, scales=[0.1])"),
    (DropLimitAfterDequantize, "%0 = dequantize(x, scales=[0.1])\n %1 = clamp(%0, min=-1e9, max=1e9)")])
def test_floats_of_8_bits_stay(rewrite, text):
    check(rewrite(), f"{text}\n return %1", inputs="x: f8_e4m3[4,6]")


def test_a_limit_before_a_negative_scale_stays():
    check(DropLimitBeforeQuantize(), "%0 = relu(x)\n %1 = quantize(%0, dtype=u8, scales=[-0.1], zps=[255])\n return %1",
          inputs="x: f32[4,6]")


def test_a_window_of_padding_alone_stays():
    pool = POOL.replace("pads_begin=[1,0]", "pads_begin=[2,0]")
    check(RequantizePicked(), f"%0 = dequantize(x, scales=[0.1])\n %1 = {pool.format('')}\n %2 = {CONV}\n return %2",
          inputs="x: u8[1,4,5,3], w: f32[1,1,3,2]")


def test_a_maximum_between_convolutions_without_a_quantize_keeps_them_in_integers():
    g = gq.parse(f"""graph(x: u8[1,6,7,3], w: s8[1,1,3,2]) {{
        %0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = {PICK['pool']}\n %f = dequantize(w, scales=[0.02])
        %2 = {CONV.replace(' w,', ' %f,')}\n %3 = quantize(%2, dtype=u8, scales=[0.3])\n return %3\n}}""")
    model = gq.compile(g)
    assert model.coverage().share == 1
    feeds = gq.testing.random_inputs(g)
    np.testing.assert_array_equal(model(feeds), model.formula(feeds))
    assert np.abs(model(feeds).astype(int) - gq.reference(g, feeds)).max() <= 1


@pytest.mark.parametrize("between", ["", "relu", "clamp"])
def test_channels_of_which_there_are_none(between):
    per = dict(qtype="per_channel", axis=1, scales=[], zps=[])
    g = gq.Graph()
    y = g.dequantize(g.input("x", dtype="s8", shape=[3, 0]), **per)
    y = {"": lambda: y, "relu": lambda: g.relu(y), "clamp": lambda: g.clamp(y, min=0, max=6)}[between]()
    g.output(g.quantize(y, dtype="s8", **per))
    assert gq.compile(g)(x=np.zeros((3, 0), np.int8)).shape == (3, 0)
